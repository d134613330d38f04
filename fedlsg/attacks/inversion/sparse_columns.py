"""The sparse basis of a column space: what distinguishes the examples of a ReLU layer (Dimitrov et al. 2024, SPEAR).

Symbols: P (rows, B) a basis of the range of G (rows, B), whose columns are sparse; G = P A up to scale and order.
B - 1 rows of P where column i of G is zero are orthogonal to column i of A. Rows are drawn at random: where half of G
is zero, a draw hits one of the columns about B times in 2^(B - 1).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.attacks.guess import DoesNotApply

DRAWS = 2048
"""Subsets of rows in one go, so that memory stays small."""

INDEPENDENT = 1e-3
"""What a unit vector must have outside of the span of others to count as independent of them."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How long to look for sparse columns, and what counts as zero.

    draws: subsets of B - 1 rows at most; 2^B times a few suffice while half of the neurons are on.
    rank_tolerance: singular values below this share of the largest are noise; zero: entries of P a below this share
    of its largest are zeros; sharp: rows whose least singular value is below this share of the largest are too close to
    dependent for their null vector. None: 1e-10, 1e-7, 1e-6 for float64 payloads, 1e-6, 2e-4, 3e-2 for shorter ones.
    """

    draws: int = 100_000
    rank_tolerance: float | None = None
    zero: float | None = None
    sharp: float | None = None

    def at(self, dtype: torch.dtype) -> "Search":
        """The same with the tolerances of a payload's dtype in place of None."""
        rank, zero, sharp = (1e-10, 1e-7, 1e-6) if dtype == torch.float64 else (1e-6, 2e-4, 3e-2)
        return Search(
            draws=self.draws,
            rank_tolerance=rank if self.rank_tolerance is None else self.rank_tolerance,
            zero=zero if self.zero is None else self.zero,
            sharp=sharp if self.sharp is None else self.sharp,
        )


def sparse_columns(
    P: Float[Tensor, "rows batch"],
    generator: torch.Generator,
    search: Search,
    accept: Callable[[Float[Tensor, "batch batch"]], bool] = lambda A: True,
) -> Float[Tensor, "batch batch"]:
    """A, whose columns make P A as sparse as ReLU made G, up to order and scale.

    Sums of two columns have zeros, too, where both examples are off, but mostly fewer than either, so that the sparsest
    independent columns are those of G: greedy search finds them (linear independence is a matroid). Whenever as many
    draws again have brought nothing sparser, ``accept`` is called; draws go on until it returns True. After the last
    draw it is called once more, and A is returned in any case.
    Raises DoesNotApply where a column has no more zeros than chance.
    """
    batch = P.shape[1]
    norms = P.norm(dim=1)
    live = P[norms > (search.zero or 0.0) * norms.max()]
    best, total, needed = P.new_zeros(0, batch), 0, 2 * DRAWS
    for drawn in range(DRAWS, max(DRAWS, search.draws) + 1, DRAWS):
        picks = torch.rand(DRAWS, len(live), generator=generator).topk(batch - 1).indices
        best, zeros = _sparsest(live, torch.cat([best, _null_vectors(live[picks], search)]), search)
        if int(zeros.sum()) > total:
            total, needed = int(zeros.sum()), max(needed, 2 * drawn)
        sparse = len(best) == batch and (batch == 1 or int(zeros.sum(1).min()) >= batch)
        if drawn < needed or not sparse:
            continue
        if accept(A := _refined(live, zeros)):
            return A
        needed = 2 * drawn
    if sparse:
        accept(A := _refined(live, zeros))
        return A
    raise DoesNotApply(
        f"no {batch} sparse columns in {drawn} draws: another activation than ReLU, too few neurons that tell the "
        "examples apart, or too large a batch"
    )


def _refined(P: Float[Tensor, "rows batch"], zeros: Bool[Tensor, "batch rows"]) -> Float[Tensor, "batch batch"]:
    """Columns of A from all rows where each is zero, instead of the B - 1 that found it."""
    if P.shape[1] == 1:
        return P.new_ones(1, 1)
    return torch.stack([torch.linalg.svd(P[off])[2][-1] for off in zeros], 1)


def _null_vectors(rows: Float[Tensor, "draws fewer batch"], search: Search) -> Float[Tensor, "k batch"]:
    """The vector that is orthogonal to all rows of a draw, of the draws whose rows are independent."""
    if rows.shape[1] == 0:
        return rows.new_ones(1, 1)
    _, S, Vh = torch.linalg.svd(rows)
    vectors: Tensor = Vh[S[:, -1] > (search.sharp or 0.0) * S[:, 0], -1]
    return vectors


def _sparsest(
    P: Float[Tensor, "rows batch"], directions: Float[Tensor, "k batch"], search: Search
) -> tuple[Float[Tensor, "independent batch"], Bool[Tensor, "independent rows"]]:
    """Of the directions the independent ones with most zeros in P a, sparsest first, and where these zeros are."""
    response = (directions @ P.mT).abs()
    zeros = response < (search.zero or 0.0) * response.amax(1, keepdim=True)
    order = zeros.sum(1).argsort(descending=True, stable=True)
    left = directions[order]
    chosen: list[int] = []
    while len(chosen) < P.shape[1]:
        new = (left.norm(dim=1) > INDEPENDENT).nonzero().flatten()
        if not len(new):
            break
        chosen.append(int(order[new[0]]))
        unit = left[new[0]] / left[new[0]].norm()
        left = left - torch.outer(left @ unit, unit)
    return directions[chosen], zeros[chosen]
