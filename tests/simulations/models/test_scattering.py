"""Scattering features against kymatio's, H-CNN on them, and planted mistakes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.simulations.models.scattering import Scattering2d

# Made once by kymatio 0.3.0 on numpy 1.26 and scipy 1.11: ``Scattering2D(J=2, shape=(side,
# side))(image(side))``, the features (0, 0), (2, 5) and the last one of some coefficients. It
# computes its filters in complex64.
KYMATIO = {
    32: {
        0: (1.6861929, -0.5869631, -0.1403861),
        1: (0.0784208, 0.2028802, 0.109477),
        4: (0.1574259, 0.0888531, 0.1095843),
        8: (0.0865456, 0.4630677, 0.3357033),
        9: (0.1294022, 0.0441552, 0.0875099),
        13: (0.187361, 0.1238798, 0.1684825),
        16: (0.146909, 0.221279, 0.0891178),
        17: (0.0187365, 0.0046374, 0.0075308),
        30: (0.0059801, 0.0010788, 0.0024968),
        80: (0.0094262, 0.0305881, 0.095047),
    },
    28: {
        0: (1.6859118, -0.5869639, 0.9152877),
        1: (0.0787526, 0.202877, 0.1705432),
        8: (0.0851226, 0.4630681, 0.5476992),
        13: (0.1940366, 0.1246474, 0.1465075),
        16: (0.1302104, 0.221248, 0.122063),
        30: (0.0065636, 0.0012619, 0.004184),
        80: (0.0127859, 0.0302839, 0.0741581),
    },
}


def image(side: int) -> Tensor:
    """(side, side): a chirp, a grating and an edge."""
    i, j = torch.meshgrid(*[torch.arange(side, dtype=torch.float64)] * 2, indexing="ij")
    return (0.3 * i + 0.011 * i * j).sin() + (0.05 * j * j).cos() + (i > j)


def order(coefficient: int) -> int:
    """How many wavelets a coefficient went through."""
    return 0 if coefficient == 0 else 1 if coefficient <= 16 else 2


def furthest_from_kymatio(side: int) -> float:
    """Largest difference, after kymatio's 3.1415 in the place of pi, once a filter, is undone."""
    features = Scattering2d(side).double()(image(side)[None, None])[0]
    at = [(0, 0), (2, 5), (-1, -1)]
    return max(
        abs(float(features[c][place]) - value * (3.1415 / math.pi) ** (order(c) + 1))
        for c, values in KYMATIO[side].items()
        for place, value in zip(at, values, strict=True)
    )


@pytest.mark.parametrize("side", KYMATIO)
def test_features_are_those_of_kymatio(side):
    assert furthest_from_kymatio(side) < 3e-7


@given(seed=st.integers(0, 99), scale=st.floats(0.1, 10), batch=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_positively_homogeneous_and_example_by_example(seed, scale, batch):
    x = torch.randn(
        batch, 1, 12, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    transform = Scattering2d(12).double()
    features = transform(x)
    torch.testing.assert_close(transform(scale * x)[:, 1:], scale * features[:, 1:])
    torch.testing.assert_close(transform(x[-1:]), features[-1:], atol=1e-12, rtol=1e-12)
