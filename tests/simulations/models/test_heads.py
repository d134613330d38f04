"""Heads: which fit which features, their sizes, and that private training supports them."""

import pytest

from simulations.models.small import heads

MAPS, VECTOR = (6, 4, 4), (10,)


@pytest.mark.parametrize(
    ("shape", "names"),
    [(VECTOR, ["linear", "mlp"]), (MAPS, ["linear", "mlp", "cnn"]), ((6, 3, 3), ["linear", "mlp", "cnn"])],
)
def test_heads_that_fit(shape, names):
    assert list(heads(shape, 3)) == names
