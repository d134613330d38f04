"""normalise=public: inputs become (x - mean) / deviation, with constants of the public test rows.

The constants come from no training row, so each input is still a function of its own row, and
nothing is charged.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.simulations.workloads.base import LoadedWorkload, Read
from fedlsg.simulations.workloads.base.public_inputs import image_draws
from fedlsg.simulations.workloads.base.split import Inputs, Split

NORMALISED_ROWS = 10_000
"""The constants are computed from at most this many rows of the test split."""
LEAST_DEVIATION = 1e-12
"""A column with a smaller deviation is constant up to rounding: it becomes 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Normalised:
    """The ``prepare`` of a normalised split: (x - mean) / deviation of its prepared inputs x.

    prepare: that of the split without normalisation.
    mean, deviation: of each column, or of each channel of images (B, c, h, w).
    """

    prepare: Callable[[Any], Inputs]
    mean: Float[Tensor, " columns"]
    deviation: Float[Tensor, " columns"]

    def __call__(self, rows: Any) -> Inputs:
        inputs = self.prepare(rows)
        assert isinstance(inputs, Tensor), "the constants are those of one tensor"
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        return (inputs - self.mean.reshape(shape)) / self.deviation.reshape(shape)


@torch.no_grad()
def normalise_inputs(workload: LoadedWorkload) -> LoadedWorkload:
    """The workload with inputs of mean 0 and deviation 1 over its public test rows.

    Raises ValueError for inputs that are not a floating-point tensor of shape (B, columns) or (B,
    channels, ...).
    """
    test = workload.test
    inputs, _ = test.batch(torch.linspace(0, len(test) - 1, min(NORMALISED_ROWS, len(test))).long())
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs.ndim < 2:
        form = "several inputs"
        if isinstance(inputs, Tensor):
            form = f"{inputs.dtype} {tuple(inputs.shape)}"
        raise ValueError(
            f"normalise=public: expected numbers of shape (B, columns) or images, got {form}: "
            "leave it out"
        )
    columns = inputs.double().transpose(0, 1).flatten(1)  # (columns, values)
    mean, deviation = columns.mean(1), columns.std(1, correction=0)
    deviation = torch.where(deviation > LEAST_DEVIATION, deviation, 1.0)
    constants = {"mean": mean.to(inputs.dtype), "deviation": deviation.to(inputs.dtype)}

    def change(_: str, split: Split) -> Split:
        return replace(split, prepare=Normalised(prepare=split.prepare, **constants))

    read, pixels, synthetic = workload.read, workload.pixels, workload.synthetic
    if pixels is not None:  # public images, drawn or named, are normalised, too
        pixels = replace(pixels, prepare=Normalised(prepare=pixels.prepare, **constants))
        synthetic = {**synthetic, **image_draws(pixels)}
    return replace(
        workload.with_splits(change),
        read=None if read is None else NormalisedRead(read=read, constants=constants),
        pixels=pixels,
        synthetic=synthetic,
        normalised={name: value.tolist() for name, value in constants.items()},
        encode=None,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalisedRead:
    """Reads a deployed client's own rows, and normalises them by the same public constants."""

    read: Read
    constants: dict[str, Tensor]

    def __call__(self, path: Path, cache: Path) -> Split:
        split = self.read(path, cache)
        return replace(split, prepare=Normalised(prepare=split.prepare, **self.constants))
