"""Gradients as the rows that occur: norms and sums of the dense ones, without their memory."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedlsg.gradients.formulas.rows import RowGradients, product
from fedlsg.gradients.formulas.tied import TiedGradients, tied
from fedlsg.privacy import Mechanism, clipped_sum


def rows(dtype: torch.dtype = torch.float64, padding: int | None = None) -> RowGradients:
    torch.manual_seed(0)
    table = nn.Embedding(11, 3, padding_idx=padding, dtype=dtype)
    g = torch.randn(5, 7, 3, dtype=dtype)
    return RowGradients(table, g, torch.randint(4, (5, 7)), g._version, padding)


@pytest.mark.parametrize("padding", [None, 2])
def test_norms_and_sums_are_those_of_the_dense_gradients(padding):
    gradients = rows(padding=padding)
    dense = torch.zeros(5, 11, 3, dtype=torch.float64)
    for b in range(5):
        for t in range(7):
            if gradients.x[b, t] != padding:
                dense[b, gradients.x[b, t]] += gradients.g[b, t]
    torch.testing.assert_close(gradients.dense(), dense)
    torch.testing.assert_close(gradients.dense(torch.tensor([0, 2])), dense[:, :, [0, 2]])
    torch.testing.assert_close(gradients.norms(), dense.flatten(1).norm(dim=1))
    factors = torch.rand(5, dtype=torch.float64)
    finite = torch.tensor([True, True, False, True, True])
    wanted = torch.einsum("b,bvd->vd", factors * finite, dense).flatten()
    torch.testing.assert_close(gradients.weighted_sum(factors, finite), wanted)
    torch.testing.assert_close(gradients.first(2).norms(), gradients.norms()[:2])


def test_rows_that_cancel_are_rounded_before_the_norm_is_taken():
    """The norm is that of the very numbers in the sum: equal tokens whose gradients cancel leave rounding only once."""
    gradients = rows(torch.float32)
    gradients.g[:, 1::2] = -gradients.g[:, :-1:2] * (1 + 1e-6)
    gradients.x[:] = 1
    given = RowGradients(gradients.layer, gradients.g, gradients.x, gradients.g._version)
    summed = given.weighted_sum(torch.ones(5), torch.ones(5, dtype=torch.bool))
    torch.testing.assert_close(summed, given.dense().double().sum(0).flatten(), rtol=1e-12, atol=0)
    torch.testing.assert_close(given.norms(), given.dense().double().flatten(1).norm(dim=1), rtol=1e-12, atol=0)


def test_an_example_that_is_not_finite_adds_nothing():
    gradients = rows()
    gradients.g[3, 2] = torch.inf
    given = RowGradients(gradients.layer, gradients.g, gradients.x, gradients.g._version)
    mechanism = Mechanism(kind="clip-only", clip_norm=0.1)
    others = [0, 1, 2, 4]
    rest = replace(given, g=given.g[others], x=given.x[others], version=0)
    torch.testing.assert_close(clipped_sum([given], mechanism), clipped_sum([rest], mechanism))


def both(dtype: torch.dtype = torch.float64) -> TiedGradients:
    table = rows(dtype, padding=2)
    g, x = torch.randn(5, 6, 11, dtype=dtype), torch.randn(5, 6, 3, dtype=dtype)
    return tied(product(table.layer, g, x), table)


def test_a_shared_weight_is_one_gradient():
    """Norms of the sum of both uses: their squares must not be added."""
    gradients = both()
    dense = gradients.linear.dense() + gradients.table.dense()
    wanted = dense.flatten(1).norm(dim=1)
    torch.testing.assert_close(gradients.norms(), wanted)
    apart = (gradients.linear.norms().square() + gradients.table.norms().square()).sqrt()
    assert (apart / wanted - 1).abs().max() > 1e-2, "negative control"
    factors, finite = torch.rand(5, dtype=torch.float64), torch.tensor([True, True, False, True, True])
    wanted = torch.einsum("b,bvd->vd", factors * finite, dense).flatten()
    torch.testing.assert_close(gradients.weighted_sum(factors, finite), wanted)
    torch.testing.assert_close(gradients.part(1, 3).norms(), gradients.norms()[1:3])


def test_uses_that_cancel_have_a_norm_that_bounds_the_sum():
    gradients = both(torch.float32)
    g, x = gradients.g, gradients.x
    table = replace(
        gradients.table, g=-(g.mT @ x)[:, :7].float(), x=torch.arange(7).expand(5, 7), padding=None, version=0
    )
    g[:, :, 7:] = 0
    found = tied(product(gradients.layer, g, x), table)
    lengths = (found.linear.dense().double() + found.table.dense().double()).flatten(1).norm(dim=1)
    assert (found.norms() >= lengths).all()
    assert (found.norms() >= 1e-3 * found.table.norms()).all()
