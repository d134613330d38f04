"""Persons as the unit of privacy: the rows of a person give one gradient for the clip.

Epsilon then protects a person with all of its rows: a Poisson batch draws persons, and what one of
them adds to a step is clipped once to C, however many rows it has. So a person moves the sum by C
at most, as an example does if the unit is an example, and everything after the clip is the same.

    batch        persons, each with probability q; N_k, the divisor and delta count persons
    rows         all rows of a drawn person, or ``most_rows`` of them, drawn at random in secret
    passes       of one person's rows each, as many as these take
    gradient     the mean over the person's rows, or their sum; only then the weights of blocks, the
                 clip of parts and the joint clip

A pass holds rows of one person only. Large gradients of its rows can cancel each other: few digits
of their sum are right then, and the clip does not scale it down. In a pass with other persons,
rounding depends on them and could move this sum by as much as C. (An example's gradient is clipped
with its relative error.) Alone, a person's gradient is a function of its own rows, bit for bit, and
nothing that a model does to its rows together can reach another person.
"""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from fedlsg.config.units import PersonGradient
from fedlsg.randomness import SecretStream

Rows = Int[Tensor, " rows"]
WHOLE = 2**53
"""Whole numbers below it are exact in float64."""
_UNCLEAR = frozenset({"na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none"})
"""Texts, in small letters, that mean a missing value in many files but could be a person's name.
numpy turns None and NaN next to texts into some of them.
"""


class Persons:
    """The persons of a client, numbered from 0 to ``count`` - 1, and their rows.

    person: the number of each row's person.
    most_rows: rows of a person that count in a step, at most; 0 for all. Public.
    gradient: "mean" or "sum" of the rows' gradients. Public.
    Raises ValueError unless each number up to the largest one has a row.
    """

    def __init__(
        self, person: Rows, *, most_rows: int = 0, gradient: PersonGradient = "mean"
    ) -> None:
        if person.dtype != torch.int64 or person.ndim != 1 or not len(person):
            raise ValueError("expected the number of each row's person: int64 of shape (rows,)")
        counts = person.bincount()
        if not bool((counts > 0).all()):
            raise ValueError("expected persons numbered from 0 on, each with a row")
        if most_rows < 0 or gradient not in ("mean", "sum"):
            raise ValueError(f"expected {most_rows=} >= 0, and {gradient=} to be 'mean' or 'sum'")
        self.person, self.most_rows, self.gradient = person, most_rows, gradient
        self._rows, self._counts = person.argsort(stable=True), counts
        self._starts = counts.cumsum(0) - counts

    @property
    def count(self) -> int:
        """The number of persons: N_k."""
        return len(self._counts)

    def rows_of(self, persons: Int[Tensor, " persons"], stream: SecretStream) -> list[Rows]:
        """The rows of each of these persons that count in this step, ascending.

        The stream chooses them, uniformly and for each person independently.
        """
        rows_of_all = []
        starts, counts = self._starts[persons].tolist(), self._counts[persons].tolist()
        for start, count in zip(starts, counts, strict=True):
            rows: Tensor = self._rows[start : start + count]
            if 0 < self.most_rows < count:
                order = torch.from_numpy(np.argsort(stream.words(count), kind="stable"))
                rows = rows[order[: self.most_rows]].sort().values
            rows_of_all.append(rows)
        return rows_of_all


def numbers_of(values: Any, what: str) -> Rows:
    """The number of each row's person, from 0 on in the order of first rows.

    values: the person of each row, as a text or a number. A row whose value is missing (None, NaN,
        an empty text) is a person of its own.
    what: the name of the values in messages. No message quotes a value.
    Raises ValueError for other values, for a text that may mean a missing value (NA, nan), and for
    numbers that floating point may have rounded (from 2^53 in float64, 2^24 in float32). Two
    persons with one number, and one person with two, would be protected less than is claimed.
    """
    plain = isinstance(values, list | tuple)  # of which numpy would make one type
    tensor = values.cpu() if isinstance(values, Tensor) else None
    if tensor is not None and tensor.dtype.is_floating_point:
        tensor, whole = tensor.double(), 2.0 / torch.finfo(tensor.dtype).eps
        array = tensor.numpy()
    else:
        array = np.asarray(
            values if tensor is None else tensor.numpy(), dtype=object if plain else None
        )
        whole = 2.0 / float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else WHOLE
    if array.ndim != 1:
        raise ValueError(f"{what}: expected one value a row, got an array of shape {array.shape}")
    number_of: dict[Any, int] = {}
    kinds: dict[str, int] = {}  # "a text" or "a number", and the first row that has it
    numbers = []
    for row, value in enumerate(array.tolist()):
        if is_missing(value):
            value = object()  # differs from every other value
        elif not isinstance(value, str | int | float):
            raise ValueError(
                f"{what}: row {row} has {type(value).__name__}: expected a text or a number"
            )
        elif isinstance(value, float) and abs(value) >= whole:
            raise ValueError(
                f"{what}: expected whole numbers below 2^{math.log2(whole):.0f}, found a larger "
                f"one in row {row}, which floating point may have rounded: give integers or texts"
            )
        elif is_unclear(value):
            raise ValueError(
                f"{what}: row {row} has a text that says in many files that a value is missing, as "
                "NA and nan do: leave it empty (None) for a row of nobody, which is protected by "
                "itself, or give the person another name"
            )
        else:
            kinds.setdefault("a text" if isinstance(value, str) else "a number", row)
        numbers.append(number_of.setdefault(value, len(number_of)))
    if len(kinds) > 1:
        which = " and ".join(f"{kind} in row {row}" for kind, row in kinds.items())
        raise ValueError(
            f"{what}: {which}: whether 7 and '7' are one person cannot be told; give all as texts"
        )
    return torch.tensor(numbers, dtype=torch.int64)


def is_unclear(value: Any) -> bool:
    """Whether a value is a text that means a missing value in many files, such as NA of R."""
    return isinstance(value, str) and value.strip().lower() in _UNCLEAR


def is_missing(value: Any) -> bool:
    """Whether a value says that a row belongs to no person."""
    if value is None or type(value).__name__ == "NAType":
        return True
    return not value.strip() if isinstance(value, str) else bool(value != value)
