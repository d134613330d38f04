"""A published image data set as a workload: found, decoded into the cache, normalised, given models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from simulations import models
from simulations.models.pretrained import with_pretrained
from simulations.workloads.base.cache import cache_folder, digest_files, load_or_build
from simulations.workloads.base.mirror import find_shards
from simulations.workloads.base.workload import (
    Augment,
    NoRows,
    Options,
    Parquet,
    Progress,
    Split,
    Workload,
    refuse_unused,
    rescale,
    silent,
)
from simulations.workloads.images.decode import Shape, decode, parquet_source


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """A published image-classification data set and its preset.

    folder, subset: its shards are in ``<data_dir>/<folder>/<subset>/`` of a local mirror, or ``<subset>/`` on the hub.
    mean, std: published channel statistics of pixels in 0..1, public constants; never computed from the run's data.
    defaults, method_defaults: see ``Workload``.
    """

    name: str
    folder: str
    subset: str
    hub_name: str
    image_column: str
    label_column: str
    num_classes: int
    shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment
    defaults: Mapping[str, object]
    method_defaults: Mapping[str, Mapping[str, object]]

    @property
    def summary(self) -> str:
        return f"Images of {self.shape}, {self.num_classes} classes ({self.hub_name})."

    def load(
        self,
        *,
        data_dir: Path | None,
        cache_dir: Path | None,
        options: Options,
        progress: Progress,
        public_only: bool = False,
    ) -> Workload:
        """Load the workload; inputs are (B, channels, side, side). The first load decodes and takes some seconds.

        Raises:
            FileNotFoundError, ModuleNotFoundError, ConnectionError: as ``find_shards``.
            ValueError: an unreadable shard, other columns, a label or image that does not fit the data set, an
                option that images do not use.
            OSError: the cache folder cannot be written.
        """
        refuse_unused(options, workload=self.name, used=("pretrained",))
        splits = ("test",) if public_only else ("train", "test")
        shards = find_shards(self.folder, self.subset, splits, hub_name=self.hub_name, data_dir=data_dir)
        files = [file for files in shards.values() for file in files]
        key = f"{self.name}-{digest_files(files, salt=f'{self.name} uint8 nchw, version 1')}"

        def build() -> dict[str, np.ndarray]:
            sources = {
                split: [parquet_source(path, self.image_column, self.label_column) for path in paths]
                for split, paths in shards.items()
            }
            return decode(self.name, sources, num_classes=self.num_classes, shape=self.shape, progress=progress)

        arrays = load_or_build(cache_folder(cache_dir), key, build, progress=progress)
        return image_workload(
            self.name,
            arrays,
            columns=(self.image_column, self.label_column),
            num_classes=self.num_classes,
            mean=self.mean,
            std=self.std,
            augment=self.augment,
            pretrained=options.pretrained,
            defaults=self.defaults,
            method_defaults=self.method_defaults,
            progress=progress,
        )


def image_workload(
    name: str,
    arrays: Mapping[str, np.ndarray],
    *,
    columns: tuple[str, str],
    num_classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    augment: Augment | None,
    pretrained: str | None,
    defaults: Mapping[str, object],
    method_defaults: Mapping[str, Mapping[str, object]],
    progress: Progress,
) -> Workload:
    """The workload of decoded arrays (see ``decode``) with every model that fits images of their shape.

    Without arrays of the training split it has none. ``columns``: of the images and the labels in parquet files.
    Inputs are float32, ``(pixel / 255 - mean) / std`` in each channel.
    """
    prepare = partial(
        rescale, offset=255 * torch.tensor(mean).view(-1, 1, 1), scale=1 / (255 * torch.tensor(std).view(-1, 1, 1))
    )

    def split(name: str) -> Split:
        if f"{name}_images" not in arrays:
            return NoRows()
        # A copy: PyTorch has no read-only tensors.
        labels = torch.from_numpy(arrays[f"{name}_labels"].copy())
        return Split(inputs=arrays[f"{name}_images"], labels=labels, prepare=prepare)

    _, channels, side, _ = arrays["test_images"].shape
    return Workload(
        name=name,
        train=split("train"),
        test=split("test"),
        num_classes=num_classes,
        models=_models(channels, side, num_classes, pretrained, progress),
        augment=augment,
        defaults=defaults,
        method_defaults=method_defaults,
        parquet=_own_rows(name, *columns, num_classes, Shape(channels=channels, side=side), prepare),
    )


def _own_rows(
    name: str, image_column: str, label_column: str, num_classes: int, shape: Shape, prepare: Callable[[Any], Any]
) -> Parquet:
    """A reader of a client's own encoded images of one shape."""

    def rows(paths: Sequence[Path], cache: Path) -> Split:
        def build() -> dict[str, np.ndarray]:
            sources = {"train": [parquet_source(path, image_column, label_column) for path in paths]}
            return decode(name, sources, num_classes=num_classes, shape=shape, progress=silent)

        key = digest_files(paths, salt=f"own {name} {image_column} {label_column} {shape}, version 1")
        arrays = load_or_build(cache, f"own-{key}", build, progress=silent)
        labels = torch.from_numpy(arrays["train_labels"].copy())
        return Split(inputs=arrays["train_images"], labels=labels, prepare=prepare)

    return rows


def _models(
    channels: int, side: int, num_classes: int, pretrained: str | None, progress: Progress
) -> Mapping[str, Callable[[], nn.Module]]:
    """Every model for the shape, filled with the weights at ``pretrained`` where that is given."""
    fitting = models.vision(channels, side, num_classes)
    if pretrained is None:
        return fitting
    return MappingProxyType(
        {name: with_pretrained(builder, pretrained, say=progress) for name, builder in fitting.items()}
    )
