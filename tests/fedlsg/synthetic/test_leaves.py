"""Dead leaves have the sizes, the cover and the scale law of their model, and equal bits for equal seeds."""

import hashlib

import pytest
import torch
from torch import Tensor

from fedlsg.synthetic import CHROMA, _covered, _paint, dead_leaves, smallest, squared_radii
from tests.fedlsg.synthetic.spectra import slope


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 20, 48), (3, 1, 1)])
def test_images_have_the_shape_and_range(shape):
    images = dead_leaves(5, shape, generator())
    assert images.shape == (5, *shape)
    assert images.dtype == torch.float32
    assert 0 <= images.min() <= images.max() <= 1
    assert len({image.numpy().tobytes() for image in images}) == 5


def test_equal_generators_give_equal_images_and_others_do_not():
    assert torch.equal(dead_leaves(3, (3, 16, 16), generator(1)), dead_leaves(3, (3, 16, 16), generator(1)))
    assert not torch.equal(dead_leaves(3, (3, 16, 16), generator(1)), dead_leaves(3, (3, 16, 16), generator(2)))


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


def test_almost_every_pixel_lies_under_a_leaf(monkeypatch):
    """The backing is the colour at place 0: with that alone white, white pixels are bare ones."""
    real = torch.rand

    def rand(*size: int, **how: object) -> Tensor:
        found = real(*size, **how)
        if len(size) == 3:
            found[:] = 0
            found[:, :, 0] = 1
        return found

    monkeypatch.setattr(torch, "rand", rand)
    assert 0 < float(_paint(100, (3, 32, 32), generator()).mean()) < 0.02


def test_a_disc_and_a_square_cover_their_area():
    """pi r^2 and the inscribed square's 2 r^2; the square turned by 45 degrees reaches the disc's edge."""
    centre, limit = torch.tensor([[32.3, 31.6]]), torch.tensor([20.0**2])
    disc, _ = _covered(centre, limit, None, 32, (64, 64))
    assert abs(len(disc) / (torch.pi * 400) - 1) < 0.01
    for turn in (0.0, 0.3, 2**0.5 - 1):
        square, _ = _covered(centre, limit, torch.tensor([turn]), 32, (64, 64))
        assert abs(len(square) / 800 - 1) < 0.03
        assert set(square.tolist()) <= set(disc.tolist())


def test_leaves_hide_what_is_below_and_are_plain():
    """An image has few colours, each of one leaf, and channels share a part of it."""
    images = dead_leaves(200, (3, 32, 32), generator())
    colours = len({tuple(pixel) for pixel in images[0].flatten(1).T.tolist()})
    assert 5 <= colours <= 76
    share = (1 - CHROMA) ** 2 / ((1 - CHROMA) ** 2 + CHROMA**2)
    found = torch.corrcoef(images.transpose(0, 1).flatten(1))
    assert abs(float(found[0, 1]) - share) < 0.05


def test_the_spectrum_falls_as_that_of_photographs():
    """Power about f^-2 (Lee, Mumford and Huang 2001), less steep where pixels end; white noise has 0."""
    images = dead_leaves(300, (1, 32, 32), generator())
    assert -2.6 < slope(images) < -1.8
    assert abs(slope(torch.rand(300, 1, 32, 32, generator=generator()))) < 0.1


@pytest.mark.parametrize(("count", "shape"), [(-1, (3, 8, 8)), (1, (0, 8, 8)), (1, (3, 0, 8))])
def test_empty_shapes_are_refused(count, shape):
    with pytest.raises(ValueError, match="at least one pixel"):
        dead_leaves(count, shape, generator())


def test_no_images_are_an_empty_tensor():
    assert dead_leaves(0, (3, 8, 8), generator()).shape == (0, 3, 8, 8)
