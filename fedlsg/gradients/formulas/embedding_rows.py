"""Gradients that are not formed for each example: of a table of rows, of a product, and of both.

Table (an embedding). Symbols: W (V, d) table; ids (B, T) row numbers of each example; g (B, T, d)
gradient at the rows that were read. The gradient of example b is zero except in the rows that it
read:
    G_b[v] = sum over t with ids[b, t] = v of g[b, t]
So at most T of V rows are stored for an example, and the (B, V, d) gradient is never formed.
Privacy: equal rows are added in float64 and rounded once to the type of W. The norms and the sum
read these very numbers, so nothing cancels later, and a clipped gradient has a norm of at most C.

Both: a weight that an embedding and a linear layer share, as in a language model. Symbols: P_b =
g_b^T x_b the gradient of the linear use, R_b that of the table (few rows), both (V, d). Neither
P_b, which has no zeros, nor the sum P_b + R_b is formed for an example:
    |P + R|^2 = |P|^2 + |R|^2 + 2 <P, R>
    <P, R> = sum over rows v of R of <R[v], sum_t g_t[v] x_t>
The rounding that may be lost in <P, R> is at most (d + T) 2^-52 |g| |x| |R|, because the rows of R
are distinct. It is added, as ``GhostGradients`` adds that of |P|^2.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedlsg.gradients.formulas.ghost import (
    CANCELLED,
    GhostGradients,
    PerExample,
    lengths,
    product_is_cheaper,
    worth_it,
)


@dataclass(frozen=True, eq=False)
class RowGradients(GhostGradients):
    """``GhostGradients`` of an embedding.

    x: row numbers (B, *t).
    g: gradient at the rows that were read (B, *t, d).
    padding: number of a row without a gradient; None if every row has one.
    """

    padding: int | None = None

    @cached_property
    def rows(self) -> tuple[Int[Tensor, " u"], Int[Tensor, " u"], Float[Tensor, "u d"]]:
        """Example, row number and gradient of every row that occurs in an example."""
        assert self.g._version == self.version  # autograd's tensor was not written to since
        size = self.layer.weight.shape[0]
        ids, g = self.x.flatten(), self.g.reshape(-1, self.g.shape[-1])
        places = self.x[0].numel() if len(self.x) else 0
        example = torch.arange(len(self.x), device=ids.device).repeat_interleave(places)
        if self.padding is not None:
            real = ids != self.padding
            ids, example, g = ids[real], example[real], g[real]
        keys, place = torch.unique(example * size + ids, return_inverse=True)
        total = g.new_zeros(len(keys), g.shape[1], dtype=torch.float64)
        total.index_add_(0, place, g.double())
        return keys // size, keys % size, total.to(self.dtype)

    def norms(self) -> PerExample:
        """Norm of each example's gradient in float64, of the very rows that are summed."""
        example, _, rows = self.rows
        squares = rows.double().square().sum(1)
        total = squares.new_zeros(len(self.x)).index_add_(0, example, squares)
        return total.sqrt()

    def weighted_sum(
        self, factors: PerExample, finite: Bool[Tensor, " batch"] | None
    ) -> Float[Tensor, " size"]:
        """sum_b f_b G_b over the examples that are ``finite`` (all if it is None), in float64.

        Flattened in the order of the weight.
        """
        example, number, rows = self.rows
        if finite is not None:
            kept = finite[example]
            example, number, rows = example[kept], number[kept], rows[kept]
        scaled = rows.double() * factors.double()[example].unsqueeze(1)
        total = scaled.new_zeros(self.layer.weight.shape).index_add_(0, number, scaled)
        return total.flatten()

    cheaper: ClassVar[bool] = True
    """Whether ghost clipping is cheaper than one gradient for each example."""

    def dense(self, columns: Int[Tensor, " c"] | None = None) -> Float[Tensor, "batch rows d"]:
        """The gradients with all rows, zeros included; ``columns`` only, if they are given."""
        if columns is not None:
            of_columns = self.g.index_select(-1, columns.to(self.g.device))
            return replace(self, g=of_columns).dense()
        example, number, rows = self.rows
        out = rows.new_zeros(len(self.x), self.layer.weight.shape[0], self.g.shape[-1])
        out[example, number] = rows
        return out


