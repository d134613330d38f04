"""Image classification: published sets, and any set of the hub.

``imagenet`` reads folders of images; ``digits`` has the digits of scikit-learn.

cifar10, cifar100, svhn and fashion-mnist are read from the hub or a local mirror of the same
layout. Their channel statistics are published constants, not computed from the run's data. Preset
and learning rates were tuned on ``cifar10`` alone; the other data sets take them with the delta of
the papers.

hf-image: ``-c dataset=OWNER/NAME`` names a set; ``subset``, ``input_columns`` (one column),
``label_column`` and ``test_split`` choose what its description leaves open. Images must be squares
of one size; palettes, transparency, frames, and grey ones among colours are read as those of a
folder are, by ``image_background`` and ``image_frame``.
The labels must be a ``ClassLabel`` feature, which publishes the number of classes: it is never
counted in the examples, which are private.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fedlsg.simulations import models
from fedlsg.simulations.workloads.base import (
    IMAGES,
    LoadedWorkload,
    Options,
    Request,
    refuse_unused,
    silent,
)
from fedlsg.simulations.workloads.base.cache import cache_folder, digest_files, load_or_build
from fedlsg.simulations.workloads.base.public_inputs import Pixels, image_draws
from fedlsg.simulations.workloads.base.split import Augment, NoRows, Split, by_channel
from fedlsg.simulations.workloads.images.augment import PAD, crop, flip_crop
from fedlsg.simulations.workloads.rows import describe_data
from fedlsg.simulations.workloads.rows.decode import OwnRows, Shape, decode
from fedlsg.simulations.workloads.rows.hub import HubSet, find_set, set_of_files
from fedlsg.simulations.workloads.rows.image_contents import Taken


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """An image-classification data set of the hub, and its preset.

    name: of the workload.
    hub_name, subset: of the data set on the hub.
    image_column, label_column: names of its columns.
    num_classes: labels are 0 to num_classes - 1.
    shape: of every image; None takes the shape of the first one.
    mean, std: channel statistics of pixels in 0..1: public constants, never computed from the run's
        data.
    augment: random changes of training images that are larger than its padding; None without.
    defaults, method_defaults: see ``LoadedWorkload``.
    more: splits whose rows follow those of ``train``.
    """

    name: str
    hub_name: str
    subset: str = ""
    image_column: str
    label_column: str
    num_classes: int
    shape: Shape | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None
    defaults: Mapping[str, object]
    method_defaults: Mapping[str, Mapping[str, object]]
    more: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One line for a list."""
        splits = f", train and {' and '.join(self.more)} together" if self.more else ""
        return f"Images of {self.shape}, {self.num_classes} classes ({self.hub_name}{splits})."

    def load(self, request: Request) -> LoadedWorkload:
        """Load the workload; inputs are (B, channels, side, side). The first load decodes and takes
        some seconds.

        Raises:
            FileNotFoundError, ModuleNotFoundError, ConnectionError: as ``find_set``.
            ValueError: an unreadable shard, other columns, a label or image that does not fit the
                data set, an option that images do not use.
            OSError: the cache folder cannot be written.
        """
        refuse_unused(request.options, workload=self.name, used=IMAGES)
        place = Options(dataset=self.hub_name, subset=self.subset)
        splits = splits_of("test", request)
        if "train" in splits:
            splits |= {split: split for split in self.more}
        image_set = find_set(place, request.data_dir, splits, published=True)
        parts = dict(image_set.splits)
        if "train" in parts:
            parts["train"] = [*parts["train"], *chain(*map(parts.pop, self.more))]
        return self.of(replace(image_set, splits=parts), request)

    def of(self, found: HubSet, request: Request) -> LoadedWorkload:
        """The workload of a set that was found, with every model that fits images of its shape.

        Inputs are float32, ``(pixel / 255 - mean) / std`` in each channel.
        """
        columns = (self.image_column, self.label_column)
        taken = Taken.by(request.options)
        salt = (
            f"uint8 nchw, version 4: {self.name} {columns} {self.num_classes} {taken} "
            f"{found.digest(columns)}"
        )
        key = f"{self.name}-{hashlib.sha256(salt.encode()).hexdigest()[:32]}"
        read = partial(
            decode,
            columns=columns,
            num_classes=self.num_classes,
            mixed=self.shape is None,
            taken=taken,
        )
        build = partial(
            read, self.hub_name, found.splits, shape=self.shape, progress=request.progress
        )
        arrays = load_or_build(
            cache_folder(request.cache_dir), key, build, progress=request.progress
        )
        prepare = by_channel(self.mean, self.std)
        test = _split("test", arrays, prepare)
        _, channels, side, _ = arrays["test_images"].shape
        shape = Shape(channels=channels, side=side)

        def own_rows(paths: Sequence[Path], cache: Path) -> Split:
            """A client's own images of parquet files, decoded into its cache."""
            salt = f"own {self.name} {' '.join(columns)} {shape} {taken}, version 2"
            splits = set_of_files({"train": paths}).splits
            build = partial(read, self.name, splits, shape=shape, progress=silent)
            key = f"own-{digest_files(paths, salt=salt)}"
            return _split("train", load_or_build(cache, key, build, progress=silent), prepare)

        pixels = Pixels(form=arrays["test_images"].shape[1:], prepare=prepare)
        return LoadedWorkload(
            name=self.name,
            train=_split("train", arrays, prepare) if "train_images" in arrays else NoRows(),
            test=test,
            num_classes=self.num_classes,
            models=models.vision(channels, side, self.num_classes),
            augment=self.augment if side > PAD else None,
            defaults=self.defaults,
            method_defaults=self.method_defaults,
            read=OwnRows(name=self.name, test=test, parquet=own_rows, hub_name=found.hub_name),
            synthetic=image_draws(pixels),
            pixels=pixels,
            places=() if found.folder is None else (found.folder,),
        )


