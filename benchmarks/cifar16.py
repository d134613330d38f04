"""CIFAR-10 at 16 x 16 pixels with two fully connected networks: the workload of
docs/results/probe.md.

fedlsg compare --grid docs/results/probe-mlp.toml --out DIR       FEDLSG_DATA names the mirror with
                                                                  cifar10/plain_text
"""

import io
import os
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import fedlsg


def workload() -> fedlsg.Workload:
    """Images (3, 16, 16); the models ``mlp`` (768-256-256-10) and ``mlp-wide`` (768-1024-1024-10),
    with tanh.
    """
    return fedlsg.Workload(
        model={"mlp": partial(mlp, 256), "mlp-wide": partial(mlp, 1024)},
        train=halved("train"),
        test=halved("test"),
        transform=normalise,
        loss=nn.CrossEntropyLoss(),
        num_classes=10,
        name="cifar16",
    )


def mlp(width: int) -> nn.Module:
    """Two hidden layers: 265,226 parameters at width 256, 1,847,306 at width 1,024."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(768, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, 10),
    )


def normalise(images: Tensor) -> Tensor:
    """Pixels from 0..255 to -2..2, by constants."""
    return (images.float() / 255 - 0.5) / 0.25


def halved(split: str, *, by: int = 2) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 16, 16) uint8, each pixel the mean of four, and labels. ``by`` divides the side
    of 32.
    """
    import pyarrow.parquet as parquet

    folder = Path(os.environ.get("FEDLSG_DATA", ".")).expanduser() / "cifar10" / "plain_text"
    images, labels = [], []
    files = sorted(folder.glob(f"{split}-*.parquet"))
    if not files:
        raise FileNotFoundError(
            f"no {folder}/{split}-*.parquet: set FEDLSG_DATA to the mirror that holds "
            "cifar10/plain_text"
        )
    for path in files:
        table = parquet.read_table(path, columns=["img", "label"])
        labels += table["label"].to_pylist()
        images += [
            np.asarray(Image.open(io.BytesIO(image["bytes"]))) for image in table["img"].to_pylist()
        ]
    pixels = (
        np.stack(images)
        .reshape(-1, 32 // by, by, 32 // by, by, 3)
        .mean((2, 4))
        .round()
        .astype(np.uint8)
    )
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)