@dataclass(frozen=True, eq=False)
class ProductGradients(GhostGradients):
    """``GhostGradients`` of a product of any two factors: G_b = g_b^T x_b.

    g, x: the factors, (B, *t, m) and (B, *t, n). For y = x W^T they are as their names say. For
        y = x W, as in GPT-2, they have changed places.
    layer: any object with the weight (m, n).
    x_version: in-place version of x. Both factors must stay as they are.
    """

    x_version: int = 0

    @property
    def cheaper(self) -> bool:
        """Whether ghost clipping is cheaper than one gradient for each example."""
        return worth_it(self.layer.weight) and product_is_cheaper(self.layer.weight, self.g)

    def weighted_sum(
        self, factors: PerExample, finite: Bool[Tensor, " batch"] | None
    ) -> Float[Tensor, " size"]:
        """As for all ``GhostGradients``."""
        assert self.x._version == self.x_version
        return super().weighted_sum(factors, finite)

    def dense(self, columns: Int[Tensor, " c"] | None = None) -> Float[Tensor, "batch m n"]:
        """The gradients; of ``columns`` only, if they are given."""
        x = self.x if columns is None else self.x.index_select(-1, columns.to(self.x.device))
        return (by_position(self.g).mT @ by_position(x)).to(self.dtype)


def by_position(factor: Float[Tensor, "batch *t k"]) -> Float[Tensor, "batch positions k"]:
    """All positions of an example in one dimension."""
    return factor.reshape(len(factor), -1, factor.shape[-1])


def product(layer: Any, g: Tensor, x: Tensor) -> ProductGradients:
    """The gradients g_b^T x_b of ``layer.weight``."""
    return ProductGradients(layer, g, x, g._version, x._version)


Lazy = RowGradients | ProductGradients
"""Gradients of a table or a product that need not be formed for each example."""


@dataclass(frozen=True, eq=False)
class TiedGradients(GhostGradients):
    """``GhostGradients`` of P + R.

    g, x, version: those of P.
    linear: P.
    table: R.
    """

    linear: ProductGradients
    table: RowGradients

    def norms(self) -> PerExample:
        """An upper bound on the norm of what each example adds, as for all ``GhostGradients``."""
        P, R = self.linear.norms(), self.table.norms()
        product = lengths(self.g) * lengths(self.x)  # |g| |x|
        positions = self.g[0].numel() // self.g.shape[-1]  # T
        eps = torch.finfo(torch.float64).eps
        lost = 2 * (self.x.shape[-1] + positions) * eps * product * R
        squares = P.square() + R.square() + 2 * self.products() + lost
        bound = squares.clamp(min=0).sqrt() + torch.finfo(self.dtype).eps * product
        return torch.maximum(bound, CANCELLED * (product + R))

    def products(self) -> PerExample:
        """<P_b, R_b> of each example, in float64."""
        example, number, rows = self.table.rows
        g, x = by_position(self.g), by_position(self.x)
        examples = torch.arange(len(g) + 1, device=example.device)
        ends = torch.searchsorted(example, examples).tolist()
        products = rows.new_zeros(len(g), dtype=torch.float64)
        for b, (start, end) in enumerate(pairwise(ends)):  # rows are in the order of their examples
            g_v = g[b][:, number[start:end]].double()  # (T, rows v of R)
            x_R = x[b].double() @ rows[start:end].double().mT
            products[b] = (g_v * x_R).sum()
        return products

    def weighted_sum(
        self, factors: PerExample, finite: Bool[Tensor, " batch"] | None
    ) -> Float[Tensor, " size"]:
        """sum_b f_b (P_b + R_b) over the examples that are ``finite``, or all; in float64."""
        return self.linear.weighted_sum(factors, finite) + self.table.weighted_sum(factors, finite)

    def part(self, start: int, stop: int) -> "TiedGradients":
        """The ghost gradients of the examples from ``start`` to ``stop``."""
        linear, table = self.linear.part(start, stop), self.table.part(start, stop)
        assert isinstance(linear, ProductGradients)
        assert isinstance(table, RowGradients)
        return replace(self, g=linear.g, x=linear.x, linear=linear, table=table)


def tied(linear: ProductGradients, table: RowGradients) -> TiedGradients:
    """The gradients of both uses together."""
    return TiedGradients(linear.layer, linear.g, linear.x, linear.version, linear, table)
