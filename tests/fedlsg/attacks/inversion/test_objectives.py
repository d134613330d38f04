from dataclasses import replace

import pytest
import torch

from fedlsg.attacks.observation import DoesNotApply
from fedlsg.attacks.replay import cosine, euclidean, negative_log_likelihood, objective
from tests.fedlsg.support.observed import digits, method, mlp, observe

METHODS = {
    "dpsgd": {},
    "rgp": {},
    "lsg": {"sparsity": 0.5},
    "rs": {"sparsity": 0.5},
    "dp-powersgd": {},
}
NOISY = {"mechanism": "dp", "noise_multiplier": 1.0}


def test_distances_by_hand():
    sent, received = torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])
    assert euclidean(sent, received).item() == pytest.approx(2 / 25)
    assert cosine(sent, received).item() == pytest.approx(1 - 24 / 25)
    assert cosine(-received, received).item() == pytest.approx(2)
    assert cosine(5 * received, received).item() == pytest.approx(0, abs=1e-12)
    assert negative_log_likelihood(sent, received, 0.5).item() == pytest.approx(2 / 0.5)
    with pytest.raises(ValueError, match="noise_std"):
        negative_log_likelihood(sent, received, 0.0)


def test_the_likelihood_is_that_of_a_gaussian():
    a, b, y = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    by_torch = [torch.distributions.Normal(x, 0.3).log_prob(y).sum() for x in (a, b)]
    mine = negative_log_likelihood(a, y, 0.3) - negative_log_likelihood(b, y, 0.3)
    assert mine.item() == pytest.approx((by_torch[1] - by_torch[0]).item())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("clip", ["joint", "per-block"])
def test_at_the_private_batch_an_adaptive_distance_is_zero(name, clip):
    x, y = digits(3)
    seen = observe(method(name, clip=clip, **METHODS[name]), mlp(), x, y)
    for distance in ("euclidean", "cosine", "blocks"):
        assert objective(seen, distance=distance)(x, y).item() < 1e-20
        assert objective(seen, distance=distance)(x.flip(-1), y).item() > 1e-3


def test_the_derivative_is_that_of_differences():
    x, y = digits(1)
    seen = observe(method("lsg", sparsity=0.5), mlp(), x, y)
    energy = objective(seen, distance="euclidean")
    at = (x.flip(-1) * 0.5 + 0.2).requires_grad_()
    (gradient,) = torch.autograd.grad(energy(at, y), at)
    step = torch.randn(at.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1e-6
    difference = energy((at + step).detach(), y) - energy((at - step).detach(), y)
    assert difference.item() / 2 == pytest.approx((gradient * step).sum().item(), rel=1e-6)


def test_what_an_objective_refuses():
    x, y = digits(1)
    seen = observe(method("rgp"), mlp(), x, y)
    with pytest.raises(DoesNotApply, match="needs noise"):
        objective(seen, distance="likelihood")
    with pytest.raises(DoesNotApply, match="all zeros"):
        objective(replace(seen, values=torch.zeros_like(seen.values)), distance="cosine")
    with pytest.raises(ValueError, match="adaptive"):
        objective(observe(method("rgp", **NOISY), mlp(), x, y), distance="likelihood", compare="naive")
    with pytest.raises(ValueError, match="distance in"):
        objective(seen, distance="l3")
