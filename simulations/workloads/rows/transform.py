"""A transform of a user's own: what it makes of rows, and the check that it makes each row from
itself alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.gradients.independence.same_rows import differing
from fedlsg.randomness import own_draws
from fedlsg.simulations.workloads.base import Progress
from fedlsg.simulations.workloads.base.split import Inputs, Stored
from fedlsg.strategies.own_loop.function_checks import LARGEST
from fedlsg.tensors import each

AT_ONCE = 1024
"""Rows that a transform is given at a time while data are read."""
ONE_SHAPE = 'give one row an example, all of one shape (texts: padding="max_length")'
BY_COLUMN = (
    "transform= makes numbers of numbers and texts: a function that gets a list of each column, in "
    "the order of inputs= (fedlsg docs own, tables with numbers and texts)"
)
"""What to do about a table whose columns are not of one kind."""
LIST_OF_THINGS = (
    "give transform=, a function from a list of them to a tensor or a dict of tensors (of texts: a "
    "tokenizer that pads to one length)"
)
PROBE_ROWS = 6
"""Rows that are transformed alone and together."""


@dataclass(frozen=True)
class Prepare:
    """From stored rows, arrays of numpy, to the model's inputs: as tensors, through a function if
    there is one.

    ``alone``: the function is called for one row at a time, so that no row depends on the others of
    a batch.
    """

    transform: Callable[[Any], Inputs] | None = None
    alone: bool = False

    @classmethod
    def by(cls, transform: Callable[[Any], Inputs] | None, what: str) -> "Prepare":
        """By a user's function: alone for all rows but those of test, which are public and tried in
        batches.
        """
        return cls(transform, alone=transform is not None and what != "test")

    def __call__(self, stored: Any) -> Inputs:
        """The inputs of some rows. A transform is not called for none: its failure would tell that
        a batch is empty.
        """
        tensors: Inputs = (
            {name: torch.as_tensor(value) for name, value in stored.items()}
            if isinstance(stored, Mapping)
            else torch.as_tensor(stored)
        )
        if self.transform is None:
            return tensors
        first = next(iter(tensors.values())) if isinstance(tensors, dict) else tensors
        if not len(first):
            return torch.zeros(0, 1)
        if not self.alone or len(first) == 1:
            return self.transform(tensors)
        transformed_rows = [
            self.transform(each(tensors, itemgetter(slice(row, row + 1))))
            for row in range(len(first))
        ]
        return joined(transformed_rows)


def joined(rows: Sequence[Any]) -> Inputs:
    """One batch of batches. Raises ValueError for rows of several shapes or names."""
    try:
        if isinstance(rows[0], Tensor):
            return torch.cat(list(rows))
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    except (RuntimeError, TypeError, KeyError) as error:
        raise ValueError(
            f"transform gave rows that cannot be put together ({error}): {ONE_SHAPE}"
        ) from error


def transformed(
    things: Sequence[Any],
    transform: Callable[..., Any] | None,
    several: bool,
    what: str,
    progress: Progress,
) -> Tensor | dict[str, Tensor]:
    """What the transform makes of texts or other things: a tensor, or tensors by name; it gets some
    rows at a time.

    ``several``: things are tuples, and the transform gets a list of each of their members.
    Raises ValueError without a transform, for results that are not of one shape, and where the
    first or last row of those that it got has another result alone.
    """
    if transform is None:
        kind = type(things[0]).__name__ if things else "nothing"
        given, fix = f"{kind}s", LIST_OF_THINGS
        if kind == "list" and all(isinstance(number, int | float) for number in things[0]):
            given, fix = "lists of numbers", "give an array, np.array(inputs), or a tensor"
        elif kind in ("tuple", "list", "ndarray"):
            given, fix = "rows of things that are no numbers", BY_COLUMN
        raise ValueError(f"{what} inputs are {given}, which no model takes: {fix}")

    def make(rows: Sequence[Any]) -> dict[str, Tensor]:
        result = run_transform(
            transform, *(map(list, zip(*rows, strict=True)) if several else [list(rows)])
        )
        named = result.items() if isinstance(result, Mapping) else [("inputs", result)]
        return {str(name): torch.as_tensor(value) for name, value in named}

    parts: list[dict[str, Tensor]] = []
    for start in range(0, len(things), AT_ONCE):
        chunk = things[start : start + AT_ONCE]
        parts.append(make(chunk))
        for name, value in parts[-1].items():
            if len(value) != len(chunk) or value.shape[1:] != parts[0][name].shape[1:]:
                raise ValueError(
                    f"transform gave {name} of shape {tuple(value.shape)} for {len(chunk)} {what} "
                    f"rows, and {tuple(parts[0][name].shape)} before: {ONE_SHAPE}"
                )
        rows = range(0, len(chunk), max(1, len(chunk) // PROBE_ROWS)) if start == 0 else (0,)
        for row in {*rows, len(chunk) - 1}:
            check_same_rows([make(chunk[row : row + 1])], parts[-1], [row], what)
        progress(f"{what}: {start + len(chunk)} of {len(things)} rows transformed")
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return whole["inputs"] if set(whole) == {"inputs"} else whole


def check_same_rows(
    alone: Sequence[Mapping[str, Tensor]],
    together: Mapping[str, Tensor],
    rows: Sequence[int],
    what: str,
) -> None:
    """Raise ValueError unless each of ``alone``, made of one row, is that row of ``together``.

    Column by column, in units of the column (``differing``). Shapes must be equal, too: how far a
    text is padded would depend on the longest of the others.
    """
    for name in dict.fromkeys([*together, *(name for one in alone for name in one)]):
        whole = together.get(name)
        values = [one[name] for one in alone if name in one]
        shapes = {tuple(one.shape) for one in values}
        if (
            whole is None
            or len(values) < len(alone)
            or whole.ndim == 0
            or shapes != {(1, *whole.shape[1:])}
        ):
            given = (
                f"{sorted(shapes)} for 1 row and {None if whole is None else tuple(whole.shape)} "
                "for several"
            )
            raise ValueError(f"transform gave {what} {name} of shape {given}: {ONE_SHAPE}")
        if columns := differing(torch.cat(values), whole[list(rows)]):
            raise ValueError(
                f"transform gives other {what} {name} for a row alone than in a batch, which mixes "
                "examples: make each row from itself alone, without statistics of the batch and "
                f"without chance (column {columns[0]})"
            )


def check_same_item(first: Any, again: Any, what: str) -> None:
    """Raise ValueError unless the numbers of an item, a pair, are the same after others were
    read.
    """
    if not is_same_item(first, again):
        raise ValueError(
            f"{what} is another item after others were read, which mixes examples: let __getitem__ "
            "make each item from its own number alone, without a memory; random numbers of torch, "
            "python and numpy are seeded in secret for each item"
        )


def is_same_item(first: Any, again: Any) -> bool:
    """Whether the numbers of two items, pairs, are the same."""
    pairs = [(first[0], again[0]), (first[1], again[1])]
    if all(isinstance(item, Mapping) for item in pairs[0]):
        pairs = [*((first[0][name], again[0].get(name)) for name in first[0]), pairs[1]]
    for one, two in pairs:
        if not isinstance(one, Tensor | np.ndarray | np.generic | int | float) or isinstance(
            one, np.str_
        ):
            continue
        a, b = (torch.as_tensor(value).unsqueeze(0) for value in (one, two))
        if a.shape != b.shape or differing(a, b):
            return False
    return True


def run_transform(transform: Callable[..., Any], *stored: Any) -> Any:
    """What a transform makes. Raises ValueError, with its error, for one that fails."""
    try:
        return transform(*stored)
    except Exception as error:
        numbers = isinstance(error, AttributeError | TypeError) and not isinstance(stored[0], list)
        hint = (
            "; it gets a tensor: what looks like numbers in a file is read as numbers (for texts "
            "give a table, such as pandas.read_csv(path, dtype=str))"
        )
        several = f"; it gets {len(stored)} lists, one of each column of the inputs"
        raise ValueError(
            f"transform fails: {type(error).__name__}: {error}"
            f"{hint if numbers else several if len(stored) > 1 else ''}"
        ) from error


def prefers_texts(
    transform: Callable[..., Any], numbers: Tensor, texts: Sequence[list[str]]
) -> bool:
    """Whether a transform takes columns of a file as texts, which look like numbers (B, columns).

    It does if it fails on numbers, or makes the same shapes of both: then nothing else would say
    that it got numbers.
    """

    def shapes(*stored: Any) -> Any:
        try:
            return [(name, tuple(value.shape)) for name, value in fields_of(transform(*stored))]
        except Exception:  # whatever a user's transform raises
            return None

    with own_draws("cpu"):
        shape = shapes(*texts)
        return shape is not None and shapes(numbers) in (None, shape)


def fields_of(inputs: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors by name. Raises ValueError for other inputs."""
    for name, value in inputs.items() if hasattr(inputs, "items") else [("inputs", inputs)]:
        if not isinstance(value, Tensor):
            raise ValueError(
                f"transform gave {name} as {type(value).__name__}: expected a tensor, or a dict of "
                "tensors by name"
            )
        yield str(name), value


