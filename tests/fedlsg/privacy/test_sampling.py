"""Poisson batches: rate, independence, the sizes' spread, and the empty batch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.privacy.sampling import check_sample_rate, poisson_batch
from fedlsg.randomness import SecretStream, reproducible_stream, secret_stream

N, Q, DRAWS = 40, 0.3, 4000


def fixed_size_batch(num_examples: int, sample_rate: float, sampler: SecretStream) -> Tensor:
    """The usual mistake: a shuffled batch of constant size q N, which the accountant does not describe."""
    return sampler.normal(num_examples).argsort()[: round(num_examples * sample_rate)].sort().values


def whole_batches_only(num_examples: int, sample_rate: float, sampler: SecretStream) -> Tensor:
    """Another one: all examples or none, at the right rate."""
    return torch.arange(num_examples if sampler.bernoulli(1, sample_rate) else 0)


def memberships(sample, seed: int) -> Tensor:
    """(DRAWS, N) who was in which batch."""
    sampler = reproducible_stream(seed, "memberships")
    rows = torch.zeros(DRAWS, N)
    for row in rows:
        row[sample(N, Q, sampler)] = 1
    return rows


def looks_poisson(sample, seed: int = 0) -> bool:
    """Every example at rate q; batch sizes with the binomial mean and variance N q (1 - q)."""
    rows = memberships(sample, seed)
    sizes = rows.sum(1)
    variance = N * Q * (1 - Q)
    rates_fit = (rows.mean(0) - Q).abs().max() < 5 * math.sqrt(Q * (1 - Q) / DRAWS)
    mean_fits = abs(float(sizes.mean()) - N * Q) < 5 * math.sqrt(variance / DRAWS)
    variance_fits = abs(float(sizes.var()) / variance - 1) < 5 * math.sqrt(2 / DRAWS)
    return bool(rates_fit and mean_fits and variance_fits)


def test_batches_are_poisson():
    assert looks_poisson(poisson_batch)


@pytest.mark.parametrize(
    "mistake", [fixed_size_batch, whole_batches_only, lambda n, q, s: poisson_batch(n, q * 1.1, s)]
)
def test_other_samplers_are_caught(mistake):
    assert not looks_poisson(mistake)


def test_examples_join_independently_of_each_other_and_of_the_last_batch():
    rows = memberships(poisson_batch, seed=1)
    centred = (rows - Q) / math.sqrt(Q * (1 - Q))
    same_batch = centred.T @ centred / DRAWS - torch.eye(N)
    next_batch = centred[1:].T @ centred[:-1] / DRAWS
    assert float(same_batch.fill_diagonal_(0).abs().max()) < 6 / math.sqrt(DRAWS)
    assert float(next_batch.abs().max()) < 6 / math.sqrt(DRAWS)


def test_secret_rate():
    n, q = 200_000, 0.1
    size = len(poisson_batch(n, q, secret_stream()))
    assert abs(size - n * q) < 7 * math.sqrt(n * q * (1 - q))


@given(n=st.integers(0, 60), seed=st.integers(0, 10**6))
def test_rate_one_takes_everybody(n, seed):
    assert poisson_batch(n, 1.0, reproducible_stream(seed)).tolist() == list(range(n))


def test_empty_batches_happen_at_their_rate():
    sampler, n, q, draws = reproducible_stream(2), 5, 0.2, 4000
    empty = sum(len(poisson_batch(n, q, sampler)) == 0 for _ in range(draws)) / draws
    probability = (1 - q) ** n
    assert abs(empty - probability) < 5 * math.sqrt(probability * (1 - probability) / draws)


@pytest.mark.parametrize("q", [0.0, -0.1, 1.0000001, math.nan, math.inf])
def test_rates_outside_zero_to_one_are_refused(q):
    with pytest.raises(ValueError, match="sample_rate"):
        check_sample_rate(q)
    with pytest.raises(ValueError, match="sample_rate"):
        poisson_batch(10, q, secret_stream())
