"""digits: 1,797 real handwritten digits of 8x8 pixels in ``digits.toml``; nothing to download.

Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits" (UCI). The rows and their
order are those of scikit-learn's ``load_digits``. The split is fixed and stratified: 1,437 training
and 360 test images, drawn once by ``train_test_split(test_size=0.2, random_state=0)`` of it.
"""

import base64
import lzma
import tomllib
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from fedlsg.simulations import models
from fedlsg.simulations.workloads.base import LoadedWorkload, Request, refuse_unused
from fedlsg.simulations.workloads.base.public_inputs import Pixels, image_draws
from fedlsg.simulations.workloads.base.split import NoRows, Split, rescale
from fedlsg.simulations.workloads.rows.decode import OwnRows

_TEST_ROWS = (  # one bit for each row, 1 for a test row; in base 85
    "000DtH6#!~00uz-lR^am8UP3Z03-k?1}qW)5CD`40FW6H1R(gJ0)Y^q00;_*AVd`;NkTxN3IG5AKm^zT0D*uY07wPI01!Y3pb!8BKu7>E5C"
    "8%W#0dZbB!mEir~y16rkDx<000XJKnMh&7)SyFKtaI(fCNBBgg0t|0u}&7fB-;3prjZIPymDrg<-}B5P%2(On|^31O|=(0SJNsfdDuN1HcFw000"
    "mU0RV&$pdkP=C@BQMM8JS(4gms#0D=IBBBnqrBm^M{s9=DQfuIZmf&xMk0XU=;00"
)

# Stored pixels are 0..16; the model sees (pixel / 16 - 0.3) * 2. The constants are public, not
# computed from the data.
_OFFSET = torch.tensor(0.3 * 16)
_SCALE = torch.tensor(2 / 16)

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "clients": 5,
        "rounds": 100,
        "local_steps": 1,
        "sample_rate": 0.5,
        "learning_rate": 0.8,
        "momentum": 0.9,
        "clip_norm": 0.5,
        "epsilon": 8.0,
        "delta": 1e-5,
        "rank": 4,
        "sparsity": 0.3,
        "partition": "iid",
    }
)

METHOD_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "rs": {"sparsity": 0.5},
        "probe": {"rank": 16, "out_rank": 16, "sparsity": 0.0},
        "dpsgd": {"learning_rate": 0.4},
        "topk": {"learning_rate": 0.2},
        "powersgd": {"learning_rate": 0.2},
    }
)
"""Settings of single methods. Learning rates are by runs on held-out rows (holdout = 0.2).

``dpsgd`` at epsilon 8, seeds 0 to 4: 94.5 ± 0.5 % at 0.2, 95.6 ± 0.6 at 0.4, 93.3 ± 1.1 at 0.8.
``topk`` and ``powersgd``, which add no noise: two runs each, seeds 10 and 11.
"""


def load(request: Request) -> LoadedWorkload:
    """Load the workload; inputs are (B, 1, 8, 8). The folders are not used."""
    refuse_unused(request.options, workload="digits")
    images, labels = read()
    stored = images.reshape(-1, 1, 8, 8)
    packed = np.frombuffer(base64.b85decode(_TEST_ROWS), dtype=np.uint8)
    is_test = np.unpackbits(packed, count=len(labels)) == 1
    prepare = partial(rescale, offset=_OFFSET, scale=_SCALE)

    def split(rows: np.ndarray) -> Split:
        return Split(
            inputs=stored[rows],
            labels=torch.from_numpy(labels[rows].astype(np.int64)),
            prepare=prepare,
        )

    test = split(is_test)
    pixels = Pixels(form=stored.shape[1:], white=16.0, prepare=prepare)
    return LoadedWorkload(
        name="digits",
        train=NoRows() if request.public_only else split(~is_test),
        test=test,
        num_classes=10,
        models=MappingProxyType({"mlp": models.digits_mlp, "conv": models.digits_conv}),
        defaults=DEFAULTS,
        method_defaults=METHOD_DEFAULTS,
        read=OwnRows(name="digits", test=test),
        synthetic=image_draws(pixels),
        pixels=pixels,
    )


def read() -> tuple[np.ndarray, np.ndarray]:
    """Pixels (1797, 64) in 0..16 and labels (1797,), equal to ``sklearn.datasets.load_digits``."""
    values = np.frombuffer(_unpack(), dtype=np.uint8)
    # 64 pixels of each image, then one label of each
    pixels, labels = np.split(values, [64 * len(values) // 65])
    return pixels.reshape(-1, 64).copy(), labels.astype(np.int64)


@cache  # the file never changes
def _unpack() -> bytes:
    """The bytes of ``digits.toml`` next to this file."""
    text = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["rows"]
    return lzma.decompress(base64.b85decode(text.replace("\n", "")))
