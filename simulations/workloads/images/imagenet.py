"""imagenet: photographs in a folder for each class, train/CLASS/*.JPEG and val/CLASS/*.JPEG.

Images are opened when they are used.

The folder is ``imagenet`` of the data folder (FEDLSG_DATA, --data-dir), or that folder itself. Any
number of classes is taken: the folders of ``train`` in order, or those of ``val`` where a server
has no training rows. Only the paths are in memory, 50 MB for the 1,281,167 training images of
ILSVRC 2012 (Russakovsky et al. 2015); its copy on the hub asks for an account, so download it and
unpack it first. Channel statistics are published constants.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int64, UInt8

from fedlsg.simulations import models
from fedlsg.simulations.workloads.base import IMAGES, LoadedWorkload, Request, refuse_unused
from fedlsg.simulations.workloads.base.public_inputs import Pixels, image_draws
from fedlsg.simulations.workloads.base.split import NoRows, Split, by_channel
from fedlsg.simulations.workloads.images.augment import flip_crop
from fedlsg.simulations.workloads.rows.decode import OwnRows
from fedlsg.simulations.workloads.rows.image_contents import Taken
from fedlsg.simulations.workloads.rows.image_folders import (
    check_contents,
    list_images,
    open_image,
)
from fedlsg.simulations.workloads.rows.shards import data_root

NAME = "imagenet"
SHORTER = 256
"""Images are scaled to this many pixels on the shorter side."""
SIDE = 224
"""The square of this many pixels on a side, in the middle of a scaled image, is used."""
CHECKED = 100_000
"""About this many JPEGs of a split, evenly spaced, are checked before the run: half a minute.

Others are opened when they are drawn, and one with several pictures ends the run.
"""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the channels (R, G, B), for pixels in 0..1."""

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "clients": 10,
        "rounds": 1000,
        "local_steps": 1,
        "sample_rate": 0.0128,
        "learning_rate": 4.0,
        "momentum": 0.0,
        "clip_norm": 1.0,
        "epsilon": 8.0,
        "delta": 7.8e-7,
        "rank": 8,
        "sparsity": 0.3,
        "partition": "iid",
    }
)
"""Batch, learning rate and clip norm of De et al. 2022 on ImageNet; delta is below 1/N.

Nothing was tuned here.
"""
METHOD_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType({"rs": {"sparsity": 0.5}})


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Images in files, decoded when their rows are asked for: the ``Stored`` of a split.

    root: the folder of the split.
    paths: relative to ``root``, as bytes (N,).
    taken: what is read of an image.
    """

    root: Path
    paths: np.ndarray
    taken: Taken
    in_files: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Int64[np.ndarray, " b"]) -> UInt8[np.ndarray, "b 3 side side"]:
        """The images (B, 3, SIDE, SIDE), RGB. Raises ValueError for a file that does not decode."""
        pixels = np.empty((len(rows), 3, SIDE, SIDE), dtype=np.uint8)
        for place, name in enumerate(self.paths[rows]):
            pixels[place] = _decode(self.root / os.fsdecode(bytes(name)), self.taken)
        return pixels


def load(request: Request) -> LoadedWorkload:
    """Load the workload; inputs are (B, 3, 224, 224), (pixel / 255 - mean) / std of each channel.

    Raises FileNotFoundError, naming the folder, for a split without images; ValueError for a class
    without images, and for a class of ``val`` that ``train`` has not.
    """
    refuse_unused(request.options, workload=NAME, used=IMAGES)
    taken = Taken.by(request.options)
    root = _root(data_root(request.data_dir))
    splits: dict[str, Split] = {}
    classes: list[str] = []
    for name in ("val",) if request.public_only else ("train", "val"):
        request.progress(f"{NAME}: listing the images of {name}")
        files = _list(root / name)
        classes = classes or list(files)  # those of the first split
        splits[name] = _rows(root / name, files, classes, "train", taken)
    pixels = Pixels(form=(3, SIDE, SIDE), prepare=splits["val"].prepare)
    arrays = OwnRows(name=NAME, test=splits["val"])

    def own_rows(path: Path, cache: Path) -> Split:
        """A deployed client's own rows: a file, or a folder of classes or with one in ``train``."""
        if not path.is_dir():
            return arrays(path, cache)
        folder = path / "train" if (path / "train").is_dir() else path
        return _rows(folder, list_images(folder, str(folder))[0], classes, "the public data", taken)

    available = dict(models.vision(3, SIDE, len(classes)))
    return LoadedWorkload(
        name=NAME,
        train=splits.get("train", NoRows()),
        test=splits["val"],
        num_classes=len(classes),
        models=MappingProxyType({"resnet-50": available.pop("resnet-50"), **available}),
        augment=flip_crop,
        defaults=DEFAULTS,
        method_defaults=METHOD_DEFAULTS,
        read=own_rows,
        synthetic=image_draws(pixels),
        pixels=pixels,
        places=(root,),
    )


