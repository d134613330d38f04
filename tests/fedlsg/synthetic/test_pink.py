"""Pink noise has the spectrum, the correlation and the range that it promises."""

import pytest
import torch

from fedlsg.synthetic import pink
from tests.fedlsg.synthetic.spectra import slope


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1.5])
def test_power_falls_by_twice_the_exponent(alpha):
    assert abs(slope(pink(300, (3, 32, 32), generator(), alpha=alpha)) + 2 * alpha) < 0.15
