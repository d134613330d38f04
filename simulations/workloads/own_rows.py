"""A client's own training rows in the form of a workload: from a .npz file, or from parquet files.

.npz       ``inputs`` (N, ...) in the workload's stored form (digits: uint8 (N, 1, 8, 8); images: uint8 (N, channels,
           side, side)), ``labels`` (N,) integers
.parquet   the columns of the workload itself: its image or its texts, and its label

Decoded or tokenised rows are kept in a cache of the client's own: they are as private as the rows.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simulations.workloads import tokens
from simulations.workloads.cache import digest_files, load_or_build
from simulations.workloads.images import Shape, decode, parquet_source
from simulations.workloads.mirror import find_splits
from simulations.workloads.texts import Columns, check_labels, read_parquet
from simulations.workloads.workload import Split, Workload, silent

Parquet = Callable[[Sequence[Path], Path], Split]
"""Reads parquet files; what it builds of them goes to a cache folder."""


def read(path: Path, workload: Workload, cache: Path) -> Split:
    """Rows of a file, or of a folder with the shards ``train-0000i-of-0000N.parquet``.

    Raises ValueError or OSError for any other file, or for rows that are not in the workload's form.
    """
    if path.is_dir():
        return _parquet(find_splits(path, ("train",))["train"], workload, cache)
    if path.suffix == ".parquet":
        return _parquet([path], workload, cache)
    if path.suffix != ".npz":
        raise ValueError(f"expected {path} to be a .npz or .parquet file, or a folder of parquet shards")
    return _arrays(path, workload)


def _parquet(paths: Sequence[Path], workload: Workload, cache: Path) -> Split:
    if workload.parquet is None:
        raise ValueError(f"workload {workload.name} reads .npz files, not {paths[0]}")
    return workload.parquet(paths, cache)


def _arrays(path: Path, workload: Workload) -> Split:
    one = workload.test.inputs[np.array([0])]
    if not isinstance(one, np.ndarray):
        raise ValueError(f"workload {workload.name} reads .parquet files, not {path}")
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        inputs, labels = file["inputs"], file["labels"]
    if inputs.dtype != one.dtype or inputs.shape[1:] != one.shape[1:]:
        raise ValueError(
            f"expected inputs of {one.dtype} (N, {', '.join(map(str, one.shape[1:]))}) in {path}, got {inputs.dtype} "
            f"{inputs.shape}"
        )
    if labels.dtype.kind not in "iu" or labels.shape != (len(inputs),):
        raise ValueError(f"expected {len(inputs)} integer labels in {path}, got {labels.dtype} {labels.shape}")
    return Split(inputs=inputs, labels=torch.from_numpy(labels.astype(np.int64)), prepare=workload.test.prepare)


def image_rows(
    name: str, image_column: str, label_column: str, num_classes: int, shape: Shape, prepare: Callable[[Any], Any]
) -> Parquet:
    """A reader of encoded images of one shape."""

    def rows(paths: Sequence[Path], cache: Path) -> Split:
        def build() -> dict[str, np.ndarray]:
            sources = {"train": [parquet_source(path, image_column, label_column) for path in paths]}
            return decode(name, sources, num_classes=num_classes, shape=shape, progress=silent)

        key = digest_files(paths, salt=f"own {name} {image_column} {label_column} {shape}, version 1")
        arrays = load_or_build(cache, f"own-{key}", build, progress=silent)
        labels = torch.from_numpy(arrays["train_labels"].copy())
        return Split(inputs=arrays["train_images"], labels=labels, prepare=prepare)

    return rows


def text_rows(name: str, columns: Columns, num_classes: int, tokenizer: Any, form: str, max_length: int) -> Parquet:
    """A reader of texts, tokenised for one model. ``form``: the digest of the tokenizer."""

    def rows(paths: Sequence[Path], cache: Path) -> Split:
        def build() -> dict[str, np.ndarray]:
            texts = read_parquet(paths, columns)
            check_labels(texts.labels, num_classes, split="train", name=name)
            return tokens.tokenise("train", texts, tokenizer, max_length=max_length, progress=silent)

        key = digest_files(paths, salt=f"own {tokens.FORMAT} {form} {max_length} {columns.names}")
        arrays = load_or_build(cache, f"own-{key}", build, progress=silent)
        return tokens.as_split("train", arrays, tokenizer, max_length=max_length)

    return rows
