"""cifar10, cifar100, svhn and fashion-mnist as workloads, from the hub or a local mirror of the same layout.

The channel statistics are published constants, not computed from the run's data. Preset and learning rates were tuned
on ``cifar10`` alone; the other data sets take them with the delta of the papers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from simulations import models
from simulations.workloads.base.cache import cache_folder, digest_files, load_or_build
from simulations.workloads.base.mirror import find_shards
from simulations.workloads.base.split import Augment, NoRows, Split, rescale
from simulations.workloads.base.synthetic import Pixels, image_draws
from simulations.workloads.base.workload import LoadedWorkload, Progress, Request, refuse_unused, silent
from simulations.workloads.images.augment import crop, flip_crop
from simulations.workloads.rows.decode import Shape, decode
from simulations.workloads.rows.hub import of_shards


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """A published image-classification data set and its preset.

    folder, subset: its shards are in ``<data_dir>/<folder>/<subset>/`` of a local mirror, or ``<subset>/`` on the hub;
        empty for a set that is found in another way.
    mean, std: published channel statistics of pixels in 0..1, public constants; never computed from the run's data.
    defaults, method_defaults: see ``LoadedWorkload``.
    """

    name: str
    folder: str = ""
    subset: str = ""
    hub_name: str
    image_column: str
    label_column: str
    num_classes: int
    shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None
    defaults: Mapping[str, object]
    method_defaults: Mapping[str, Mapping[str, object]]

    @property
    def summary(self) -> str:
        return f"Images of {self.shape}, {self.num_classes} classes ({self.hub_name})."

    def load(self, request: Request) -> LoadedWorkload:
        """Load the workload; inputs are (B, channels, side, side). The first load decodes and takes some seconds.

        Raises:
            FileNotFoundError, ModuleNotFoundError, ConnectionError: as ``find_shards``.
            ValueError: an unreadable shard, other columns, a label or image that does not fit the data set, an
                option that images do not use.
            OSError: the cache folder cannot be written.
        """
        refuse_unused(request.options, workload=self.name)
        splits = ("test",) if request.public_only else ("train", "test")
        shards = find_shards(self.folder, self.subset, splits, hub_name=self.hub_name, data_dir=request.data_dir)
        files = [file for files in shards.values() for file in files]
        key = f"{self.name}-{digest_files(files, salt=f'{self.name} uint8 nchw, version 1')}"
        build = partial(self.decode, shards, request.progress)
        arrays = load_or_build(cache_folder(request.cache_dir), key, build, progress=request.progress)
        return replace(image_workload(self, arrays), places=tuple({file.parent for file in files}))

    def decode(self, shards: Mapping[str, Sequence[Path]], progress: Progress) -> dict[str, np.ndarray]:
        """The images and labels of parquet files, by split; see ``decode``."""
        columns = (self.image_column, self.label_column)
        parts = of_shards(shards).splits
        return decode(self.name, parts, columns, num_classes=self.num_classes, shape=self.shape, progress=progress)


def image_workload(images: ImageSet, arrays: Mapping[str, np.ndarray]) -> LoadedWorkload:
    """The workload of decoded arrays (see ``decode``) with every model that fits images of their shape.

    Without arrays of the training split it has none.
    Inputs are float32, ``(pixel / 255 - mean) / std`` in each channel.
    """
    offset, scale = (255 * torch.tensor(values).view(-1, 1, 1) for values in (images.mean, images.std))
    prepare = partial(rescale, offset=offset, scale=1 / scale)

    def own_rows(paths: Sequence[Path], cache: Path) -> Split:
        columns = f"{images.image_column} {images.label_column}"
        key = digest_files(paths, salt=f"own {images.name} {columns} {images.shape}, version 1")
        build = partial(images.decode, {"train": paths}, silent)
        return _split("train", load_or_build(cache, f"own-{key}", build, progress=silent), prepare)

    pixels = Pixels(form=arrays["test_images"].shape[1:], prepare=prepare)
    return LoadedWorkload(
        name=images.name,
        train=_split("train", arrays, prepare) if "train_images" in arrays else NoRows(),
        test=_split("test", arrays, prepare),
        num_classes=images.num_classes,
        models=models.vision(images.shape.channels, images.shape.side, images.num_classes),
        augment=images.augment,
        defaults=images.defaults,
        method_defaults=images.method_defaults,
        parquet=own_rows,
        synthetic=image_draws(pixels),
        pixels=pixels,
    )


def _split(name: str, arrays: Mapping[str, np.ndarray], prepare: Callable[[Any], Any]) -> Split:
    # A copy: PyTorch has no read-only tensors.
    labels = torch.from_numpy(arrays[f"{name}_labels"].copy())
    return Split(inputs=arrays[f"{name}_images"], labels=labels, prepare=prepare)


DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "clients": 10,
        "rounds": 150,
        "local_steps": 1,
        "sample_rate": 0.1,
        "learning_rate": 1.0,
        "momentum": 0.9,
        "clip_norm": 0.5,
        "epsilon": 8.0,
        "delta": 1e-5,
        "rank": 8,
        "sparsity": 0.3,
        "partition": "iid",
    }
)

METHOD_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "rs": {"sparsity": 0.5},
        "probe": {"rank": 128, "sparsity": 0.0},
        "topk": {"learning_rate": 0.05},
        "powersgd": {"learning_rate": 0.05},
    }
)
"""Learning rates of the methods without privacy: the better of 0.05 and 0.2 on a tenth of 6,000 rows, held out.

60 rounds, seed 7.
"""

CIFAR10 = ImageSet(
    name="cifar10",
    folder="cifar10",
    subset="plain_text",
    hub_name="uoft-cs/cifar10",
    image_column="img",
    label_column="label",
    num_classes=10,
    shape=Shape(channels=3, side=32),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    augment=flip_crop,
    defaults=DEFAULTS,
    method_defaults=METHOD_DEFAULTS,
)
"""10 classes of objects, 50,000 and 10,000 images of 3x32x32 (Krizhevsky 2009)."""

CIFAR100: ImageSet = replace(
    CIFAR10,
    name="cifar100",
    folder="cifar100",
    subset="cifar100",
    hub_name="uoft-cs/cifar100",
    label_column="fine_label",
    num_classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)
"""100 classes of objects, 50,000 and 10,000 images of 3x32x32 (Krizhevsky 2009); the fine labels."""

SVHN: ImageSet = replace(
    CIFAR10,
    name="svhn",
    folder="svhn",
    subset="cropped_digits",
    hub_name="ufldl-stanford/svhn",
    image_column="image",
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    # Flips change the class: a mirrored 2 or 5 is no digit.
    augment=crop,
    defaults=MappingProxyType({**CIFAR10.defaults, "delta": 1e-6}),
)
"""House numbers, 73,257 and 26,032 images of 3x32x32 (Netzer et al. 2011); ``extra`` is not used."""

FASHION_MNIST: ImageSet = replace(
    CIFAR10,
    name="fashion-mnist",
    folder="fashion_mnist",
    subset="fashion_mnist",
    hub_name="zalando-datasets/fashion_mnist",
    image_column="image",
    shape=Shape(channels=1, side=28),
    mean=(0.2860,),
    std=(0.3530,),
)
"""Clothes, 60,000 and 10,000 images of 1x28x28 (Xiao et al. 2017). Flips keep the class."""

IMAGE_SETS: Mapping[str, ImageSet] = MappingProxyType(
    {image_set.name: image_set for image_set in (CIFAR10, CIFAR100, SVHN, FASHION_MNIST)}
)
"""By the name of the workload."""
