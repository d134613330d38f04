"""Checks before a charge on code that makes rows: that it keeps no state and mixes no rows.

Rows are made one at a time (``fedlsg.rows``), so no row depends on others in its batch. The checks
are:

    state      the same row, made again with the same draws after others, must be the same, bit for
               bit: else the code has a memory, or draws from a generator that fedlsg does not see
    positions  a row must be that of its own position
    functions  a function of many positions that standardises by the batch, or pads to its longest
               row, gives another row when it is called for one: it is refused, and no guarantee
               rests on that
    batched    by the owner's word ``batched=True`` rows are equal alone and in batches of many
               sizes, bit for bit

The code runs on public positions, in the process of the owner of the rows. Only a refusal leaves
the check; it names a part and a column and no value. Not found: items that mix rows inside a data
set (windows over neighbours, mixup, a scaler fitted on all rows), and a memory that shows only in
other rows than the tried ones.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import FunctionType
from typing import Any

import torch

from fedlsg.gradients import batch_size
from fedlsg.gradients.independence.same_rows import row_differs
from fedlsg.rows import OneByOne
from fedlsg.rows.one_by_one import Row, first_row, same_row
from fedlsg.strategies.own_loop.user_inputs import Stored, Together, check_batch, is_function
from fedlsg.tensors import fields_of, rows_of, spaced
from fedlsg.training import Batch
from fedlsg.user_code.digest import filled_cells

MANY_DRAWS = 16
"""Draws that show that a function uses a fair coin: all are equal with probability 2^-15."""
ROWS_ALONE = 8
"""Rows that are made alone, and compared with those in batches."""
SPREAD_POSITIONS = 64
"""Positions from all over the data; the rows that are made alone are among them."""
LARGEST = 512
"""Rows of the largest batch."""
FEW_DRAWS = 4
"""Draws under which rows are compared. They are secret, because code may keep its draws."""


def check_batches(batch: Batch, num_examples: int, device: str) -> None:
    """Raise ValueError for code that keeps a state, or makes another row in a batch than alone.

    All generators are as before afterwards.
    """
    spread = spaced(num_examples, SPREAD_POSITIONS).tolist()
    chosen = [spread[index] for index in spaced(len(spread), ROWS_ALONE).tolist()]
    if isinstance(batch, Together):
        _check_together(batch, spread, chosen, num_examples)
    elif isinstance(batch, OneByOne):
        rows = _check_state(batch, torch.tensor(chosen))
        _check_positions(batch, torch.tensor(chosen))
        if is_function(batch.source):
            _check_function(batch, torch.tensor(chosen), rows)


def _check_state(batch: OneByOne, chosen: torch.Tensor) -> list[Row]:
    """The rows of one key. Raises ValueError unless they are the same in the reverse order."""
    batch.rows(chosen[:1])
    batch.find_generators()  # after a row, because code may make a generator for its first row
    key = os.urandom(16)
    rows = batch.rows(chosen, key)
    again = batch.rows(chosen.flip(0), key)[::-1]
    if not all(map(same_row, rows, again)):
        raise ValueError(
            f"{batch.name} mixes examples: a row is another one when it is made again after "
            "others, with the same random numbers, so it has a memory, or a random generator of "
            "its own; keep no state, and draw from the global generator of torch, python or numpy, "
            "which fedlsg seeds in secret for each row"
        )
    return rows


def _check_positions(batch: OneByOne, chosen: torch.Tensor) -> None:
    """Raise ValueError if the draws choose one row for all positions.

    Equal rows that do not depend on the draws are no error: the data may have equal rows.
    """
    firsts = []
    for _ in range(FEW_DRAWS):
        rows = batch.rows(chosen, os.urandom(16))
        if len(rows) < 2 or not all(same_row(rows[0], row) for row in rows[1:]):
            return
        firsts.append(rows[0])
    if not all(same_row(firsts[0], row) for row in firsts[1:]):
        raise ValueError(
            f"{batch.name} mixes examples: it gives one row for several positions, with the same "
            "random numbers, and an example that comes twice counts twice in the sum; give each "
            "position its own row, draw no positions"
        )


def _check_function(batch: OneByOne, chosen: torch.Tensor, rows: list[Row]) -> None:
    """Raise ValueError if a function makes other rows of many positions than of one at a time."""
    try:
        results = [
            batch.under(os.urandom(16), lambda: batch.source(chosen)) for _ in range(MANY_DRAWS)
        ]
    except Exception:  # the function is for one position
        return
    if batch_size(*results[0]) == 1:  # it reads the first position alone
        return
    company, *others = (rows_in(given, len(chosen)) for given in results)
    if not all(all(map(same_row, company, other)) for other in others):
        return  # it draws, and other places have other draws
    if all(map(same_row, rows, company)):
        if len(rows) > 1:
            logging.getLogger("fedlsg").warning(
                "%s is called for one row at a time: step.batches(function, batched=True) calls it "
                "once for a batch, and step.batches((inputs, targets)) needs no function and is "
                "the fastest",
                batch.name,
            )
        return
    single, shared = [_tensors(row) for row in rows], [_tensors(row) for row in company]
    if any(row.keys() != single[0].keys() for row in (*single, *shared)):
        raise ValueError("the batch function mixes examples: its names differ from batch to batch")
    for name in single[0]:
        alone, together = [row[name] for row in single], [row[name] for row in shared]
        differ = row_differs(alone, together) != []
        padded = any(a.shape != b.shape for a, b in zip(alone, together, strict=True))
        if padded and not (batch.own_lengths and not differ):
            raise ValueError(
                "the batch function mixes examples: it pads rows to the longest row of the batch, "
                "so that the length of one example changes others. Rows are made one at a time and "
                "need no padding: step.step(step.batches(function)) takes each row in its own "
                "length, and step.batches(function, pad=0, mask='attention_mask') pads it to the "
                "next power of two"
            )
        if differ:
            raise ValueError(
                f"the batch function mixes examples: in a batch of {len(rows)} an example has "
                "other inputs or targets than alone. It is called for one row at a time, so a "
                "mean, maximum, sort or shuffle of the batch would be of that row: make every row "
                "from its own example alone, in the order of the positions, and take such numbers "
                "from public data"
            )


def _tensors(row: Row) -> dict[tuple[int, str], torch.Tensor]:
    """The tensors of a row by side and name."""
    return {
        (side, name): value
        for side, part in enumerate(row)
        for name, value in fields_of(part).items()
    }


def rows_in(given: Any, count: int) -> list[Row]:
    """The rows of a batch. Raises ValueError unless it has ``count``."""
    inputs, targets = check_batch(given, count)
    return [
        first_row((rows_of(inputs, index), rows_of(targets, index)))
        for index in torch.arange(count).split(1)
    ]


def _check_together(
    batch: Together, spread: list[int], chosen: list[int], num_examples: int
) -> None:
    """Raise ValueError unless rows of ``batched=True`` are the same alone and in batches."""
    alone = {position: rows_in(batch(torch.tensor([position])), 1)[0] for position in chosen}
    for positions in _batches(spread, chosen, num_examples):
        rows = rows_in(batch(torch.tensor(positions)), len(positions))
        for position in {*positions} & {*chosen}:
            if not same_row(alone[position], rows[positions.index(position)]):
                raise ValueError(
                    "batched=True: the batch function mixes examples, or draws random numbers by "
                    f"place: in a batch of {len(positions)} an example has other numbers than "
                    "alone; step.batches(function), without batched, makes one row at a time; "
                    "step.batches((inputs, targets)) is the fastest"
                )


def _batches(
    spread: Sequence[int], chosen: Sequence[int], num_examples: int
) -> Iterator[list[int]]:
    """Batches of many sizes: pairs of examples, every second one, halves, all, and a large one."""
    yield from ([one, two] for one, two in pairwise(chosen))
    yield from (
        list(chosen[::2]),
        list(chosen[1::2]),
        list(chosen),
        list(spread[len(spread) // 2 :]),
        list(spread),
    )
    if num_examples > len(spread):
        yield sorted({*spaced(num_examples, LARGEST).tolist(), *chosen})


def same_function(batch: Any, known: Any) -> bool:
    """Whether a batch function needs no check after ``known``.

    That is so for the same code over the same objects, and for stored tensors, whose rows are only
    moved.
    """
    if batch is known or isinstance(batch, Stored):
        return True
    if type(batch) is not type(known):
        return False
    first, other = batch.source, known.source
    if first is other:
        return True
    if (
        not all(isinstance(function, FunctionType) for function in (first, other))
        or first.__code__ != other.__code__
    ):
        return False
    held = []
    for function in (first, other):
        cells = filled_cells(function)
        # a cell that is empty now may hold any object later
        if len(cells) < len(function.__closure__ or ()):
            return False
        held.append([*(cell.cell_contents for cell in cells), *(function.__defaults__ or ())])
    return len(held[0]) == len(held[1]) and all(a is b for a, b in zip(*held, strict=True))