def _rows(
    folder: Path,
    files: Mapping[str, Sequence[str]],
    classes: Sequence[str],
    whose: str,
    taken: Taken,
) -> Split:
    """Images of a folder by class.

    whose: who has the ``classes``, for messages.
    Raises ValueError for a class that is not one of ``classes``, and for a file of which something
    would be lost. All files are checked for that, of the JPEGs about CHECKED.
    """
    if unknown := sorted(set(files) - set(classes)):
        raise ValueError(
            f"{folder} has the class {unknown[0]}, which {whose} has not: both need the same class "
            "folders"
        )
    paths = np.array(
        [os.fsencode(f"{label}/{file}") for label in classes for file in files.get(label, [])]
    )
    is_jpeg = np.array([name.lower().endswith((b".jpg", b".jpeg")) for name in paths])
    step = max(1, math.ceil(is_jpeg.sum() / CHECKED))
    checked = np.concatenate([np.flatnonzero(~is_jpeg), np.flatnonzero(is_jpeg)[::step]])
    for row in sorted(checked.tolist()):
        check_contents(folder / os.fsdecode(bytes(paths[row])), taken)
    counts = torch.tensor([len(files.get(label, [])) for label in classes])
    labels = torch.arange(len(classes)).repeat_interleave(counts)
    return Split(
        inputs=ImageFiles(root=folder, paths=paths, taken=taken),
        labels=labels,
        prepare=by_channel(MEAN, STD),
    )


def _root(data: Path | None) -> Path:
    """The folder of ``train`` and ``val``."""
    if data is None:
        raise FileNotFoundError(
            f"{NAME} is read from a folder: give --data-dir FOLDER with train/CLASS/*.JPEG and "
            "val/CLASS/*.JPEG"
        )
    return data / NAME if (data / NAME).is_dir() else data


def _list(folder: Path) -> dict[str, list[str]]:
    """Paths of images by class, relative to the folder of the class, in the order of names.

    Raises FileNotFoundError for fewer than two classes.
    """
    if not folder.is_dir():
        raise FileNotFoundError(_expected(folder))
    by_class, _ = list_images(folder, NAME)
    if len(by_class) < 2:
        raise FileNotFoundError(_expected(folder))
    return by_class


def _expected(folder: Path) -> str:
    """The message about a folder without classes."""
    return (
        f"expected at least two folders of classes with images in {folder}, as "
        f"{folder}/n01440764/1.JPEG: unpack {NAME} there, or give --data-dir"
    )


def _decode(path: Path, taken: Taken) -> UInt8[np.ndarray, "3 side side"]:
    """The square in the middle of a scaled image."""
    from PIL import Image

    image = open_image(path, str(path), draft=(SHORTER, SHORTER), taken=taken).convert("RGB")
    factor = SHORTER / min(image.size)
    width, height = (max(SHORTER, round(factor * side)) for side in image.size)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    scaled = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(scaled.crop((left, top, left + SIDE, top + SIDE))).transpose(2, 0, 1)
