"""Check that a batch function makes each example from itself: its rows alone, and in batches of others.

A batch function of the user reads private rows, in the process of their owner. It runs here before anything is charged,
on public positions; nothing of its rows leaves but a refusal, which names a part and a column and no value.

Without random numbers every row must be the same alone, and at every place of every batch (``row_differs``). With
random numbers from the generators of torch, python or numpy, which a step seeds in secret, a row has other draws at
another place. Then it must be the same at the same place of a batch of the same size, under the same seed, whoever else
is in the batch. Data sets without ``__getitems__`` make one item at a time: these must be the same before and after
others.

What it cannot find:
    - items that mix rows inside a Dataset: windows over neighbours, mixup with another row, a scaler that was fitted on
      all data. Each item must be made from one person's row alone;
    - mixing on a condition that no position here meets: among positions that are not tried, in a batch that is
      larger than ``LARGEST``, at the hundredth call, by a coin that is rare;
    - examples that are equal to each other wherever they are tried, one outlier apart that is not tried;
    - an effect of the number of examples alone, in a function that draws random numbers as well;
    - a state that grows with the examples, such as a vocabulary in the order of their appearance;
    - mixing below the tolerance of ``row_differs``.
It refuses, although nothing is mixed: random numbers from a generator of the user's own, and draws whose number depends
on the examples in a function that makes several examples at once.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.gradients.independence.same_rows import row_differs
from fedlsg.randomness import own_draws, seed_draws
from fedlsg.tensors import spaced
from fedlsg.training import Batch
from fedlsg.user_code.digest import filled_cells
from strategies.own_loop.user_inputs import Items, Stored, guarded, named

ALONE = 8
"""Examples that are compared with themselves alone."""
SPREAD = 64
"""Positions from all over the data among which they are."""
SEEDS = 16
"""Seeds that are tried for a function that draws random numbers."""
LARGEST = 512
"""Examples of the largest batch that is tried."""
FIX = (
    "make every row from its own example alone, in the order of the positions, without a mean, maximum, sort or "
    "shuffle of the batch"
)
OWN_STATE = (
    "in an earlier call with the same random numbers: it has a memory, or a random generator of its own; keep no "
    "state, and draw from the global generator of torch, python or numpy, which a step seeds in secret"
)


@dataclass(frozen=True, eq=False)
class Rows:
    """One call: tensors by name, and the states of the generators before and after it."""

    positions: tuple[int, ...]
    parts: Mapping[str, Tensor]
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]

    @property
    def drew(self) -> bool:
        """Whether it drew random numbers."""
        return self.before != self.after

    def row(self, name: str, position: int) -> Tensor:
        return self.parts[name][self.positions.index(position)]


def check_batches(batch: Batch, num_examples: int, device: str) -> None:
    """Raise ValueError if what ``batch`` makes of an example depends on the other examples of its batch.

    See the module docstring. All generators are left as they were.
    """
    spread = spaced(num_examples, SPREAD).tolist()
    chosen = [spread[place] for place in spaced(len(spread), ALONE).tolist()]
    calls = Calls(guarded(batch), device)
    alone = {position: calls([position]) for position in chosen}
    _check_positions(calls, chosen[:: max(1, len(chosen) // 4)])
    by_item = isinstance(batch, Items) and not batch.at_once
    together = [calls(positions) for positions in ([spread] if by_item else _batches(spread, chosen, num_examples))]
    for position in chosen:
        calls.compare([alone[position]], calls([position]), OWN_STATE)
    again = calls(chosen)
    calls.compare([calls(chosen)], again, OWN_STATE)
    if by_item:
        return
    drew = any(rows.drew for rows in (*together, *alone.values()))
    try:
        for rows in together:
            calls.compare([alone[p] for p in rows.positions if p in alone], rows, f"alone; {FIX}")
    except ValueError:
        if not drew:
            raise
        _check_seeds(calls, chosen, again)
    if drew:  # after equal rows, too: with a coin for the whole batch, other draws may mix
        _check_draws(calls, spread, chosen)


def _check_positions(calls: "Calls", chosen: Sequence[int]) -> None:
    """A row must be that of its own position: with the same random numbers, other positions give other rows.

    Equal rows of the data, or rows that are constant, are no error: only rows that change with the seed and are the
    same for all of ``chosen``.
    """
    firsts, common = [], []
    for seed in range(1, SEEDS // 2 + 1):
        rows = [calls([position], seed=seed) for position in chosen]
        if len(rows) < 2 or not any(one.drew for one in rows):
            return
        parts = [list(one.parts.values()) for one in rows]
        firsts.append(parts[0])
        if all(_equal(parts[0], other) for other in parts[1:]):
            common.append(parts[0])
    changes = any(not _equal(firsts[0], other) for other in firsts[1:])
    if changes and any(len(part.unique()) > 1 for parts in common for part in parts):
        raise ValueError(
            "the batch function mixes examples: it gives one row for several positions, with the same random numbers, "
            "and an example that comes twice counts twice in the sum; give each position its own row, draw no positions"
        )


def _equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def _check_seeds(calls: "Calls", chosen: Sequence[int], first: Rows) -> None:
    """A function that draws by place must not seed the generators."""
    other = calls(chosen, seed=2)
    for name, state in first.after.items():
        if state != first.before[name] and state == other.after[name] and first.before[name] != other.before[name]:
            raise ValueError(
                f"the batch function seeds {name}'s generator itself, so that its random numbers are known, and other "
                "examples move them from one row to the next: leave the seed out; a step seeds it in secret"
            )


def _check_draws(calls: "Calls", spread: Sequence[int], chosen: Sequence[int]) -> None:
    """For a function that draws random numbers by place: a row at its place, among others."""
    for position in chosen:
        for seed in range(1, SEEDS + 1):
            one, two = (calls(positions, seed=seed) for positions in _other_company(spread, position))
            why = f"in other company, at the same place and with the same random numbers; {FIX}"
            if one.after != two.after:
                why = (
                    "in other company, and more random numbers are drawn for some examples than for others, so that it "
                    "cannot be checked whether they mix; give a Dataset whose __getitem__ makes one example"
                )
            calls.compare([one], two, why, only=position)


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls a batch function with seeded generators, and compares what it gives."""

    batch: Batch
    device: str

    def __call__(self, positions: Iterable[int], seed: int = 1) -> Rows:
        """The rows of some positions, ascending, as a step would get them."""
        chosen = sorted(set(positions))
        with own_draws(self.device):
            seed_draws(seed, self.device)
            before = states(self.device)
            inputs, targets = self.batch(torch.tensor(chosen))
            parts = {name: value for part, given in (("inputs", inputs), ("targets", targets))
                     for name, value in named(part, given)}  # fmt: skip
            return Rows(tuple(chosen), parts, before, states(self.device))

    def compare(self, alone: Sequence[Rows], together: Rows, why: str, only: int | None = None) -> None:
        """Raise ValueError where an example of ``alone`` has other rows in ``together``."""
        for name in dict.fromkeys([*together.parts, *(name for rows in alone for name in rows.parts)]):
            pairs = [
                (rows, position) for rows in alone for position in rows.positions
                if position in together.positions and only in (None, position)
            ]  # fmt: skip
            if not pairs:
                continue
            if name not in together.parts or not all(name in rows.parts for rows, _ in pairs):
                raise ValueError(f"the batch function mixes examples: {name} is not in every batch; {FIX}")
            columns = row_differs(
                [rows.row(name, position) for rows, position in pairs],
                [together.row(name, position) for _, position in pairs],
            )
            if columns != []:
                other = f"{name} of another shape" if columns is None else f"other {name} (column {columns[0]})"
                raise ValueError(
                    f"the batch function mixes examples: in a batch of {len(together.positions)} an example has "
                    f"{other} than {why}"
                )


