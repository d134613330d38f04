"""Ghost clipping of a weight that an embedding and a linear layer share, as in a language model.

Symbols: P_b = g_b^T x_b the gradient of the linear use, R_b that of the table (few rows), both (V, d). Neither P_b,
which has no zeros, nor the sum P_b + R_b is formed for an example:
    |P + R|^2 = |P|^2 + |R|^2 + 2 <P, R>        <P, R> = sum over rows v of R of <R[v], sum_t g_t[v] x_t>
The rounding that may be lost in <P, R> is at most (d + T) 2^-52 |g| |x| |R|, because the rows of R are distinct. It is
added, as ``GhostGradients`` adds that of |P|^2.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.gradients.formulas.ghost import CANCELLED, GhostGradients
from fedlsg.gradients.formulas.rows import ProductGradients, RowGradients


@dataclass(frozen=True, eq=False)
class TiedGradients(GhostGradients):
    """``GhostGradients`` of P + R; g, x and version are those of P."""

    linear: ProductGradients
    table: RowGradients

    def norms(self) -> Float[Tensor, " batch"]:
        """An upper bound on the norm of what each example adds, as for all ``GhostGradients``."""
        linear, table = self.linear.norms(), self.table.norms()
        lengths = [torch.linalg.vector_norm(t.flatten(1), dim=1, dtype=torch.float64) for t in (self.g, self.x)]
        positions, eps = lengths[0] * lengths[1], torch.finfo(torch.float64).eps
        lost = 2 * (self.x.shape[-1] + self.g[0].numel() // self.g.shape[-1]) * eps * positions * table
        bound: Tensor = (linear.square() + table.square() + 2 * self.products() + lost).clamp(min=0).sqrt()
        bound = bound + torch.finfo(self.dtype).eps * positions
        return torch.maximum(bound, CANCELLED * (positions + table))

    def products(self) -> Float[Tensor, " batch"]:
        """<P_b, R_b> of each example, in float64."""
        example, number, rows = self.table.rows
        g, x = (t.reshape(len(t), -1, t.shape[-1]) for t in (self.g, self.x))
        ends = torch.searchsorted(example, torch.arange(len(g) + 1, device=example.device)).tolist()
        found = rows.new_zeros(len(g), dtype=torch.float64)
        for b, (start, end) in enumerate(pairwise(ends)):  # rows are in the order of their examples
            factors = g[b][:, number[start:end]].double()
            found[b] = (factors * (x[b].double() @ rows[start:end].double().mT)).sum()
        return found

    def weighted_sum(self, factors: Float[Tensor, " batch"], finite: Bool[Tensor, " batch"]) -> Float[Tensor, " size"]:
        """sum_b f_b (P_b + R_b) over the examples that are ``finite``; in float64."""
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
