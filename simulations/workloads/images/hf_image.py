"""hf-image: any image-classification data set of the Hugging Face hub, by its name and its columns.

``-c dataset=OWNER/NAME`` names it; ``subset``, ``input_columns`` (one column), ``label_column`` and ``test_split``
choose what its description leaves open. It is read from a local mirror (see ``find_folder``), or without one through
``datasets.load_dataset``. All images must have the same size and mode. The labels must be a ``ClassLabel`` feature,
which publishes the number of classes: it is never counted in the examples, which are private.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simulations.workloads.base.cache import cache_folder, digest_files, load_or_build
from simulations.workloads.base.mirror import find_folder, find_splits, load_from_hub, open_parquet
from simulations.workloads.base.workload import LoadedWorkload, Options, Request, refuse_unused
from simulations.workloads.images.augment import PAD, flip_crop
from simulations.workloads.images.decode import ROWS_AT_ONCE, Rows, Shape, Source, decode, is_image, parquet_source
from simulations.workloads.images.image_sets import CIFAR10, ImageSet, image_workload

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


Found = tuple[Columns, Mapping[str, Sequence[Source]], str]
"""The sources of a data set: columns, encoded images by split, and a key that depends on the whole content."""


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
    folder = find_folder(options.dataset, options.subset, data_dir=request.data_dir)
    splits = {"test": test_split} if request.public_only else {"train": "train", "test": test_split}
    columns, sources, key = _on_hub(options, splits) if folder is None else _in_mirror(folder, options, splits)
    build = partial(decode, options.dataset, sources, num_classes=columns.num_classes, progress=progress)
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
    return image_workload(images, arrays)


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


def _in_mirror(folder: Path, options: Options, splits: Mapping[str, str]) -> Found:
    """``splits``: the data set's own names of the splits, by ours."""
    shards = find_splits(folder, tuple(splits.values()))
    first = next(iter(shards.values()))[0]
    columns = choose_columns(_features(first), options, str(folder))
    sources = {
        name: [parquet_source(path, columns.image, columns.label) for path in shards[split]]
        for name, split in splits.items()
    }
    files = [file for paths in shards.values() for file in paths]
    return columns, sources, digest_files(files, salt=_salt(columns, splits["test"]))


def _features(path: Path) -> Features:
    """Features as the shard's own metadata declares them; columns without a declaration by their arrow type."""
    schema = open_parquet(path).schema_arrow
    try:
        declared = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        declared = {}
    plain = {
        field.name: {"_type": "Image"} if is_image(field.type) else {"_type": "Value", "dtype": str(field.type)}
        for field in schema
    }
    return {name: declared.get(name, feature) for name, feature in plain.items()}


def _on_hub(options: Options, splits: Mapping[str, str]) -> Found:
    """The data set through ``datasets.load_dataset``, which keeps its own copy of what it downloads."""
    loaded = load_from_hub(str(options.dataset), options.subset, tuple(splits.values()))
    from datasets import Image

    columns = choose_columns(loaded[next(iter(splits.values()))].features.to_dict(), options, str(options.dataset))
    stored = {
        name: loaded[split]
        .select_columns([columns.image, columns.label])
        .cast_column(columns.image, Image(decode=False))
        for name, split in splits.items()
    }
    digest = hashlib.sha256(_salt(columns, splits["test"]).encode())
    sources = {}
    for name, split in stored.items():
        batches = partial(_hub_batches, split, columns)
        sources[name] = [Source(place=f"{options.dataset}, {name} split", size=len(split), batches=batches)]
        digest.update(f"\n{name} {len(split)}\n".encode())
        for images, labels in batches():
            for image in images:
                digest.update(hashlib.sha256(image or b"").digest())
            digest.update(labels.tobytes())
    return columns, sources, digest.hexdigest()[:32]


def _hub_batches(split: Any, columns: Columns) -> Iterator[Rows]:
    """Encoded images (of those stored by path, the file) and labels, some rows at a time."""
    for start in range(0, len(split), ROWS_AT_ONCE):
        rows = split[start : start + ROWS_AT_ONCE]
        images = [_content(image) for image in rows[columns.image]]
        yield images, np.array([-1 if label is None else label for label in rows[columns.label]], dtype=np.int64)


def _content(image: Mapping[str, Any] | None) -> bytes | None:
    if image is None or image["bytes"] is not None or not image["path"]:
        return None if image is None else image["bytes"]
    file = Path(image["path"])
    return file.read_bytes() if file.is_file() else None


def _salt(columns: Columns, test_split: str) -> str:
    return f"hf-image uint8 nchw, version 1: {columns}, {test_split}"