def splits_of(test: str, request: Request) -> dict[str, str]:
    """The set's own names of the splits that are read, by "train" and "test".

    A server whose clients hold their own rows reads no training rows.
    """
    return {"test": test} if request.public_only else {"train": "train", "test": test}


def _split(name: str, arrays: Mapping[str, np.ndarray], prepare: Callable[[Any], Any]) -> Split:
    """The split of cached arrays."""
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
"""The preset of all image sets."""

METHOD_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "rs": {"sparsity": 0.5},
        "probe": {"rank": 128, "sparsity": 0.0},
        "topk": {"learning_rate": 0.05},
        "powersgd": {"learning_rate": 0.05},
    }
)
"""Settings of single methods.

The learning rates of the methods without privacy are the better of 0.05 and 0.2, by the accuracy on
a held-out tenth of 6,000 rows of cifar10, after 60 rounds, with seed 7.
"""

CIFAR10 = ImageSet(
    name="cifar10",
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
    subset="cifar100",
    hub_name="uoft-cs/cifar100",
    label_column="fine_label",
    num_classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)
"""100 classes of objects (fine labels), 50,000 and 10,000 images of 3x32x32 (Krizhevsky 2009)."""

SVHN: ImageSet = replace(
    CIFAR10,
    name="svhn",
    subset="cropped_digits",
    hub_name="ufldl-stanford/svhn",
    image_column="image",
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    # Flips change the class: a mirrored 2 or 5 is no digit.
    augment=crop,
    defaults=MappingProxyType({**CIFAR10.defaults, "delta": 1e-6}),
)
"""House numbers, 73,257 and 26,032 images of 3x32x32 (Netzer et al. 2011), without ``extra``."""

SVHN_EXTRA: ImageSet = replace(SVHN, name="svhn-extra", more=("extra",))
"""``SVHN`` with the 531,131 images of ``extra``: 604,388 to train on."""

FASHION_MNIST: ImageSet = replace(
    CIFAR10,
    name="fashion-mnist",
    subset="fashion_mnist",
    hub_name="zalando-datasets/fashion_mnist",
    image_column="image",
    shape=Shape(channels=1, side=28),
    mean=(0.2860,),
    std=(0.3530,),
)
"""Clothes, 60,000 and 10,000 images of 1x28x28 (Xiao et al. 2017). Flips keep the class."""

IMAGE_SETS: Mapping[str, ImageSet] = MappingProxyType(
    {
        image_set.name: image_set
        for image_set in (CIFAR10, CIFAR100, SVHN, SVHN_EXTRA, FASHION_MNIST)
    }
)
"""The published sets by the name of their workload."""


