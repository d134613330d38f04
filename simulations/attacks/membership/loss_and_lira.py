"""Membership of single examples from the answers of a trained model: loss threshold and LiRA, with
bounds.

phi is the scaled confidence log(p / (1 - p)) of the true class, so that the loss is log(1 +
exp(-phi)); minus the loss where that is no cross-entropy. Scores are higher for members. Everything
is computed from ``Trained``; which examples the target has is used for scoring only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from fedlsg.accounting import Event, compose
from fedlsg.attacks.audit.bounds import subsampled
from fedlsg.attacks.audit.verdict import Claim, claim_of, training_event
from fedlsg.attacks.membership import lira_offline, lira_online, loss_threshold
from fedlsg.attacks.metrics import LOW_RATES, Rate, Roc, roc
from fedlsg.randomness import public_generator
from fedlsg.simulations.attacks.membership.shadows import Trained, pair_of
from fedlsg.simulations.planning.plan import Plan, count_blocks, events_of

ATTACKS = ("loss threshold", "LiRA offline", "LiRA online")
DRAWS = 200
EDGES = (0.025, 0.975)
"""Levels of the ends of 95 % intervals."""
SURE = 0.99
"""Confidence of what contradicts a claim: several attacks are tried, and one may accuse by
chance.
"""
GRID = np.geomspace(1e-5, 1, 101)
"""False positive rates at which curves are kept."""
BoundOf = Callable[[float], float]
Scores = Float[np.ndarray, "targets candidates"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What one attack finds. success: right answers as in Yu et al. 2021, Table 5.

    target: of the target alone, exact intervals; sure: the same at 99 %. in_turn: of all models,
    each the target once, with intervals from a bootstrap over the candidates. curve: true positive
    rates of ``in_turn`` on GRID.
    drawn: AUC and rates of every draw of that bootstrap, which has the same candidates for every
    attack.
    """

    attack: str
    success: Rate
    target: Roc
    sure: Roc
    in_turn: Roc
    curve: Float[np.ndarray, " grid"]
    drawn: Float[np.ndarray, "draws figures"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Limit:
    """The largest expected rates that a claim allows, for any attacker that sees what the claim is
    about.
    """

    name: str
    bound: BoundOf

    @property
    def auc(self) -> float:
        """Area under the bound, rounded up: the curve increases."""
        edges = np.concatenate([np.geomspace(1e-9, 1e-3, 600), np.linspace(1e-3, 1, 2000)[1:]])
        widths = np.diff(edges, prepend=0.0)
        heights = [self.bound(float(edge)) for edge in edges]
        return min(1.0, float(np.sum(widths * heights)))


def attack(models: Trained, *, seed: int) -> list[Found]:
    """Every attack on the target, and on each model in turn with the others (less its pair) as
    shadows.
    """
    inside, findings = models.inside, []
    for name in ATTACKS:
        scores = np.stack([scored(name, models, target) for target in range(len(inside))])
        members, others = scores[0, inside[0]], scores[0, ~inside[0]]
        in_turn, drawn = pooled(scores, inside, seed=seed)
        generator = public_generator(seed, "membership", "threshold")
        losses = torch.from_numpy(-members), torch.from_numpy(-others)
        found = Found(
            attack=name,
            success=loss_threshold(*losses, generator).success,
            target=roc(members, others),
            sure=roc(members, others, confidence=SURE),
            in_turn=in_turn,
            curve=curve(scores[inside], scores[~inside]),
            drawn=drawn,
        )
        findings.append(found)
    return findings


def scored(name: str, models: Trained, target: int) -> Float[np.ndarray, " candidates"]:
    """Scores of all candidates against one model. Which it was trained on is not read."""
    phi = models.confidence[target]
    if name == "loss threshold":
        return np.asarray(-np.logaddexp(0.0, -phi))
    others = [m for m in range(1, len(models.inside)) if m not in (target, pair_of(target))]
    run = lira_online if name == "LiRA online" else lira_offline
    return run(phi, models.confidence[others], models.inside[others])


def pooled(
    scores: Scores, inside: Bool[np.ndarray, "targets candidates"], *, seed: int
) -> tuple[Roc, Float[np.ndarray, "draws figures"]]:
    """Rates over all targets at one threshold. Intervals: percentiles over candidates drawn with
    all their scores.

    Also gives AUC and rates of each draw. The draws depend on the seed and the count of candidates
    only.

    An example's scores against several models depend on each other, candidates do not; that the
    models share their shadows is not in the intervals.
    """
    first = public_generator(seed, "membership", "bootstrap").initial_seed()
    generator = np.random.default_rng(first)
    count = scores.shape[1]
    place = np.unique(scores, return_inverse=True)[1].reshape(scores.shape)
    values = _rates(place, inside, np.ones(count))
    draws = []
    for _ in range(DRAWS):
        candidates = generator.integers(0, count, count)
        draws.append(_rates(place, inside, np.bincount(candidates, minlength=count)))
    drawn = np.array(draws)
    lows, highs = np.quantile(drawn, EDGES, axis=0)
    auc, *tpr = map(_interval, values, lows, highs)
    return Roc(auc=auc, tpr=dict(zip(LOW_RATES, tpr, strict=True))), drawn


def _interval(value: float, low: float, high: float) -> Rate:
    """A number with the ends of its interval, which has the number itself."""
    return Rate(value=value, low=float(min(low, value)), high=float(max(high, value)))


def paired_difference(one: Found, other: Found) -> Rate | None:
    """TPR of ``one`` less that of ``other`` at the first of LOW_RATES, over all models in turn,
    paired by candidate.

    None without draws of both, and for draws of different counts.
    """
    if one.drawn is None or other.drawn is None or one.drawn.shape != other.drawn.shape:
        return None
    low, high = np.quantile(one.drawn[:, 1] - other.drawn[:, 1], EDGES)
    value = one.in_turn.tpr[LOW_RATES[0]].value - other.in_turn.tpr[LOW_RATES[0]].value
    return _interval(value, low, high)


def _rates(
    place: Int[np.ndarray, "targets candidates"],
    inside: Bool[np.ndarray, "targets candidates"],
    times: Float[np.ndarray, " candidates"] | Int[np.ndarray, " candidates"],
) -> list[float]:
    """AUC and rates where each candidate counts ``times``; ``place`` orders the scores, equal ones
    together.
    """
    weight = np.broadcast_to(times, place.shape).astype(np.float64)
    scores = place.max() + 1
    members = np.bincount(place[inside], weights=weight[inside], minlength=scores)
    others = np.bincount(place[~inside], weights=weight[~inside], minlength=scores)
    # how many have a higher score
    accused = members[::-1].cumsum()[::-1] - members
    false_alarms = others[::-1].cumsum()[::-1] - others
    area = (others * (accused + members / 2)).sum() / members.sum() / others.sum()
    rates = [float(area)]
    for rate in LOW_RATES:
        allowed = int(rate * others.sum() + 1e-9)
        threshold = np.argmax(false_alarms <= allowed)
        rates.append(float(accused[threshold] / members.sum()))
    return rates


def _above(
    members: Float[np.ndarray, " n"], ascending: Float[np.ndarray, " m"], rate: float
) -> float:
    """The share of members above all but this share of the others."""
    allowed = int(rate * len(ascending) + 1e-9)
    if allowed >= len(ascending):
        return 1.0
    threshold = ascending[len(ascending) - 1 - allowed]
    return float((members > threshold).mean())


def curve(
    members: Float[np.ndarray, " n"], others: Float[np.ndarray, " m"]
) -> Float[np.ndarray, " grid"]:
    """True positive rates at GRID; NaN below the smallest rate that can be measured with so many
    non-members.
    """
    ascending = np.sort(others)
    rates = np.full(len(GRID), np.nan)
    for at in np.flatnonzero(1 / len(others) <= GRID):
        rates[at] = _above(members, ascending, GRID[at])
    return rates


def claimed(plan: Plan) -> tuple[Claim, tuple[Limit, ...]] | None:
    """The claim of the planned schedule for its worst client, and what it allows; None without a
    claim.

    The rates of one example are bounded at each false positive rate, and the bound is concave, so
    that it holds for the mean over examples at one threshold, too.
    """
    if not plan.method.mechanism.private:
        return None
    blocks, delta = count_blocks(plan), plan.settings.delta
    by_client = {tuple(events_of(plan, t, blocks)) for t in plan.terms}
    spent = {events: compose(list(events), delta=delta).upper for events in by_client}
    worst = max(spent, key=lambda events: spent[events])
    claim = claim_of(training_event(worst), spent[worst], delta)
    return claim, limits(claim, worst)


def limits(claim: Claim, events: tuple[Event, ...]) -> tuple[Limit, ...]:
    """By (epsilon, delta); and by the whole trade-off curve, unless the claim has a pruning round
    or discrete noise.
    """
    pair = Limit(
        name=f"bound: epsilon {claim.epsilon:.3g}, delta {claim.delta:g}",
        bound=lambda rate: by_epsilon(rate, claim.epsilon, claim.delta),
    )
    if len(events) > 1 or any(event.log_ratio for event in events):
        return (pair,)
    least, _ = subsampled(
        sample_rate=claim.sample_rate,
        noise_multiplier=claim.noise_multiplier,
        steps=claim.steps,
        delta=claim.delta,
    )
    whole = Limit(name="bound: trade-off curve", bound=lambda rate: 1 - least(1 - rate))
    return whole, pair


def by_epsilon(rate: float, epsilon: float, delta: float) -> float:
    """TPR <= min(e^eps FPR + delta, 1 - e^-eps (1 - delta - FPR)), from both directions of
    (epsilon, delta).
    """
    grown = np.exp(min(epsilon, 700.0)) * rate + delta
    return float(min(1.0, grown, 1 - np.exp(-epsilon) * max(0.0, 1 - delta - rate)))


def over_the_claim(found: Sequence[Found], limits: Sequence[Limit]) -> Mapping[str, str]:
    """Attacks whose exact 99 % interval on the target is above what a claim allows, by name, and
    where.
    """
    above = {}
    for one in found:
        for rate, tpr in one.sure.tpr.items():
            for limit in limits:
                if tpr.low > limit.bound(rate):
                    above[one.attack] = f"{limit.name}, at {100 * rate:g} % false alarms"
    return above
