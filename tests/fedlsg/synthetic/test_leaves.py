"""Dead leaves have the sizes, the cover and the scale law of their model, and equal bits for equal seeds."""

import hashlib

import pytest
import torch

from fedlsg.synthetic import dead_leaves, smallest, squared_radii


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 20, 48), (3, 1, 1)])
def test_images_have_the_shape_and_range(shape):
    images = dead_leaves(5, shape, generator())
    assert images.shape == (5, *shape)
    assert images.dtype == torch.float32
    assert 0 <= images.min() <= images.max() <= 1
    assert len({image.numpy().tobytes() for image in images}) == 5


def test_the_bits_are_those_of_every_machine():
    """Golden: uniform draws and IEEE arithmetic alone; a function that rounds otherwise elsewhere would move it."""
    digest = hashlib.sha256(dead_leaves(4, (3, 32, 32), generator(7)).numpy().tobytes()).hexdigest()
    assert digest[:16] == "635f88557849fbed"


def test_radii_follow_the_power_law():
    """P(r > x) = (x^-2 - b^-2) / (a^-2 - b^-2) for a density proportional to r^-3 on a .. b."""
    radii = squared_radii(40_000, 32, generator()).sqrt()
    a, b = smallest(32), 16.0
    assert a <= radii.min() <= radii.max() <= b
    for x in (4.0, 6.0, 10.0):
        expected = (x**-2 - b**-2) / (a**-2 - b**-2)
        assert abs(float((radii > x).double().mean()) - expected) < 0.01
