"""A release: integers of clients add up to the sum, with the noise that is charged."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.privacy import Mechanism
from fedlsg.randomness import reproducible_stream
from fedlsg.secure_sum.discrete import Release, SumTerms, add_modulo, most_log_ratio, plan_release
from fedlsg.secure_sum.discrete.bound import log_ratio, rounding_deviation
from fedlsg.secure_sum.discrete.sum_release import LARGEST_EPSILON, LEAST_STEPS

SIX_SIGMA = 6.0
VALUES = 3000


def sums(clients: int = 10, survivors: int = 9, colluders: int = 1, **more) -> SumTerms:
    known = {"expected_examples": 80.0, "releases": 50, "delta": 1e-5} | more
    return SumTerms(clients=clients, min_survivors=survivors, colluders=colluders, **known)


def mechanism_for(terms: SumTerms, **more) -> Mechanism:
    return Mechanism(
        **(
            {"clip_norm": 0.5, "noise_multiplier": 1.5, "noise_share": terms.contributors**-0.5}
            | more
        )
    )


def planned(terms: SumTerms, *, values: int = VALUES, blocks: int = 1, **more) -> Release:
    return plan_release(terms, mechanism_for(terms, **more), values=values, blocks=blocks)


def clipped_sums(count: int, values: int, norm: float = 4.0) -> list[torch.Tensor]:
    """One vector a client: a few examples that are alike."""
    draws = torch.randn(
        count, values, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    return list(draws / draws.norm(dim=1, keepdim=True) * norm)


def noise_of(release: Release, parts: list[torch.Tensor], *, seed: int = 0) -> torch.Tensor:
    """What the decoded sum has beyond the sum of the parts."""
    streams = [reproducible_stream(seed, "client", i) for i in range(len(parts))]
    integers = [
        release.encode(part, stream, seed=1, round=2)
        for part, stream in zip(parts, streams, strict=True)
    ]
    assert all(int(i.min()) >= 0 and int(i.max()) < release.grid.modulus for i in integers)
    return release.decode(add_modulo(integers, release.grid), seed=1, round=2) - sum(parts)


def too_quiet(noise: torch.Tensor, deviation: float) -> bool:
    """Whether the mean square is below deviation^2 by more than six of its own deviations."""
    return bool(noise.square().mean() < deviation**2 * (1 - SIX_SIGMA * math.sqrt(2 / len(noise))))


def too_loud(noise: torch.Tensor, deviation: float) -> bool:
    return bool(noise.square().mean() > deviation**2 * (1 + SIX_SIGMA * math.sqrt(2 / len(noise))))


@pytest.mark.parametrize("shown", [8, 9, 10])
def test_the_decoded_sum_is_the_sum_with_the_noise_of_its_clients(shown):
    release = planned(sums())
    noise = noise_of(release, clipped_sums(shown, VALUES))
    deviation = release.noise_std(shown)
    assert not too_quiet(noise, deviation)
    assert not too_loud(noise, deviation)
    assert abs(float(noise.mean())) < SIX_SIGMA * deviation / math.sqrt(VALUES)


def test_honest_survivors_alone_have_the_noise_that_is_charged():
    """Exactly h = m - t shares: the variance is (sigma C)^2 at least, and hardly more."""
    terms = sums()
    release = planned(terms)
    noise = noise_of(release, clipped_sums(terms.contributors, VALUES))
    assert release.noise_std(terms.contributors) >= 1.5 * 0.5
    assert release.noise_std(terms.contributors) < 1.5 * 0.5 * 1.01
    assert not too_quiet(noise, 1.5 * 0.5)


def for_all_clients(release: Release, terms: SumTerms) -> Release:
    """Planted: the noise is planned for all K clients."""
    share = release.grid.share * Fraction(
        math.sqrt(terms.contributors / terms.clients)
    ).limit_denominator(64)
    return replace(release, grid=replace(release.grid, share=share))


def half_the_noise(release: Release, terms: SumTerms) -> Release:
    return replace(release, grid=replace(release.grid, share=release.grid.share / 2))


@pytest.mark.parametrize("plant", [for_all_clients, half_the_noise])
def test_too_little_noise_is_caught(plant):
    """Negative controls: what the tests above compare would notice it."""
    terms = sums(clients=10, survivors=7, colluders=2)
    release = planned(terms)
    parts = clipped_sums(terms.contributors, VALUES)
    assert not too_quiet(noise_of(release, parts), 1.5 * 0.5)
    assert too_quiet(noise_of(plant(release, terms), parts), 1.5 * 0.5)
    assert plant(release, terms).noise_std(terms.contributors) < 1.5 * 0.5


known = {
    "clients": st.integers(2, 60),
    "spare": st.integers(0, 6),
    "colluders": st.integers(1, 6),
    "values": st.integers(1, 10**6),
    "blocks": st.integers(1, 40),
    "noise": st.floats(0.05, 50.0),
    "clip": st.sampled_from(["joint", "per-block"]),
    "releases": st.integers(1, 10**5),
    "delta": st.sampled_from([1e-3, 1e-5, 1e-8]),
}


@given(**known)
@settings(max_examples=40)
def test_the_noise_multiplier_of_a_release_is_at_least_the_one_charged(
    clients, spare, colluders, values, blocks, noise, clip, releases, delta
):
    terms, mechanism = drawn(clients, spare, colluders, noise, clip, releases, delta)
    release = plan_release(terms, mechanism, values=values, blocks=blocks)
    r = rounding_deviation(
        [float(LEAST_STEPS)] * terms.contributors,
        values=values,
        steps=releases,
        epsilon=LARGEST_EPSILON,
        delta=delta,
    )
    multiplier = release.grid.noise_std(r) / mechanism.sensitivity(blocks)
    assert multiplier >= mechanism.effective_noise_multiplier(blocks) * (1 + 9e-8)
    assert release.grid.contributors == terms.min_survivors - terms.colluders
    assert release.grid.share >= LEAST_STEPS


@pytest.mark.slow
@given(**known)
@settings(max_examples=40)
def test_every_reader_of_a_sum_sees_the_noise_and_the_lambda_that_are_charged(
    clients, spare, colluders, values, blocks, noise, clip, releases, delta
):
    """Sums of every number of shares that a reader does not know: t clients, one of them,
    nobody.
    """
    terms, mechanism = drawn(clients, spare, colluders, noise, clip, releases, delta)
    release = plan_release(terms, mechanism, values=values, blocks=blocks)
    h, m = terms.contributors, terms.min_survivors
    hidden = {h, m - 1, m}
    planned_for = {"values": values, "steps": releases, "epsilon": LARGEST_EPSILON, "delta": delta}
    r = max(rounding_deviation([float(LEAST_STEPS)] * n, **planned_for) for n in hidden)
    for n in hidden:
        shares = [float(release.grid.share)] * n
        assert log_ratio(shares, r) * values <= release.log_ratio
        left = replace(release.grid, contributors=n).noise_std(r) / mechanism.sensitivity(blocks)
        assert left >= mechanism.effective_noise_multiplier(blocks) * math.sqrt(n / h)


@given(**known)
@settings(max_examples=40)
def test_the_bound_holds_for_all_releases_of_a_run_together(
    clients, spare, colluders, values, blocks, noise, clip, releases, delta
):
    terms, mechanism = drawn(clients, spare, colluders, noise, clip, releases, delta)
    release = plan_release(terms, mechanism, values=values, blocks=blocks)
    assert 0 < releases * release.log_ratio <= most_log_ratio(terms)


def drawn(clients, spare, colluders, noise, clip, releases, delta) -> tuple[SumTerms, Mechanism]:
    survivors = max(clients - spare, 2)
    terms = sums(clients, survivors, min(colluders, survivors - 1), releases=releases, delta=delta)
    return terms, mechanism_for(terms, noise_multiplier=noise, clip=clip)


def test_a_bound_that_forgets_the_logarithm_is_caught():
    """Negative control: lambda is 4 tau or more, so a bound of T d tau would be too small."""
    terms = sums(releases=1000)
    spent = 1000 * planned(terms, values=1074).log_ratio
    assert spent > most_log_ratio(terms) / 10


@pytest.mark.parametrize(
    ("survivors", "colluders"), [(9, 9), (11, 1), (9, -1), (9, 0), (0, 0), (3, 4)]
)
def test_terms_without_an_honest_survivor_are_refused(survivors, colluders):
    with pytest.raises(ValueError, match="noise of honest survivors is what counts"):
        sums(10, survivors, colluders)


@pytest.mark.parametrize("kind", ["clip-only", "noise-only", "none"])
def test_a_mechanism_that_is_not_private_is_refused(kind):
    terms = sums()
    with pytest.raises(ValueError, match="expected a private mechanism"):
        plan_release(terms, mechanism_for(terms, kind=kind), values=10, blocks=1)


@pytest.mark.parametrize("honest", [1, 7, 9, 10])
def test_a_share_for_another_number_of_clients_is_refused(honest):
    terms = sums()
    with pytest.raises(ValueError, match=r"expected noise_share = 1 / sqrt\(8\)"):
        plan_release(terms, mechanism_for(terms, noise_share=honest**-0.5), values=10, blocks=1)


def test_a_sum_of_other_integers_is_refused():
    release = planned(sums())
    with pytest.raises(ValueError, match="expected integers"):
        release.decode(torch.full((VALUES,), release.grid.modulus), seed=1, round=2)
