import pytest

from fedlsg.attacks.replay import objective
from tests.fedlsg.support.observed import digits, method, mlp, observe

METHODS = {
    "dpsgd": {},
    "rgp": {},
    "lsg": {"sparsity": 0.5},
    "rs": {"sparsity": 0.5},
    "dp-powersgd": {},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("clip", ["joint", "per-block"])
def test_at_the_private_batch_an_adaptive_distance_is_zero(name, clip):
    x, y = digits(3)
    seen = observe(method(name, clip=clip, **METHODS[name]), mlp(), x, y)
    for distance in ("euclidean", "cosine", "blocks"):
        assert objective(seen, distance=distance)(x, y).item() < 1e-20
        assert objective(seen, distance=distance)(x.flip(-1), y).item() > 1e-3