def check_transform(
    inputs: Stored, prepare: Callable[[Any], Inputs], count: int, what: str
) -> None:
    """Raise ValueError if what is made of a row depends on the other rows of its batch, or on
    chance; for complex rows.

    These are rows of test, which are public, and transformed in batches; those that are trained on
    are transformed one at a time, whatever is found here. All random generators are left as they
    were.
    """
    stored = inputs[np.zeros(1, dtype=np.int64)]
    for value in stored.values() if isinstance(stored, Mapping) else [stored]:
        if isinstance(value, Tensor) and value.dtype == torch.bfloat16:
            raise ValueError(
                f"{what} inputs are bfloat16, which numpy has not: give float32, and "
                "precision='bfloat16'"
            )
        if np.iscomplexobj(value):
            raise ValueError(
                f"{what} inputs are complex ({value.dtype}): give real and imaginary parts as "
                "columns"
            )
    with own_draws("cpu"):
        places = np.linspace(0, count - 1, min(PROBE_ROWS, count)).astype(np.int64)
        _check_rows(lambda chosen: prepared(inputs, prepare, places[chosen]), len(places), what)


def _check_rows(make: Callable[[Any], Inputs], count: int, what: str) -> None:
    """``make``: from places of 0 to count - 1 to inputs. Alone, all, all the other way round,
    pairs, a large batch.
    """
    alone = [dict(fields_of(make([row]))) for row in range(count)]
    order = list(range(count))
    large = order * -(-LARGEST // count)
    for together in (
        order,
        order[::-1],
        order[::2],
        order[1::2],
        large,
        *([a, b] for a, b in pairwise(order)),
    ):
        if together:
            whole = dict(fields_of(make(together)))
            if wrong := [
                name
                for name, value in whole.items()
                if value.ndim == 0 or len(value) != len(together)
            ]:
                raise ValueError(
                    f"transform gave {what} {wrong[0]} of shape {tuple(whole[wrong[0]].shape)} for "
                    f"{len(together)} rows: {ONE_SHAPE}"
                )
            check_same_rows([alone[row] for row in together], whole, range(len(together)), what)


def prepared(inputs: Stored, prepare: Callable[[Any], Inputs], places: Any) -> Inputs:
    """The model's inputs of some rows. Raises ValueError, with its error, for a transform that
    fails.
    """
    inputs_of_rows: Inputs = run_transform(prepare, inputs[np.asarray(places, dtype=np.int64)])
    return inputs_of_rows
