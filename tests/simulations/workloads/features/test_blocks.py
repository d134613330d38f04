"""Products in blocks: the bits of a row are its own."""

import pytest
import torch
from torch import Tensor

from fedlsg.simulations.workloads.features.blocks import BLOCK_ROWS, Product


def matrix(d: int, k: int) -> Tensor:
    return torch.randn(d, k, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("d", "k"), [(3, 1), (65, 40), (256, 256), (1025, 33)])
def test_bits_of_a_row_depend_on_no_other_row_and_no_place(d, k):
    product = Product(matrix(d, k))
    x = torch.randn(2 * BLOCK_ROWS + 5, d, generator=torch.Generator().manual_seed(1))
    whole = product(x)
    torch.testing.assert_close(whole, x @ matrix(d, k), atol=1e-4, rtol=1e-4)
    assert product.rows == BLOCK_ROWS
    for start in (1, 7, BLOCK_ROWS, BLOCK_ROWS + 3):
        assert product(x[start:]).equal(whole[start:])
    assert product(x[:1]).equal(whole[:1])
    assert product(x * (torch.arange(len(x)) == 9).view(-1, 1))[9].equal(whole[9])


class Mixing(Product):
    """A library that adds a little of a row's neighbour."""

    def _of_block(self, block: Tensor) -> Tensor:
        return super()._of_block(block) + 1e-6 * block.roll(1, 0).sum(1, keepdim=True)


class Uneven(Product):
    """A library that rounds the first row of a block in another way."""

    def _of_block(self, block: Tensor) -> Tensor:
        found = super()._of_block(block)
        found[0] *= 1 + 1e-6 * (len(block) > 1)
        return found


@pytest.mark.parametrize("planted", [Mixing, Uneven])
def test_where_rows_are_not_kept_apart_they_are_multiplied_one_by_one(planted):
    assert planted(matrix(40, 12)).rows == 1
