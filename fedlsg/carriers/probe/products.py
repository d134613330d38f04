"""The second moments of one layer from a few examples, by the cheaper of two ways.

Symbols: T positions of one example, X (T, n) and G (T, m) the factors of its gradient dW = G^T X, w its weight.
    dense   dW is formed:        A = sum w dW^T dW             B = sum w dW dW^T
    gram    dW is never formed:  A = sum w X^T (G G^T) X       B = sum w G^T (X X^T) G      |dW|^2 = <G G^T, X X^T>
Multiplications of an example: m n (T + m + n) in the first way, T (2 T (m + n) + m^2 + n^2) in the second. Their speeds
are alike on a CPU (100 to 200 GFLOP/s), so that the smaller count decides.
The weight needs the example's norm in all layers. So each way first gives squared norms, then the sums.
"""

import itertools
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.gradients import Factors

CANCELLED = 1e-3
"""Lower bound on |dW| as a share of |G| |X|: below that the Gram matrices in float32 have no digits of it left."""
BLOCKS, BLOCKED_FROM = 4, 256
"""A symmetric matrix of so many rows is computed in so many block rows, from the diagonal on: 5/8 of the products."""

SPARSE = 0.75
"""Share of positions with a gradient from which selecting them costs more than it saves."""


class Examples:
    """What is kept of a microbatch: tensors, examples first."""

    def of(self, chosen: Bool[Tensor, " batch"]) -> Self:
        """The chosen examples."""
        return type(self)(*(tensor[chosen] for tensor in vars(self).values()))


@dataclass(frozen=True, eq=False)
class Dense(Examples):
    """Examples whose gradients are formed."""

    each: Float[Tensor, "batch m n"]

    def squares(self) -> Float[Tensor, " batch"]:
        """Squared norms, in float64."""
        norms: Tensor = torch.linalg.vector_norm(self.each.flatten(1), dim=1, dtype=torch.float64)
        return norms.square()

    def sums(self, weights: Float[Tensor, " batch"]) -> tuple[Float[Tensor, "n n"], Float[Tensor, "m m"]]:
        """A and B."""
        scaled = self.each * weights.view(-1, 1, 1)
        rows, columns = (t.flatten(0, 1) for t in (scaled, scaled.mT))
        return symmetric_product(rows, self.each.flatten(0, 1)), symmetric_product(columns, self.each.mT.flatten(0, 1))


@dataclass(frozen=True, eq=False)
class Gram(Examples):
    """Examples as their factors, and the inner products of these."""

    G: Float[Tensor, "batch t m"]
    X: Float[Tensor, "batch t n"]
    GG: Float[Tensor, "batch t t"]
    XX: Float[Tensor, "batch t t"]

    def squares(self) -> Float[Tensor, " batch"]:
        """Squared norms, in float64, at least CANCELLED^2 |G|^2 |X|^2."""
        lengths = [K.diagonal(dim1=1, dim2=2).double().sum(1) for K in (self.GG, self.XX)]
        squares: Tensor = torch.linalg.vecdot(self.GG.flatten(1).double(), self.XX.flatten(1).double())
        return torch.maximum(squares, CANCELLED**2 * lengths[0] * lengths[1])

    def sums(self, weights: Float[Tensor, " batch"]) -> tuple[Float[Tensor, "n n"], Float[Tensor, "m m"]]:
        """A and B."""
        pairs = ((self.GG, self.X), (self.XX, self.G))
        reached = self.GG.diagonal(dim1=1, dim2=2).flatten() != 0
        A, B = (weighted(K * weights.view(-1, 1, 1), F, reached) for K, F in pairs)
        return A, B


Kept = Dense | Gram


def keep(factors: Factors) -> Kept:
    """What the sums need of a few examples, in float32, by the cheaper way."""
    T, m, n = factors.sizes
    if not factors.is_product or not gram_is_cheaper(T, m, n):
        return Dense(factors.dense().float())
    G, X = (t.float().contiguous() for t in factors.rows())
    return Gram(G, X, inner_products(G), inner_products(X))


def gram_is_cheaper(T: int, m: int, n: int) -> bool:
    """Whether the second way needs fewer multiplications."""
    return T * (2 * T * (m + n) + m * m + n * n) < m * n * (T + m + n)


def values(factors: Factors) -> int:
    """Numbers that are kept of one example."""
    T, m, n = factors.sizes
    gram = factors.is_product and gram_is_cheaper(T, m, n)
    return T * (m + n) + (2 * T * T if gram else m * n)


def inner_products(F: Float[Tensor, "batch t k"]) -> Float[Tensor, "batch t t"]:
    """F F^T of every example."""
    return torch.linalg.vecdot(F, F).unsqueeze(2) if F.shape[1] == 1 else F @ F.mT


def weighted(
    K: Float[Tensor, "batch t t"], F: Float[Tensor, "batch t k"], reached: Bool[Tensor, " batch_t"]
) -> Float[Tensor, "k k"]:
    """The sum of F^T K F over the examples, K symmetric.

    Positions that no gradient has ``reached``, such as padding, have a zero row in K or in F, and are left out.
    """
    KF = K * F if F.shape[1] == 1 else K @ F
    rows, others = KF.flatten(0, 1), F.flatten(0, 1)
    if reached.count_nonzero() < SPARSE * len(reached):
        rows, others = rows[reached], others[reached]
    return symmetric_product(rows, others)


def symmetric_product(Y: Float[Tensor, "rows k"], X: Float[Tensor, "rows k"]) -> Float[Tensor, "k k"]:
    """Y^T X, which the caller knows to be symmetric: only the blocks above the diagonal are computed."""
    size = X.shape[1]
    if size < BLOCKED_FROM:
        return Y.mT @ X
    edges = [size * i // BLOCKS for i in range(BLOCKS + 1)]
    product = X.new_empty(size, size)
    for start, stop in itertools.pairwise(edges):
        part = Y[:, start:stop].mT @ X[:, start:]
        product[start:stop, start:] = part
        product[stop:, start:stop] = part[:, stop - start :].mT
    return product