def same_function(batch: Any, known: Any) -> bool:
    """Whether a batch function needs no check after ``known``: the same code over the same objects, or moves alone."""
    if batch is known or isinstance(batch, Stored):
        return True
    if isinstance(batch, Items) and isinstance(known, Items):
        return batch.data is known.data
    if not all(isinstance(function, FunctionType) for function in (batch, known)) or batch.__code__ != known.__code__:
        return False
    held = []
    for function in (batch, known):
        cells = filled_cells(function)
        if len(cells) < len(function.__closure__ or ()):  # a name that is not set yet may become anything
            return False
        held.append([*(cell.cell_contents for cell in cells), *(function.__defaults__ or ())])
    return len(held[0]) == len(held[1]) and all(one is two for one, two in zip(*held, strict=True))


def states(device: str) -> dict[str, bytes]:
    """The states of the global generators, by their owner."""
    found = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "python": repr(random.getstate()).encode(),
        "numpy": repr([part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()])
        .encode(),
    }  # fmt: skip
    if device == "cuda":
        found["torch on cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return found


def _batches(spread: Sequence[int], chosen: Sequence[int], num_examples: int) -> Iterator[list[int]]:
    """Batches of many sizes: pairs of examples, every second one, halves, all, and a large one."""
    yield from ([one, two] for one, two in pairwise(chosen))
    yield from (list(chosen[:3]), list(chosen[-3:]), list(chosen[::2]), list(chosen[1::2]), list(chosen))
    yield from (list(spread[: len(spread) // 2 + 1]), list(spread[len(spread) // 2 :]), list(spread))
    if num_examples > len(spread):
        yield sorted({*spaced(num_examples, LARGEST).tolist(), *chosen})


def _other_company(spread: Sequence[int], position: int) -> tuple[list[int], list[int]]:
    """Two batches of one size in which an example has the same place, and no other example is in both."""
    place = spread.index(position)
    before, after = spread[:place], spread[place + 1 :]
    sides = [side[: len(side) // 2 * 2] for side in (before, after)]
    first, second = ([*sides[0][start::2], position, *sides[1][start::2]] for start in (0, 1))
    return first, second
