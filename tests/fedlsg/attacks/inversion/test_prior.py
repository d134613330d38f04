import torch

from fedlsg.attacks.inversion.prior import prior_from, surprise

GENERATOR = 0


def public(count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated 1x2x2 images of two classes, around 0 and around 1."""
    generator = torch.Generator().manual_seed(GENERATOR)
    labels = torch.arange(count) % 2
    mix = torch.tensor([[1.0, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.2], [0, 0, 0, 1]], dtype=torch.float64)
    noise = torch.randn(count, 4, generator=generator, dtype=torch.float64) @ mix * 0.1
    return (noise + labels.unsqueeze(1)).reshape(count, 1, 2, 2), labels


def test_a_prior_of_public_images_is_their_gaussian():
    images, labels = public()
    prior = prior_from(images, labels, low=-1.0, high=2.0, shrinkage=1e-9)
    assert torch.allclose(prior.expected(1, torch.tensor([1])), images[labels == 1].mean(0, keepdim=True))
    flat = (images - prior.expected(len(images), labels)).flatten(1)
    by_torch = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=torch.float64), flat.mT @ flat / len(flat))
    wanted = by_torch.log_prob(torch.zeros(4, dtype=torch.float64)) - by_torch.log_prob(flat)
    found = surprise(prior, images, prior.expected(len(images), labels))
    assert torch.allclose(found, wanted, rtol=1e-5)
