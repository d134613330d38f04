"""The prior of public images: the Gaussian by its dense formula, and of images of any size."""

import math

import pytest
import torch
from torch.testing import assert_close

from fedlsg.attacks.inversion.prior import COVARIANCE_SHRINKAGE, prior_from, surprise


def made(count: int, *shape: int) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("count", [6, 40], ids=["fewer images than pixels", "more"])
def test_the_spread_is_the_inverse_of_the_shrunk_covariance(count):
    """Its formula as a matrix, by hand; a spread without the shrinkage is another one."""
    images = made(count, 1, 3, 4)
    prior = prior_from(images, low=0.0, high=1.0)
    off = (images - images.mean(0)).double().flatten(1)
    covariance = off.mT @ off / count
    level = covariance.diagonal().mean()
    eye = torch.eye(12, dtype=torch.float64)
    dense = torch.linalg.inv(
        (1 - COVARIANCE_SHRINKAGE) * covariance + COVARIANCE_SHRINKAGE * level * eye
    )
    assert_close(prior.spread.precision, dense)
    tried = made(5, 1, 3, 4).double()
    step = (tried - prior.mean).flatten(1)
    assert_close(surprise(prior, tried, prior.mean), ((step @ dense) * step).sum(1) / 2)
    assert not torch.allclose(prior.spread.precision, torch.linalg.pinv(covariance))


def test_a_prior_of_large_images_holds_no_more_than_the_images():
    """d^2 numbers of 224 pixels a side would be 181 GB, and the allocation would fail."""
    images = made(4, 3, 224, 224)
    prior = prior_from(images, torch.tensor([0, 0, 1, 1]), low=0.0, high=1.0)
    held = [value for value in vars(prior.spread).values() if isinstance(value, torch.Tensor)]
    assert sum(value.numel() for value in held) <= images.numel()
    expected = prior.expected(2, torch.tensor([0, 0]))
    near, far = (surprise(prior, one, expected) for one in (images[:2], images[:2].flip(-1)))
    assert bool((near < far).all())
    assert math.isfinite(float(far.sum()))


def test_images_that_do_not_differ_say_nothing():
    with pytest.raises(ValueError, match="expected public images that differ"):
        prior_from(torch.ones(3, 1, 2, 2), low=0.0, high=1.0)
