"""A client's own training rows in the form of a workload: from a .npz file, or from parquet files.

.npz       ``inputs`` (N, ...) in the workload's stored form (digits: uint8 (N, 1, 8, 8); images: uint8 (N, channels,
           side, side)), ``labels`` (N,) integers
.parquet   the columns of the workload itself: image or texts, and label

Decoded or tokenised rows are kept in a cache of the client's own: they are as private as the rows.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from simulations.workloads.base.mirror import find_splits
from simulations.workloads.base.workload import LoadedWorkload, Split
from simulations.workloads.rows.files import read_npz


def read(path: Path, workload: LoadedWorkload, cache: Path) -> Split:
    """Rows of a file, or of a folder with the shards ``train-0000i-of-0000N.parquet``.

    Raises ValueError or OSError for any other file, or for rows that are not in the workload's form.
    """
    if path.is_dir():
        return _parquet(find_splits(path, ("train",))["train"], workload, cache)
    if path.suffix.lower() == ".parquet":
        return _parquet([path], workload, cache)
    if path.suffix.lower() != ".npz":
        raise ValueError(f"expected {path} to be a .npz or .parquet file, or a folder of parquet shards")
    return _arrays(path, workload)


def _parquet(paths: Sequence[Path], workload: LoadedWorkload, cache: Path) -> Split:
    if workload.parquet is None:
        raise ValueError(f"workload {workload.name} reads .npz files, not {paths[0]}")
    return workload.parquet(paths, cache)


def _arrays(path: Path, workload: LoadedWorkload) -> Split:
    one = workload.test.inputs[np.array([0])]
    if not isinstance(one, np.ndarray):
        raise ValueError(f"workload {workload.name} reads .parquet files, not {path}")
    inputs, labels = read_npz(path)
    if inputs.dtype != one.dtype or inputs.shape[1:] != one.shape[1:]:
        raise ValueError(
            f"expected inputs of {one.dtype} (N, {', '.join(map(str, one.shape[1:]))}) in {path}, got {inputs.dtype} "
            f"{inputs.shape}"
        )
    if labels.dtype.kind not in "iu" or labels.shape != (len(inputs),):
        raise ValueError(f"expected {len(inputs)} integer labels in {path}, got {labels.dtype} {labels.shape}")
    return Split(inputs=inputs, labels=torch.from_numpy(labels.astype(np.int64)), prepare=workload.test.prepare)
