"""Normalisations of features against their definitions."""

import pytest
import torch
import torch.nn.functional as F

from simulations.workloads.features.encode import DAMPING, POWER, Encoder, grouped, pooled, statistics
from tests.simulations.support.own import refused


def maps(seed: int = 0) -> torch.Tensor:
    """(200, 5, 2, 2) with channels of different means and scales that are correlated."""
    x = torch.randn(200, 5, 2, 2, generator=torch.Generator().manual_seed(seed))
    mix = torch.randn(5, 5, generator=torch.Generator().manual_seed(9))
    return torch.einsum("oc,nchw->nohw", mix, x) + torch.arange(5.0).view(1, -1, 1, 1)


@pytest.mark.parametrize("shape", ["maps", "vectors"])
def test_the_matrix_is_a_power_of_the_damped_covariance(shape):
    x = maps() if shape == "maps" else maps().movedim(1, -1).reshape(-1, 5)
    mean, Q = statistics(x)
    rows = x.movedim(1, -1).reshape(-1, 5).double()
    S = torch.cov(rows.mT, correction=0)
    damped = S / (S.trace() / 5) + DAMPING * torch.eye(5).double()
    root = torch.linalg.matrix_power(torch.linalg.inv(Q.double()), round(-1 / POWER))
    torch.testing.assert_close(root / root[0, 0], damped / damped[0, 0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mean.double(), rows.mean(0), atol=1e-5, rtol=0)
    assert float(((rows - mean) @ Q.double()).var(0).mean()) == pytest.approx(1, abs=0.01)


def test_groups_are_those_of_group_norm():
    x = torch.randn(1, 81, 2, 2)
    honest = grouped(Encoder(name="x", digest="x", encode=lambda x: x))
    assert torch.equal(honest.encode(x), F.group_norm(x, 27))
    vector = torch.randn(1, 6)
    torch.testing.assert_close(honest.encode(vector), F.layer_norm(vector, (6,)))


def test_what_cannot_be_pooled_is_refused():
    vector = Encoder(name="x", digest="x", encode=lambda x: torch.zeros(1, 4))
    with refused("feature_norm=pool", "even side", "(4,)"):
        pooled(vector).one(torch.zeros(1, 1, 8, 8))
