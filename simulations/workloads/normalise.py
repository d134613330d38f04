"""``normalise=public``: inputs less their mean, over their deviation, both of the public test rows.

The constants come from no training row, so each input is still a function of its own row, and nothing is charged.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from simulations.workloads.base.split import Inputs, NoRows, Split
from simulations.workloads.base.workload import LoadedWorkload

ROWS = 10_000
"""Rows of the test split that the constants are computed from, at most."""
LEAST = 1e-12
"""A deviation below it is that of a constant, which stays 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Normalised:
    """``prepare`` of a split, then (x - mean) / deviation of each column, or of each channel of images (B, c, h, w)."""

    prepare: Callable[[Any], Inputs]
    mean: Float[Tensor, " columns"]
    deviation: Float[Tensor, " columns"]

    def __call__(self, rows: Any) -> Inputs:
        inputs = self.prepare(rows)
        assert isinstance(inputs, Tensor), "the constants are those of one tensor"
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        return (inputs - self.mean.reshape(shape)) / self.deviation.reshape(shape)


@torch.no_grad()
def normalised(workload: LoadedWorkload) -> LoadedWorkload:
    """The workload with inputs of mean 0 and deviation 1 over its public test rows.

    Raises ValueError for inputs that are no floating-point tensor of shape (B, columns) or (B, channels, ...).
    """
    test = workload.test
    inputs, _ = test.batch(torch.linspace(0, len(test) - 1, min(ROWS, len(test))).long())
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs.ndim < 2:
        found = "several inputs" if isinstance(inputs, dict) else f"{inputs.dtype} {tuple(inputs.shape)}"
        raise ValueError(
            f"normalise=public: expected numbers of shape (B, columns) or images, got {found}: leave it out"
        )
    columns = inputs.double().transpose(0, 1).flatten(1)
    mean, deviation = columns.mean(1), columns.std(1, correction=0)
    deviation = torch.where(deviation > LEAST, deviation, 1.0)
    constants = {"mean": mean.to(inputs.dtype), "deviation": deviation.to(inputs.dtype)}

    def wrap(split: Split) -> Split:
        return (
            split
            if isinstance(split, NoRows)
            else replace(split, prepare=Normalised(prepare=split.prepare, **constants))
        )

    read = workload.read
    return replace(
        workload,
        train=wrap(workload.train),
        test=wrap(test),
        other_tests={name: wrap(split) for name, split in workload.other_tests.items()},
        read=None if read is None else Read(read=read, constants=constants),
        normalised={name: value.tolist() for name, value in constants.items()},
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """Reads a deployed client's own rows, and normalises them by the same public constants."""

    read: Callable[[Path, Path], Split]
    constants: dict[str, Tensor]

    def __call__(self, path: Path, cache: Path) -> Split:
        split = self.read(path, cache)
        return replace(split, prepare=Normalised(prepare=split.prepare, **self.constants))
