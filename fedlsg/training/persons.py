"""A person with several rows: the mean, or the sum, of their gradients is one gradient for the
clip.

Epsilon then protects a person with all of its rows: a Poisson batch draws persons, and what one of
them adds to a step is clipped once to C, however many rows it has. So a person moves the sum by C
at most, as an example does where the unit is an example, and everything after the clip is the same.

    batch        persons, each with probability q; N_k, the divisor and delta count persons
    rows         all rows of a drawn person, or ``most_rows`` of them, drawn at random in secret
    passes       of one person's rows each, as many as these take
    gradient     the mean over the person's rows, or their sum; only then the weights of blocks, the
                 clip of parts and the joint clip

A pass holds rows of one person only. Large gradients of its rows can cancel each other: few digits
of what is left are right, and the clip does not scale it down. In a pass with others, rounding
depends on who else is there, and could move this by as much as C (for examples it cannot: what is
clipped keeps its relative error). Alone, a person's gradient is a function of its own rows, bit for
bit, and nothing that a model does to its rows together can reach another person.
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
"""Whole numbers of Python's floating point are exact below it."""
UNCLEAR = frozenset({"na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none"})
"""Texts, in small letters, that stand for a missing value in many files, and could be a person's:
what numpy makes of None and NaN next to texts, too.
"""


class Persons:
    """Which rows each person of a client has; persons are numbered from 0 to ``count`` - 1.

    ``person``: the number of each row's person.
    ``most_rows``: how many rows of a person count in a step, 0 for all.
    ``gradient``: "mean" or "sum" of their gradients. The last two are public.
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

    def rows_of(self, drawn: Int[Tensor, " persons"], stream: SecretStream) -> list[Rows]:
        """The rows of each of these persons that count in this step, ascending.

        Which ones, is drawn from the stream, uniformly and for each person by itself.
        """
        chosen_rows = []
        for start, count in zip(
            self._starts[drawn].tolist(), self._counts[drawn].tolist(), strict=True
        ):
            rows: Tensor = self._rows[start : start + count]
            if 0 < self.most_rows < count:
                order = torch.from_numpy(np.argsort(stream.words(count), kind="stable"))
                rows = rows[order[: self.most_rows]].sort().values
            chosen_rows.append(rows)
        return chosen_rows


def numbers_of(values: Any, what: str) -> Rows:
    """The number of each row's person, from 0 on in the order of their first rows. ``values`` say
    whose each row is: texts or numbers, one a row. A row whose value is missing (None, NaN, an
    empty text) is a person of its own.

    ``what``: how messages call the values; no message quotes one. Raises ValueError for other
    values, for a text that may say that a value is missing (NA, nan), and for numbers that their
    floating point may have rounded (from 2^53 in float64, 2^24 in float32): two persons that are
    taken for one, and one that is taken for two, would be protected less than is said.
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
    known: dict[Any, int] = {}
    kinds: dict[str, int] = {}
    numbers = []
    for row, value in enumerate(array.tolist()):
        if is_missing(value):
            value = object()
        elif not isinstance(value, str | int | float):
            raise ValueError(
                f"{what}: row {row} has {type(value).__name__}: expected a text or a number"
            )
        elif isinstance(value, float) and abs(value) >= whole:
            raise ValueError(
                f"{what}: expected whole numbers below 2^{math.log2(whole):.0f}, found a larger "
                f"one in row {row}, which floating point may have rounded: give integers or texts"
            )
        elif isinstance(value, str) and value.strip().lower() in UNCLEAR:
            raise ValueError(
                f"{what}: row {row} has a text that says in many files that a value is missing, as "
                "NA and nan do: leave it empty (None) for a row of nobody, which is protected by "
                "itself, or give the person another name"
            )
        else:
            kinds.setdefault("a text" if isinstance(value, str) else "a number", row)
        numbers.append(known.setdefault(value, len(known)))
    if len(kinds) > 1:
        which = " and ".join(f"{kind} in row {row}" for kind, row in kinds.items())
        raise ValueError(
            f"{what}: {which}: whether 7 and '7' are one person cannot be told; give all as texts"
        )
    return torch.tensor(numbers, dtype=torch.int64)


def is_missing(value: Any) -> bool:
    """Whether a value says that a row belongs to no person."""
    if value is None or type(value).__name__ == "NAType":
        return True
    return not value.strip() if isinstance(value, str) else bool(value != value)
