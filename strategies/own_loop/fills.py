"""Rows of made-up numbers for one field, each function one kind of numbers; ``made_up`` makes families of them."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

ROWS = 4
"""Rows of a family."""
AT_ONCE = 4
"""Most numbers of the user's code in one family."""
UNIX_TIME = 1.7e9

Fill = Callable[[Tensor, torch.Generator], Tensor]
"""From a field of the data, of which shape and type are read, to ``ROWS`` rows."""


def uniform(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.rand((ROWS, *like.shape[1:]), generator=draw, dtype=torch.float64)


def by_row(numbers: Sequence[float], like: Tensor) -> Tensor:
    """One number for each row, to be multiplied with rows."""
    return torch.tensor(numbers).view(-1, *[1] * (like.ndim - 1))


def normal(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn((ROWS, *like.shape[1:]), generator=draw, dtype=torch.float64)


def shares(like: Tensor, draw: torch.Generator) -> Tensor:
    """In [0, 1]; the last row is constant."""
    rows = uniform(like, draw)
    rows[-1] = 0.5
    return rows


def scales(like: Tensor, draw: torch.Generator) -> Tensor:
    """Each column of the last dimension has a scale of its own; one is a unix time."""
    rows = normal(like, draw)
    if rows.ndim < 2:
        return 1e5 * rows
    width = rows.shape[-1]
    rows = rows * (10.0 ** torch.linspace(-3, 6, width, dtype=torch.float64)[torch.randperm(width, generator=draw)])
    if width > 1:
        rows[..., width // 2] = UNIX_TIME + 1e5 * torch.randn(rows.shape[:-1], generator=draw, dtype=torch.float64)
    return rows


def whole(like: Tensor, draw: torch.Generator) -> Tensor:
    """Counts or categories as floats: 0 and 1, up to 3, and in the last row up to 5,000."""
    most = by_row([2, 4, 3, 5000], like)
    return (uniform(like, draw) * most).floor()


def missing(rows: Tensor, draw: torch.Generator, value: float = torch.nan) -> Tensor:
    """A value at some places: of the first row all but one, of the second none, of the third half, of the last all.

    Of a row without columns: in the last two.
    """
    share = by_row([1.0, 0.0, 0.5, 1.0] if rows.ndim > 1 else [0.0, 0.0, 1.0, 1.0], rows)
    gone = torch.rand(rows.shape, generator=draw) < share
    if rows.ndim > 1:
        gone.flatten(1)[0, 0] = False
    return torch.where(gone, torch.full_like(rows, value), rows)


def some_missing(like: Tensor, draw: torch.Generator) -> Tensor:
    """Normal numbers, and NaN at every fourth place of the first rows."""
    rows = normal(like, draw)
    return torch.where(torch.rand(rows.shape, generator=draw) < by_row([0.25, 0.5, 0.25, 0.0], like), torch.nan, rows)


def flags(like: Tensor, draw: torch.Generator) -> Tensor:
    rows = torch.randint(2, (ROWS, *like.shape[1:]), generator=draw)
    if rows.ndim > 1:
        rows[:, 0] = 1
    return rows


def lengths(like: Tensor, draw: torch.Generator) -> Tensor:
    """Masks of padding, the longest first: 1 at as many places as a row has."""
    size = like.shape[-1]
    long = by_row([size, max(1, size // 2), 1, max(1, size * 3 // 4)], like)
    return (torch.arange(size) < long).expand(ROWS, *like.shape[1:]).long()


def numbers(high: Tensor, low: int = 0) -> Fill:
    """Integers from ``low`` up to the largest of each column: small ones, all, large ones, and half of them low."""

    def fill(like: Tensor, draw: torch.Generator) -> Tensor:
        span = (high - low).clamp(min=1).double()
        starts = by_row([0.0, 0.0, 0.75, 0.0], like).double()
        drawn = uniform(like, draw)
        rows = (starts + (1 - starts) * drawn) * span
        rows[0] = drawn[0] * span.clamp(max=20)
        rows[3] = rows[3] * (torch.rand(rows[3].shape, generator=draw) < 0.5)
        if like.ndim == 1:  # one number a row: all of them different where there are as many
            rows = torch.tensor([0.3, 0.99, 0.6, 0.0]).double() * span
        return (rows.floor().long() + low).clamp(max=(high - 1).clamp(min=low))

    return fill


def with_missing(fill: Fill, value: float, like: Tensor, draw: torch.Generator) -> Tensor:
    return missing(fill(like, draw), draw, value)


def of_numbers(given: Sequence[float], fill: Fill, like: Tensor, draw: torch.Generator) -> Tensor:
    """Rows of ``fill`` with numbers of the code in them: in the first row none, in the second many, then few.

    In the last row at one place, or everywhere where a row has one number, numbers beyond them.
    """
    rows = fill(like, draw).double()
    number = torch.tensor(given, dtype=torch.float64)[torch.randint(len(given), rows.shape, generator=draw)]
    number[3] = 2 * number[3] + number[3].sign()
    share = by_row([0.0, 0.6, 0.25, 0.25] if rows.ndim > 1 else [0.0, 1.0, 1.0, 1.0], rows)
    here = torch.rand(rows.shape, generator=draw) < share
    if rows.ndim > 1:
        here.flatten(1)[1:, -1], here.flatten(1)[1:, 0] = True, False
    return torch.where(here, number, rows)


def chunks(given: Sequence[float], size: int) -> list[Sequence[float]]:
    """The numbers in parts, of which each fits into a row."""
    step = max(1, min(size, AT_ONCE))
    return [given[start : start + step] for start in range(0, len(given), step)]


def softmax(like: Tensor, draw: torch.Generator) -> Tensor:
    return normal(like, draw).reshape(ROWS, -1).softmax(1).view(ROWS, *like.shape[1:])


FLOATS: tuple[Fill, ...] = (normal, shares, scales, whole, some_missing)
TARGETS: tuple[Fill, ...] = (
    lambda like, draw: normal(like, draw).sigmoid(),
    normal,
    lambda like, draw: flags(like, draw).double(),
    softmax,
    lambda like, draw: normal(like, draw).exp(),
    lambda like, draw: 1e5 * normal(like, draw),
    lambda like, draw: missing(normal(like, draw).sigmoid(), draw),
)  # fmt: skip


def always(number: float, like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.full((ROWS, *like.shape[1:]), float(number))


ones, zeros = partial(always, 1), partial(always, 0)


def half(fill: Fill) -> Fill:
    """Rows whose first one is small; the others are the same ones."""
    return lambda like, draw: fill(like, draw)[:1].expand(ROWS, *like.shape[1:]).clone()