Features = Mapping[str, Mapping[str, Any]]
"""Columns of a data set by name, as the ``datasets`` library describes them."""


class HubImages:
    """Any set of the hub, with the preset of ``cifar10``; pixels are scaled from 0..1 to -1..1."""

    summary = (
        "Any image-classification data set of the Hugging Face hub, by its name and its columns."
    )
    defaults, method_defaults = DEFAULTS, METHOD_DEFAULTS

    def load(self, request: Request) -> LoadedWorkload:
        """Load the workload; inputs are (B, channels, side, side) in -1..1. The first load decodes.

        ``augment=flip-crop`` mirrors images: leave it out where a mirrored image is of another
        class.
        Raises:
            ValueError: no dataset, unknown columns or splits (with those there are), images of
                several sizes, a label out of range, damaged files, an option that images do not
                use.
            FileNotFoundError: not in the local mirror.
            ConnectionError: the hub cannot be reached or does not have it.
            ModuleNotFoundError: neither a local mirror nor the ``hub`` extra.
            OSError: the cache folder cannot be written.
        """
        options = request.options
        used = ("dataset", "subset", "input_columns", "label_column", "test_split", *IMAGES)
        refuse_unused(options, workload="hf-image", used=used)
        if options.dataset is None:
            raise ValueError("workload hf-image needs a data set of the hub: -c dataset=OWNER/NAME")
        image_set = find_set(
            options, request.data_dir, splits_of(options.test_split or "test", request)
        )
        features = image_set.first_part.features
        image, label, classes = choose_columns(features, options, image_set.place)
        loaded = ImageSet(
            name="hf-image",
            hub_name=options.dataset,
            image_column=image,
            label_column=label,
            num_classes=classes,
            shape=None,
            mean=(0.5,),
            std=(0.5,),
            augment=flip_crop,
            defaults=DEFAULTS,
            method_defaults=METHOD_DEFAULTS,
        ).of(image_set, request)
        data = {
            "inputs": [image],
            "targets": [label],
            "classes": list(map(str, features[label].get("names") or ())),
            **Taken.by(options).facts,
        }
        return replace(loaded, data=data, said=describe_data(image_set.sizes, data))


def choose_columns(features: Features, options: Options, place: str) -> tuple[str, str, int]:
    """The image column and the label column of a data set, and the number of classes.

    If the options name none, they are the only image column and the only ClassLabel column.
    Raises ValueError, listing the existing columns, if there is not exactly one, or if a named
    column is missing or of another kind.
    """
    columns = ", ".join(f"{name} ({_kind(feature)})" for name, feature in features.items())
    there = f"{place} has {columns}"
    image = _choose(features, options.input_columns, "input_columns", "Image", there)
    label = _choose(features, options.label_column, "label_column", "ClassLabel", there)
    names = features[label].get("names") or ()
    count = len(names) or int(features[label].get("num_classes") or 0)
    if count < 2:
        raise ValueError(
            f"expected two classes or more in the ClassLabel column {label} of {place}, got {count}"
        )
    return image, label, count


def _choose(features: Features, name: str | None, setting: str, kind: str, there: str) -> str:
    """The named column, or the only one of a kind; ``there``: the columns, for messages."""
    fitting = [column for column, feature in features.items() if _kind(feature) == kind]
    if name is None:
        if len(fitting) != 1:
            raise ValueError(f"expected one {kind} column, or its name in {setting}; {there}")
        return fitting[0]
    if name not in features:
        raise ValueError(f"no column {name!r} ({setting}; one name); {there}")
    if name not in fitting:
        cast = (
            "; cast it (datasets: Dataset.cast_column, ClassLabel(names=...)) so that it declares "
            "its classes"
        )
        raise ValueError(
            f"expected {setting}={name!r} to be a column of {kind}, got {_kind(features[name])}"
            f"{cast if kind == 'ClassLabel' else ''}; {there}"
        )
    return name


def _kind(feature: Any) -> str:
    """A feature's type in one word; features of plain values by their dtype."""
    if not isinstance(feature, Mapping):
        return "list"
    kind = str(feature.get("_type", "struct"))
    return str(feature["dtype"]) if kind == "Value" and "dtype" in feature else kind
