"""A user's transform is applied to rows, and checked: it must make each row from itself alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
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
"""The most rows that a transform gets at a time while data are read."""
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
"""The number of rows that are transformed alone and together, for the check."""


@dataclass(frozen=True)
class Prepare:
    """Makes the model's inputs, tensors, from stored rows, which are arrays of numpy.

    transform: a function of these tensors; None without one.
    alone: it is called for one row at a time, so that no row depends on the others of a batch.
    """

    transform: Callable[[Any], Inputs] | None = None
    alone: bool = False

    @classmethod
    def by(cls, transform: Callable[[Any], Inputs] | None, what: str) -> "Prepare":
        """With a user's function: alone for each row, except for rows of test.

        These are public, and the function is checked on batches of them.
        """
        return cls(transform, alone=transform is not None and what != "test")

    def __call__(self, stored: Any) -> Inputs:
        """The inputs of some rows.

        A transform is not called for no rows: its failure would tell that a batch is empty.
        """
        tensors: Inputs
        if isinstance(stored, Mapping):
            tensors = {name: torch.as_tensor(value) for name, value in stored.items()}
            first = next(iter(tensors.values()))
        else:
            tensors = first = torch.as_tensor(stored)
        if self.transform is None:
            return tensors
        if not len(first):
            return torch.zeros(0, 1)
        if not self.alone or len(first) == 1:
            return self.transform(tensors)
        rows = []
        for row in range(len(first)):
            rows.append(self.transform(each(tensors, itemgetter(slice(row, row + 1)))))
        return join_rows(rows)


def join_rows(rows: Sequence[Any]) -> Inputs:
    """One batch of several batches. Raises ValueError if their shapes or names differ."""
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
    """What the transform makes of texts or other things: a tensor, or tensors by name.

    several: things are tuples, and the transform gets a list of each of their members.
    Raises ValueError without a transform, for results that are not of one shape, and if a row alone
    has another result than in a batch: some rows of the first batch, the ends of all others.
    """
    if transform is None:
        raise ValueError(_no_transform(things, what))

    def make(rows: Sequence[Any]) -> dict[str, Tensor]:
        lists = list(map(list, zip(*rows, strict=True))) if several else [list(rows)]
        result = run_transform(transform, *lists)
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
        step = max(1, len(chunk) // PROBE_ROWS) if start == 0 else len(chunk)
        for row in {*range(0, len(chunk), step), len(chunk) - 1}:
            check_same_rows([make(chunk[row : row + 1])], parts[-1], [row], what)
        progress(f"{what}: {start + len(chunk)} of {len(things)} rows transformed")
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return whole["inputs"] if set(whole) == {"inputs"} else whole


def _no_transform(things: Sequence[Any], what: str) -> str:
    """What is wrong with inputs of which only a transform can make numbers, and what to do."""
    kind = type(things[0]).__name__ if things else "nothing"
    inputs, fix = f"{kind}s", LIST_OF_THINGS
    if kind == "list" and all(isinstance(number, int | float) for number in things[0]):
        inputs, fix = "lists of numbers", "give an array, np.array(inputs), or a tensor"
    elif kind in ("tuple", "list", "ndarray"):
        inputs, fix = "rows of things that are no numbers", BY_COLUMN
    return f"{what} inputs are {inputs}, which no model takes: {fix}"


def check_same_rows(
    alone: Sequence[Mapping[str, Tensor]],
    together: Mapping[str, Tensor],
    rows: Sequence[int],
    what: str,
) -> None:
    """Raise ValueError unless each of ``alone``, made of one row, is that row of ``together``.

    Columns are compared one by one, each in its own unit (``differing``). Shapes must be equal,
    too: otherwise the longest of other texts would decide how far a text is padded.

    alone: inputs by name, made of one row each.
    together: inputs by name, made of a batch.
    rows: the row of the batch that each of ``alone`` was made of.
    """
    for name in dict.fromkeys([*together, *chain.from_iterable(alone)]):
        whole = together.get(name)
        values = [inputs[name] for inputs in alone if name in inputs]
        shapes = {tuple(value.shape) for value in values}
        lacks_rows = whole is None or whole.ndim == 0 or len(values) < len(alone)
        if whole is None or lacks_rows or shapes != {(1, *whole.shape[1:])}:
            shape = None if whole is None else tuple(whole.shape)
            raise ValueError(
                f"transform gave {what} {name} of shape {sorted(shapes)} for 1 row and {shape} "
                f"for several: {ONE_SHAPE}"
            )
        if columns := differing(torch.cat(values), whole[list(rows)]):
            raise ValueError(
                f"transform gives other {what} {name} for a row alone than in a batch, which mixes "
                "examples: make each row from itself alone, without statistics of the batch and "
                f"without chance (column {columns[0]})"
            )


def check_same_item(first: Any, again: Any, what: str) -> None:
    """Raise ValueError if an item, a pair, has other numbers after other items were read."""
    if not is_same_item(first, again):
        raise ValueError(
            f"{what} is another item after others were read, which mixes examples: let __getitem__ "
            "make each item from its own number alone, without a memory; random numbers of torch, "
            "python and numpy are seeded in secret for each item"
        )


def is_same_item(first: Any, again: Any) -> bool:
    """Whether the numbers of two items, pairs (input, target), are the same; texts may differ."""
    inputs, targets = zip(first, again, strict=True)
    pairs = [inputs, targets]
    if all(isinstance(value, Mapping) for value in inputs):
        pairs = [*((value, inputs[1].get(name)) for name, value in inputs[0].items()), targets]
    for value, value_again in pairs:
        is_number = isinstance(value, Tensor | np.ndarray | np.generic | int | float)
        if not is_number or isinstance(value, np.str_):
            continue
        a, b = (torch.as_tensor(number).unsqueeze(0) for number in (value, value_again))
        if a.shape != b.shape or differing(a, b):
            return False
    return True


def run_transform(transform: Callable[..., Any], *stored: Any) -> Any:
    """What a transform makes. Raises ValueError, with its error, for one that fails."""
    try:
        return transform(*stored)
    except Exception as error:
        hint = ""
        if isinstance(error, AttributeError | TypeError) and not isinstance(stored[0], list):
            hint = (
                "; it gets a tensor: what looks like numbers in a file is read as numbers (for "
                "texts give a table, such as pandas.read_csv(path, dtype=str))"
            )
        elif len(stored) > 1:
            hint = f"; it gets {len(stored)} lists, one of each column of the inputs"
        raise ValueError(f"transform fails: {type(error).__name__}: {error}{hint}") from error


def prefers_texts(
    transform: Callable[..., Any], numbers: Tensor, texts: Sequence[list[str]]
) -> bool:
    """Whether a transform takes columns of a file, which look like numbers, as texts.

    It has to work on texts. It prefers them if it fails on numbers, or makes the same shapes of
    both: then no error would say that it got numbers.

    numbers: the first rows (B, columns).
    texts: the same, a list for each column.
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
    """A model's inputs as tensors by name, "inputs" for one. Raises ValueError for others."""
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
    """Raise ValueError if what is made of a row depends on other rows of its batch, or on chance.

    So it does for complex and bfloat16 rows. The rows are those of test, which are public and
    transformed in batches. Rows that are trained on are transformed one at a time in any case. All
    random generators are left as they were.

    inputs, prepare: of the rows.
    count: the number of rows.
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
    """Compare each row alone with batches: all rows, all reversed, halves, pairs, a large batch.

    make: from numbers of rows, 0 to count - 1, to inputs.
    """
    alone = [dict(fields_of(make([row]))) for row in range(count)]
    order = list(range(count))
    large = order * -(-LARGEST // count)  # at least LARGEST rows
    batches = [order, order[::-1], order[::2], order[1::2], large, *map(list, pairwise(order))]
    for batch in filter(None, batches):
        whole = dict(fields_of(make(batch)))
        for name, value in whole.items():
            if value.ndim == 0 or len(value) != len(batch):
                raise ValueError(
                    f"transform gave {what} {name} of shape {tuple(value.shape)} for {len(batch)} "
                    f"rows: {ONE_SHAPE}"
                )
        check_same_rows([alone[row] for row in batch], whole, range(len(batch)), what)


def prepared(inputs: Stored, prepare: Callable[[Any], Inputs], places: Any) -> Inputs:
    """The model's inputs of some rows. Raises ValueError if the transform fails."""
    inputs_of_rows: Inputs = run_transform(prepare, inputs[np.asarray(places, dtype=np.int64)])
    return inputs_of_rows
