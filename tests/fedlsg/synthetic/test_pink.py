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


def test_channels_are_correlated_as_asked():
    for correlation in (0.0, 0.5, 0.9):
        images = pink(500, (3, 16, 16), generator(), correlation=correlation)
        found = torch.corrcoef(images.transpose(0, 1).flatten(1))
        assert abs(float(found[0, 2]) - correlation) < 0.06


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 15, 9), (1, 1, 1)])
def test_images_have_the_shape_and_range(shape):
    images = pink(200, shape, generator())
    assert images.shape == (200, *shape)
    assert images.dtype == torch.float32
    assert 0 <= images.min() <= images.max() <= 1
    assert abs(float(images.mean()) - 0.5) < 0.06


def test_equal_generators_give_equal_images():
    assert torch.equal(pink(3, (3, 8, 8), generator(1)), pink(3, (3, 8, 8), generator(1)))
    assert not torch.equal(pink(3, (3, 8, 8), generator(1)), pink(3, (3, 8, 8), generator(2)))


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="correlation"):
        pink(1, (3, 8, 8), generator(), correlation=1.5)
    with pytest.raises(ValueError, match="at least one pixel"):
        pink(1, (3, 8, 0), generator())
