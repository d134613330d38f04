import pytest
import torch

from fedlsg.attacks.inversion.prior import Prior, blind_guess, prior_from, surprise
from fedlsg.attacks.observation import Knowledge

GENERATOR = 0


def public(count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated 1x2x2 images of two classes, around 0 and around 1."""
    generator = torch.Generator().manual_seed(GENERATOR)
    labels = torch.arange(count) % 2
    mix = torch.tensor([[1.0, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.2], [0, 0, 0, 1]], dtype=torch.float64)
    noise = torch.randn(count, 4, generator=generator, dtype=torch.float64) @ mix * 0.1
    return (noise + labels.unsqueeze(1)).reshape(count, 1, 2, 2), labels


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
