"""Restrict a workload to fewer training rows, or hold a share of them out for evaluation.

Fixed public permutations choose the rows. They depend on the number of rows only: two runs with the same setting see
the same rows, whatever their seed.
"""

from dataclasses import replace

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.randomness import public_generator
from simulations.workloads.base.workload import Options, Split, Workload


def restrict(workload: Workload, options: Options) -> Workload:
    """The workload with ``options.train_rows`` rows to train on, of which ``options.holdout`` are evaluated instead.

    ``train_rows`` comes first: a share h of those rows is held out, and the test splits are replaced by it.
    A held-out accuracy is computed from private examples without noise: choose hyperparameters with it in simulation,
    on data that you may look at, because no epsilon covers it.
    Raises ValueError for more rows than there are, or a share that leaves one side empty.
    """
    if options.train_rows is not None:
        workload = replace(workload, train=fewer_rows(workload, options.train_rows))
    if options.holdout is not None:
        train, held_out = hold_out(workload, options.holdout)
        workload = replace(workload, train=train, test=held_out, test_name="holdout", other_tests={})
    return workload


def check_public_only(options: Options) -> None:
    """Raise ValueError for a setting that chooses among training rows: none is loaded."""
    for name in ("train_rows", "holdout"):
        if getattr(options, name) is not None:
            raise ValueError(f"{name} chooses among training rows, and clients hold data of their own: leave it out")


def fewer_rows(workload: Workload, count: int) -> Split:
    """The first ``count`` rows of a fixed public permutation of the training split, in their stored order."""
    size = len(workload.train)
    if not 1 <= count <= size:
        raise ValueError(f"expected 1 <= train_rows={count} <= {size}, the training rows of {workload.name}")
    return workload.train.pick(_permutation("train rows", size)[:count].sort().values)


def hold_out(workload: Workload, share: float) -> tuple[Split, Split]:
    """The training split without a share of its rows, and that share: round(h n) rows, disjoint, in stored order."""
    size = len(workload.train)
    count = round(share * size) if 0 < share < 1 else 0
    if not 0 < count < size:
        raise ValueError(
            f"expected 0 < holdout={share} < 1, with one row at least on either side of the {size} training rows "
            f"of {workload.name}"
        )
    rows = _permutation("holdout", size)
    return workload.train.pick(rows[count:].sort().values), workload.train.pick(rows[:count].sort().values)


def _permutation(purpose: str, size: int) -> Int64[Tensor, " n"]:
    return torch.randperm(size, generator=public_generator(0, "workload", purpose))
