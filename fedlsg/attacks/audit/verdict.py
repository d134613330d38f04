"""The audit's verdict, from the scores of canaries, a claim and the results of checks.

A verdict is "falsified" or "not falsified", never "verified": an audit finds only what its canaries
and checks can show.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from fedlsg.accounting import Event
from fedlsg.attacks.audit.bounds import (
    GUESSED_SHARES,
    Guesses,
    TradeOff,
    f_dp_p_value,
    f_dp_refuted,
    gaussian_epsilon,
    guess,
    largest_refuted,
    one_run_epsilon,
    subsampled,
)
from fedlsg.attacks.audit.checks.check import Check
from fedlsg.attacks.audit.played.stated import Delta, Epsilon, SampleRate, Stated, Steps
from fedlsg.attacks.roc import Rate, auc
from fedlsg.config import Setting, check_declared

SIGNIFICANCE = 1e-3
"""Of each bound: both are stated at 99.9 % confidence."""
STRONGEST_CURVE = 5.0
"""The f-DP bound tests noise multipliers from 2^5 times the claimed one on."""
WEAKEST_CURVE = 8.0
"""It halves them up to so many times: down to 2^-3 times the claimed one."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The claim about each client: ``epsilon`` at ``delta``, for a number of Gaussian steps.

    sample_rate: the Poisson rate of a step.
    noise_multiplier: effective noise multiplier of a step.
    steps: number of steps.
    """

    epsilon: Epsilon
    delta: Delta
    sample_rate: SampleRate
    noise_multiplier: Annotated[float, Setting(above=0, below=np.inf)]
    steps: Steps

    def __post_init__(self) -> None:
        check_declared(self)


def claim_of(event: Event, epsilon: float, delta: float) -> Claim:
    """The claim of one event in a ledger."""
    q, sigma = event.sample_rate, event.noise_multiplier
    return Claim(
        epsilon=epsilon, delta=delta, sample_rate=q, noise_multiplier=sigma, steps=event.steps
    )


def stated_claim(stated: Stated) -> Claim:
    """The claim that a user states, at the least noise multiplier at which it is true."""
    return Claim(
        epsilon=stated.epsilon,
        delta=stated.delta,
        sample_rate=stated.sample_rate,
        noise_multiplier=stated.noise_multiplier,
        steps=stated.steps,
    )


def training_event(events: Sequence[Event]) -> Event:
    """The event of most steps: training, not the pruning round."""
    return max(events, key=lambda event: event.steps)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on epsilon at the claim's delta.

    epsilon: the bound.
    refutes: whether it refutes the claim.
    guesses: those that gave it.
    p_value: of the claim; None where it is not computed.
    """

    epsilon: float
    refutes: bool
    guesses: Guesses
    p_value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An estimate of epsilon, which is no bound.

    mu: of Gaussian differential privacy, from the AUC of the scores.
    epsilon: of mu at the claim's delta.
    """

    mu: Rate
    epsilon: Rate


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Three figures about the claim, and the checks.

    one_run, f_dp: lower bounds on epsilon.
    estimate: of epsilon.
    """

    claim: Claim
    one_run: Bound
    f_dp: Bound
    estimate: Estimate
    checks: tuple[Check, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of the bounds and checks that contradict the claim; empty where none does."""
        bounds = {"one-run bound": self.one_run, "f-DP one-run bound": self.f_dp}
        return (
            *(name for name, bound in bounds.items() if bound.refutes),
            *(check.name for check in self.checks if not check.passed),
        )

    @property
    def falsified(self) -> bool:
        """Whether anything contradicts the claim."""
        return bool(self.reasons)

    @property
    def alarm(self) -> float:
        """An upper bound on the probability of falsifying correct code, by any bound or check."""
        return 2 * SIGNIFICANCE + sum(check.significance for check in self.checks)

    @property
    def words(self) -> str:
        """The verdict in words."""
        return "falsified" if self.falsified else "not falsified"


def judge(
    scores: Float[np.ndarray, " m"],
    included: Bool[np.ndarray, " m"],
    claim: Claim,
    checks: tuple[Check, ...] = (),
) -> Verdict:
    """The verdict from a score of each canary, and whether it is included.

    Scores may depend on outputs only.
    """
    guesses = [guess(scores, included, share) for share in GUESSED_SHARES]
    return Verdict(
        claim=claim,
        one_run=one_run(guesses, claim),
        f_dp=f_dp(guesses, claim),
        estimate=estimate(scores[included], scores[~included], claim.delta),
        checks=checks,
    )


def one_run(guesses: list[Guesses], claim: Claim) -> Bound:
    """The best of the bounds of Steinke et al. over the numbers of guesses.

    They share the significance.
    """
    level = SIGNIFICANCE / len(guesses)
    bounds = [(one_run_epsilon(of_share, claim.delta, level), of_share) for of_share in guesses]
    epsilon, best = max(bounds, key=lambda bound: bound[0])
    return Bound(epsilon=epsilon, refutes=epsilon > claim.epsilon, guesses=best)


def f_dp(guesses: list[Guesses], claim: Claim) -> Bound:
    """The best f-DP bound over the numbers of guesses.

    The curves tested are those of the claimed mechanism (q, steps) at more or less noise than
    claimed. ``epsilon`` is that of the least private curve that the guesses refute.
    """
    level = SIGNIFICANCE / len(guesses)

    def curve(noise: float) -> tuple[TradeOff, float]:
        return subsampled(
            noise_multiplier=noise,
            sample_rate=claim.sample_rate,
            steps=claim.steps,
            delta=claim.delta,
        )

    def refuting(weakness: float) -> list[Guesses]:
        least, _ = curve(noise_at(weakness, claim))
        return [of_share for of_share in guesses if f_dp_refuted(of_share, least, level)]

    least, _ = curve(claim.noise_multiplier)
    p_values = [f_dp_p_value(of_share, least) for of_share in guesses]
    refutes = min(p_values) < level
    weakness = largest_refuted(lambda tried: bool(refuting(tried)), WEAKEST_CURVE, tolerance=2e-3)
    best = (refuting(weakness) or guesses)[0]
    epsilon = curve(noise_at(weakness, claim))[1] if weakness else 0.0
    # The claimed epsilon is rounded up, and the curves have a grid of their own. So the verdict is
    # the test of the claim itself, and the bound is moved to its side.
    epsilon = max(epsilon, claim.epsilon) if refutes else min(epsilon, claim.epsilon)
    p_value = min(1.0, min(p_values) * len(guesses))
    return Bound(epsilon=epsilon, refutes=refutes, guesses=best, p_value=p_value)


def noise_at(weakness: float, claim: Claim) -> float:
    """Noise multipliers from 32 times the claimed one (weakness 0), halved by every unit."""
    return claim.noise_multiplier * 2 ** (STRONGEST_CURVE - weakness)


def estimate(
    members: Float[np.ndarray, " i"], others: Float[np.ndarray, " o"], delta: float
) -> Estimate:
    """mu = sqrt(2) Phi^-1(AUC) and epsilon(delta) of mu-GDP, with intervals at 95 %.

    Exact for Gaussian scores. An AUC of 1 counts as half a wrong pair.
    Raises ValueError unless there are members and others.
    """
    if not len(members) or not len(others):
        raise ValueError(
            "expected canaries of both kinds: all are in or all are out, take more canaries"
        )
    area = auc(members, others)
    edge = 1 / (2 * len(members) * len(others))
    areas = np.clip([area.low, area.value, area.high], edge, 1 - edge)
    low, value, high = (max(0.0, float(mu)) for mu in np.sqrt(2) * ndtri(areas))
    return Estimate(
        mu=Rate(value=value, low=low, high=high),
        epsilon=Rate(
            value=gaussian_epsilon(value, delta),
            low=gaussian_epsilon(low, delta),
            high=gaussian_epsilon(high, delta),
        ),
    )


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain values, for audit.json."""
    return {
        "verdict": verdict.words,
        "falsified_by": list(verdict.reasons),
        "claimed": asdict(verdict.claim),
        "one_run_bound": asdict(verdict.one_run),
        "f_dp_one_run_bound": asdict(verdict.f_dp),
        "gdp_estimate": {**asdict(verdict.estimate), "kind": "estimate, no bound"},
        "significance_of_each_bound": SIGNIFICANCE,
        "false_alarm_of_all": verdict.alarm,
        "checks": [asdict(check) for check in verdict.checks],
    }
