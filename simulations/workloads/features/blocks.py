"""Products with large matrices, in blocks of BLOCK_ROWS rows: the matrix is read once for a block.

Guarantee: the bits of a row of the product depend on that row and the matrix alone, neither on the
other rows of its block nor on its place there. Every block has the same shape, a short one is
filled with zeros, so a library adds up each row's numbers in one order.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

BLOCK_ROWS = 32
LARGE = 1e18
"""A number that no sum forgets, where rows are mixed."""


class Product:
    """``product(x)`` = x @ matrix for x (rows, d) and ``matrix`` (d, k), float32 on the CPU.

    Whether this machine's library keeps rows apart is tried once, with equal rows and with LARGE
    ones next to them. Where it does not, rows are multiplied one by one.
    """

    def __init__(self, matrix: Float[Tensor, "d k"]) -> None:
        self.matrix, self.rows = matrix, BLOCK_ROWS
        if not self._keeps_apart():
            self.rows = 1

    def _keeps_apart(self) -> bool:
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
        return block @ self.matrix
