"""hf-image: any image-classification data set of the Hugging Face hub, by its name and its columns.

``-c dataset=OWNER/NAME`` names it; ``subset``, ``input_columns`` (one column), ``label_column`` and ``test_split``
choose what its description leaves open. It is read from a local mirror (see ``find_folder``), or without one through
``datasets.load_dataset``. All images must have the same size and mode. The labels must be a ``ClassLabel`` feature,
which publishes the number of classes: it is never counted in the examples, which are private.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from simulations.workloads.base.cache import cache_folder, load_or_build
from simulations.workloads.base.workload import LoadedWorkload, Options, Request, refuse_unused
from simulations.workloads.images.augment import PAD, flip_crop
from simulations.workloads.images.image_sets import CIFAR10, ImageSet, image_workload
from simulations.workloads.rows.decode import Shape, decode
from simulations.workloads.rows.form import describe_data
from simulations.workloads.rows.hub import find_set

USED = ("dataset", "subset", "input_columns", "label_column", "test_split")
DEFAULTS, METHOD_DEFAULTS = CIFAR10.defaults, CIFAR10.method_defaults

# Pixels of any data set go from 0..1 to -1..1. These are constants: statistics of the images would be private.
MEAN = STD = 0.5

Features = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that are read, and the number of classes that the data set declares."""

    image: str
    label: str
    num_classes: int


def load(request: Request) -> LoadedWorkload:
    """Load the workload; inputs are (B, channels, side, side) in -1..1. The first load decodes.

    ``augment=flip-crop`` mirrors images: leave it out where a mirrored image is of another class.
    Raises:
        ValueError: no dataset, unknown columns or splits (with those there are), images of several sizes, a label out
            of range, damaged files, an option that images do not use.
        FileNotFoundError: not in the local mirror. ConnectionError: the hub cannot be reached or does not have it.
        ModuleNotFoundError: neither a local mirror nor the ``hub`` extra.
        OSError: the cache folder cannot be written.
    """
    options, progress = request.options, request.progress
    refuse_unused(options, workload="hf-image", used=USED)
    if options.dataset is None:
        raise ValueError("workload hf-image needs a data set of the hub: -c dataset=OWNER/NAME")
    test_split = options.test_split or "test"
    splits = {"test": test_split} if request.public_only else {"train": "train", "test": test_split}
    found = find_set(options, request.data_dir, splits)
    columns = choose_columns(found.first.features, options, found.place)
    read = (columns.image, columns.label)
    key = hashlib.sha256(f"uint8 nchw, version 2: {columns}, {test_split} {found.digest(read)}".encode()).hexdigest()[
        :32
    ]
    build = partial(decode, options.dataset, found.splits, read, num_classes=columns.num_classes, progress=progress)
    arrays = load_or_build(cache_folder(request.cache_dir), f"hf-image-{key}", build, progress=progress)
    _, channels, side, _ = arrays["test_images"].shape
    images = ImageSet(
        name="hf-image",
        hub_name=options.dataset,
        image_column=columns.image,
        label_column=columns.label,
        num_classes=columns.num_classes,
        shape=Shape(channels=channels, side=side),
        mean=(MEAN,) * channels,
        std=(STD,) * channels,
        augment=flip_crop if side > PAD else None,
        defaults=DEFAULTS,
        method_defaults=METHOD_DEFAULTS,
    )
    names = found.first.features[columns.label].get("names") or ()
    data = {"inputs": [columns.image], "targets": [columns.label], "classes": list(map(str, names))}
    sizes = {split: sum(part.size for part in parts) for split, parts in found.splits.items()}
    return replace(image_workload(images, arrays), data=data, said=describe_data(sizes, data))


def choose_columns(features: Features, options: Options, place: str) -> Columns:
    """The image and the label column among the features of a data set, written as the ``datasets`` library stores them.

    If the options name none, take the only image column and the only ClassLabel column. Raises ValueError, listing the
    existing columns, if there is not exactly one, or if a named column is missing or of another kind.
    """
    there = f"{place} has {', '.join(f'{name} ({_kind(feature)})' for name, feature in features.items())}"
    image = _choose(features, options.input_columns, "input_columns", "Image", there)
    label = _choose(features, options.label_column, "label_column", "ClassLabel", there)
    names = features[label].get("names") or ()
    count = len(names) or int(features[label].get("num_classes") or 0)
    if count < 2:
        raise ValueError(f"expected two classes or more in the ClassLabel column {label} of {place}, got {count}")
    return Columns(image=image, label=label, num_classes=count)


def _choose(features: Features, name: str | None, setting: str, kind: str, there: str) -> str:
    fitting = [column for column, feature in features.items() if _kind(feature) == kind]
    if name is None:
        if len(fitting) != 1:
            raise ValueError(f"expected one {kind} column, or its name in {setting}; {there}")
        return fitting[0]
    if name not in features:
        raise ValueError(f"no column {name!r} ({setting}; one name); {there}")
    if name not in fitting:
        cast = "; cast it (datasets: Dataset.cast_column, ClassLabel(names=...)) so that it declares its classes"
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
