"""Products with large matrices are computed in blocks of rows: a block reads the matrix once.

Guarantee: the bits of a row of the product depend on that row and the matrix alone, neither on the
other rows of its block nor on its place there. Every block has the same shape, because a short one
is filled with zeros. So a library adds up the numbers of each row in the same order.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

BLOCK_ROWS = 32
"""Rows of a block."""
LARGE = 1e18
"""If rows were mixed, a sum with this number would lose all others."""


class Product:
    """``product(x)`` = x @ matrix for x (rows, d) and ``matrix`` (d, k), float32 on the CPU.

    The constructor tests whether this machine's library computes rows independently. If it does
    not, rows are multiplied one by one.
    """

    def __init__(self, matrix: Float[Tensor, "d k"]) -> None:
        self.matrix, self.rows = matrix, BLOCK_ROWS
        if not self._is_independent():
            self.rows = 1

    def _is_independent(self) -> bool:
        """Whether a row has the same product among equal rows and next to rows of LARGE numbers."""
        generator = torch.Generator().manual_seed(0)
        row = torch.randn(1, len(self.matrix), generator=generator)
        equal = self(row.expand(BLOCK_ROWS, -1))
        mixed = torch.full((BLOCK_ROWS, len(self.matrix)), LARGE)
        mixed[::2] = row
        return bool((equal == equal[0]).all() and (self(mixed)[::2] == equal[0]).all())

    def __call__(self, x: Float[Tensor, "rows d"]) -> Float[Tensor, "rows k"]:
        short = -len(x) % self.rows
        blocks = F.pad(x, (0, 0, 0, short)).split(self.rows)
        return torch.cat([self._of_block(block) for block in blocks])[: len(x)]

    def _of_block(self, block: Float[Tensor, "rows d"]) -> Float[Tensor, "rows k"]:
        """The product of one block."""
        return block @ self.matrix
