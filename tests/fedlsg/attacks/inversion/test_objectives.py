import pytest
import torch

from fedlsg.attacks.replay import negative_log_likelihood, objective
from tests.fedlsg.support.observed import digits, method, mlp, observe

METHODS = {
    "dpsgd": {},
    "rgp": {},
    "lsg": {"sparsity": 0.5},
    "rs": {"sparsity": 0.5},
    "dp-powersgd": {},
}


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
