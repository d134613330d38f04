"""The factors of one weight's gradients, for callers that need products of the gradients and not each of them.

Symbols: T positions (tokens or pixels) of one example, X (T, n) its inputs (patches, for a convolution), G (T, m) the
gradients at its outputs. The gradient of the example is dW = G^T X (m, n), a kernel flattened.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.gradients.formulas.conv import output_patches
from fedlsg.gradients.formulas.layers import CarriedGradients, LinearGradients, StandardizedConvGradients, sequence


@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """Input x and output gradient g of one layer in one pass over a batch. Not private.

    ``version``: the in-place version of g, which belongs to autograd.
    """

    formulas: CarriedGradients
    g: Tensor
    x: Tensor
    version: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(T, m, n)."""
        m, n = self.formulas.layer.weight.flatten(1).shape
        return self.g[0].numel() // m, m, n

    @property
    def is_product(self) -> bool:
        """Whether dW is G^T X. A standardized convolution pulls that back to its stored weight."""
        return not isinstance(self.formulas, StandardizedConvGradients)

    def dense(self) -> Float[Tensor, "batch m n"]:
        """dW of every example."""
        assert self.g._version == self.version  # autograd's tensor was not written to since
        return self.formulas.weight(self.g, self.x).flatten(2)

    def __add__(self, other: "Factors") -> "Factors":
        """The factors of the sum: the positions of both. Of linear layers, whose positions are a product's."""
        g, x = (torch.cat([sequence(t) for t in pair], 1) for pair in ((self.g, other.g), (self.x, other.x)))
        return Factors(formulas=self.formulas, g=g, x=x, version=g._version)

    def rows(self) -> tuple[Float[Tensor, "batch t m"], Float[Tensor, "batch t n"]]:
        """G and X of every example; dW is their product only where ``is_product``."""
        assert self.g._version == self.version
        if isinstance(self.formulas, LinearGradients):
            return sequence(self.g), sequence(self.x)
        patches = output_patches(self.x, self.formulas.layer, self.g.shape[2:])
        return self.g.flatten(2).mT, patches.movedim((4, 5), (1, 2)).flatten(1, 2).flatten(2)
