"""rho by hand in every mode, and against noise that is drawn."""

import math

import pytest
import torch

from fedlsg.privacy import Mechanism, add_noise, rho
from fedlsg.randomness import SecretStream

SIGMA, N, Q, D = 2.0, 1000, 0.1, 400
"""One client: B = q N = 100, and rho = 2 * 20 / 100 = 0.4."""


def of(mechanism: Mechanism, clients: int = 1, *, sigmas: tuple[float, ...] | None = None, blocks: int = 3) -> float:
    found = rho(
        mechanism, sigmas or (SIGMA,) * clients, clients_per_round=clients, values=D, blocks=blocks,
        expected_batch=clients * Q * N,
    )  # fmt: skip
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("mechanism", "clients", "expected"),
    [
        ({}, 1, 0.4),
        ({"clip_norm": 7.0}, 1, 0.4),
        ({}, 4, 0.2),  # noise sigma sqrt(4), B = 4 q N
        ({"noise_share": 0.5}, 4, 0.1),  # the noise of one client, B = 4 q N
        ({"noise_share": 1 / math.sqrt(2)}, 4, 0.1 * math.sqrt(2)),  # two survivors are enough, and all four replied
        ({"clip": "per-block"}, 1, 0.4 / math.sqrt(3)),  # the clipped gradient's norm is C sqrt(3) at most
        ({"kind": "clip-only"}, 1, 0.0),
        ({"kind": "none"}, 1, 0.0),
    ],
)
def test_by_hand(mechanism, clients, expected):
    assert of(Mechanism(noise_multiplier=SIGMA, **mechanism), clients) == pytest.approx(expected)


def test_noise_without_a_clip_has_none():
    mechanism = Mechanism(kind="noise-only", noise_multiplier=SIGMA)
    assert rho(mechanism, [SIGMA], clients_per_round=1, values=D, blocks=3, expected_batch=100) is None


def test_unequal_noise_adds_up_in_squares():
    assert of(Mechanism(), 2, sigmas=(1.0, 3.0)) == pytest.approx(math.sqrt(1 + 9) * 20 / 200)


def test_with_a_clip_of_each_block_it_has_the_noise_multiplier_of_the_ledger():
    mechanism = Mechanism(noise_multiplier=SIGMA, clip="per-block")
    assert of(mechanism) == pytest.approx(mechanism.effective_noise_multiplier(3) * math.sqrt(D) / (Q * N))


@pytest.mark.parametrize("mechanism", [{}, {"clip": "per-block", "clip_norm": 3.0}, {"noise_share": 0.5}])
def test_noise_that_is_drawn(mechanism):
    """Four clients' noise, over the divisor and the largest norm of the mean gradient; relative deviation 1.8 %."""
    made = Mechanism(noise_multiplier=SIGMA, **mechanism)
    noise = SecretStream(b"0" * 32)
    total = sum((add_noise(torch.zeros(D, dtype=torch.float64), made, noise) for _ in range(4)), torch.zeros(D))
    measured = float(total.norm()) / (4 * Q * N) / made.sensitivity(3)
    assert measured == pytest.approx(of(made, 4), rel=0.12)
