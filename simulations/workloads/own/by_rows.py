"""Check on public rows that a transform of a user's own makes each row of the model's inputs from that row alone.

The clip bounds what one example adds only if no other example is in its inputs. Standardising by the mean of a batch,
or fitting a vectoriser inside of the transform, breaks that, and the check of the model cannot see it: its rows are
transformed already. Draws of torch's, numpy's and Python's own generators are repeated. A transform whose draws no seed
repeats is not checked.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

PROBES = 7
TOLERANCE = 1e-4
"""Of the largest number of a row: what rounding may move."""
FIX = (
    "make every row from itself alone. Statistics are constants, fitted before the run on public rows; texts are "
    'padded to one length (padding="max_length")'
)

Make = Callable[[Sequence[int]], Any]
"""Rows by number -> what the transform makes of them, a tensor or a dict of tensors."""


def check_by_rows(make: Make, count: int) -> None:
    """Raise ValueError if the transform of a row depends on other rows. ``count``: rows that there are, all public."""
    rows = torch.linspace(0, count - 1, min(PROBES, count)).long().tolist()
    together = _made(make, rows)
    if len(rows) < 2 or not _same(together, _made(make, rows)):
        return
    drawn = not _same(together, _made(make, rows, seed=1))
    for place in (0, len(rows) - 1):
        own = {name: t[place : place + 1] for name, t in together.items()}
        with_itself = _made(make, [rows[place]] * len(rows))
        alone = own if drawn else _made(make, [rows[place]])
        if not (_same(own, {name: t[place : place + 1] for name, t in with_itself.items()}) and _same(own, alone)):
            raise ValueError(f"transform mixes rows: next to others a row becomes another one than by itself; {FIX}")


def _made(make: Make, rows: Sequence[int], seed: int = 0) -> dict[str, Tensor]:
    numpy, python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            made = make(rows)
    finally:
        np.random.set_state(numpy)
        random.setstate(python)
    named = {name: torch.as_tensor(value) for name, value in (made if hasattr(made, "items") else {"": made}).items()}
    for t in named.values():
        if t.ndim == 0 or len(t) != len(rows):
            raise ValueError(f"transform gave shape {tuple(t.shape)} for {len(rows)} rows: give one row an example")
    return named


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(_close(t, b[name]) for name, t in a.items())


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or not a.is_floating_point():
        return torch.equal(a, b)
    largest = float(a.nan_to_num(0, 0, 0).abs().max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=0, atol=TOLERANCE * largest, equal_nan=True)
