import pytest
import torch

from fedlsg.attacks.inversion.prior import Prior, blind_guess, prior_from, surprise, total_variation
from fedlsg.attacks.observation import Knowledge

GENERATOR = 0


def public(count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated 1x2x2 images of two classes, around 0 and around 1."""
    generator = torch.Generator().manual_seed(GENERATOR)
    labels = torch.arange(count) % 2
    mix = torch.tensor([[1.0, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.2], [0, 0, 0, 1]], dtype=torch.float64)
    noise = torch.randn(count, 4, generator=generator, dtype=torch.float64) @ mix * 0.1
    return (noise + labels.unsqueeze(1)).reshape(count, 1, 2, 2), labels


def test_bounds_by_channel():
    prior = Prior(shape=(2, 1, 3), low=(-1.0, 0.0), high=(1.0, 5.0))
    low, high = prior.bounds
    assert low[:, 0, 0].tolist() == [-1, 0]
    assert high[:, 0, 2].tolist() == [1, 5]
    assert (prior.span, prior.size) == (5.0, 6)
    assert prior.expected(2)[1, :, 0, 0].tolist() == [0.0, 2.5]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"low": 1.0, "high": 1.0}, "low=1.0"),
        ({"low": (0.0, 0.0)}, "one a channel"),
        ({"mean": torch.zeros(2, 2)}, "mean of shape"),
        ({"precision": torch.eye(3)}, "precision"),
        ({"shape": ()}, "shape"),
    ],
)
def test_what_a_prior_refuses(settings, says):
    with pytest.raises(ValueError, match=says):
        Prior(**{"shape": (1, 2, 2), **settings})


def test_a_prior_of_public_images_is_their_gaussian():
    images, labels = public()
    prior = prior_from(images, labels, low=-1.0, high=2.0, shrinkage=1e-9)
    assert torch.allclose(prior.expected(1, torch.tensor([1])), images[labels == 1].mean(0, keepdim=True))
    flat = (images - prior.expected(len(images), labels)).flatten(1)
    by_torch = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=torch.float64), flat.mT @ flat / len(flat))
    wanted = by_torch.log_prob(torch.zeros(4, dtype=torch.float64)) - by_torch.log_prob(flat)
    found = surprise(prior, images, prior.expected(len(images), labels))
    assert torch.allclose(found, wanted, rtol=1e-5)


def test_a_covariance_around_the_common_mean_would_be_noticed():
    images, labels = public()
    within, around = (prior_from(images, given, low=-1.0, high=2.0).precision for given in (labels, None))
    assert torch.linalg.det(within) > 3 * torch.linalg.det(around)


def test_prior_from_refuses():
    images, labels = public()
    with pytest.raises(ValueError, match="every class"):
        prior_from(images, labels + 1, low=0.0, high=1.0)
    with pytest.raises(ValueError, match="two public images"):
        prior_from(images[:1], low=0.0, high=1.0)
    with pytest.raises(ValueError, match="differ"):
        prior_from(torch.zeros(3, 1, 2, 2), low=0.0, high=1.0)


def test_surprise_of_a_range_alone_by_hand():
    prior = Prior(shape=(1, 2, 2), low=0.0, high=2.0)  # variance of a pixel 4 / 12
    images = torch.tensor([[[[1.0, 1.0], [1.0, 1.0]]], [[[2.0, 1.0], [1.0, 1.0]]]])
    assert surprise(prior, images, prior.expected(2).float()).tolist() == pytest.approx([0.0, 1.5])


def test_total_variation_by_hand():
    image = torch.tensor([[[[0.0, 1.0], [3.0, 1.0]]]])
    assert total_variation(image).tolist() == [(3 + 0) / 2 + (1 + 2) / 2]
    assert total_variation(torch.ones(2, 3, 4, 4)).tolist() == [0, 0]


def test_blind_is_the_mean_of_the_class_that_is_granted():
    images, labels = public()
    prior = prior_from(images, labels, low=-1.0, high=2.0)
    granted = torch.tensor([1, 0])
    guess = blind_guess(prior, Knowledge(labels=granted, examples=2))
    assert torch.equal(guess.labels, granted)
    assert guess.inputs.flatten(1).mean(1).tolist() == pytest.approx([1.0, 0.0], abs=0.05)
    unknown = blind_guess(prior, Knowledge(examples=2))
    assert unknown.labels is None
    assert unknown.inputs.mean().item() == pytest.approx(0.5, abs=0.05)
    assert blind_guess(Prior(shape=(1, 2, 2)), Knowledge(), examples=3).inputs.unique().tolist() == [0.5]


def test_nothing_blind_beats_the_mean():
    images, labels = public()
    prior = prior_from(images, labels, low=-1.0, high=2.0)
    guess = blind_guess(prior, Knowledge(labels=labels, examples=len(labels))).inputs
    error = (guess - images).square().mean()
    for other in (guess + 0.05, guess * 0.9, images.mean(0).expand_as(guess)):
        assert (other - images).square().mean() > error


def test_blind_refuses_what_it_does_not_know():
    images, labels = public()
    with pytest.raises(ValueError, match="number of examples"):
        blind_guess(Prior(shape=(1, 2, 2)), Knowledge())
    with pytest.raises(ValueError, match="labels in"):
        blind_guess(prior_from(images, labels, low=0.0, high=1.0), Knowledge(labels=torch.tensor([7]), examples=1))
