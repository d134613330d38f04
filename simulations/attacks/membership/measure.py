"""Membership of single examples from the answers of a trained model: every attack of the table,
with bounds.

Several attacks are tried and the best one is reported: intervals hold for all attacks and both
figures of the verdict together (Bonferroni), so that chance in one of them is no finding.
phi is the scaled confidence log(p / (1 - p)) of the true class, so that the loss is log(1 +
exp(-phi)); minus the loss for other losses. Scores are higher for members. Everything
is computed from ``Trained``; which examples the target has is used for scoring only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import ndtri

from fedlsg.accounting import Event, compose
from fedlsg.attacks.audit.bounds import subsampled
from fedlsg.attacks.audit.verdict import Claim, claim_of, training_event
from fedlsg.attacks.membership.answers import Answers
from fedlsg.attacks.membership.answers import Attack as MembershipAttack
from fedlsg.attacks.membership.scores import membership_attacks
from fedlsg.attacks.membership.scores.loss import LossThreshold, loss_threshold
from fedlsg.attacks.roc import LOW_RATES, Rate, Roc, roc
from fedlsg.randomness import public_generator
from fedlsg.simulations.attacks.membership.shadows import Trained, pair_of
from fedlsg.simulations.planning.client_noise import events_of
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.simulations.planning.plan import Plan

DRAWS = 200
INTERVAL_ERROR = 0.05
"""Chance that any interval of a verdict misses its rate."""
FIGURES = 2
"""Figures of each attack that the verdict compares with guessing: TPR at the first of LOW_RATES,
and AUC.
"""
SURE = 0.99
"""Confidence of what contradicts a claim, for all attacks together."""
GRID = np.geomspace(1e-5, 1, 101)
"""False positive rates at which curves are kept."""
BoundOf = Callable[[float], float]
Scores = Float[np.ndarray, "targets candidates"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What one attack finds. success: right answers as in Yu et al. 2021, Table 5.

    target: of the target alone, exact intervals.
    sure: the same at 99 %.
    in_turn: of all models, each the target once, with intervals from a bootstrap over the
        candidates. All of them are simultaneous over the attacks.
    curve: true positive rates of ``in_turn`` on GRID.
    band: the ends of their intervals.
    drawn: AUC and rates of every draw of that bootstrap, which has the same candidates for every
        attack.
    """

    attack: str
    success: Rate
    target: Roc
    sure: Roc
    in_turn: Roc
    curve: Float[np.ndarray, " grid"]
    band: Float[np.ndarray, "2 grid"]
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


def attack(models: Trained, *, seed: int, more: int = 0) -> list[Found]:
    """Every attack on the target, and on each model in turn with the others (less its pair) as
    shadows. Attacks that need public rows are left out where there are none. ``more``: further
    attacks of the same table, with which the intervals are simultaneous.
    """
    inside, findings = models.inside, []
    attacks = [tried for tried in membership_attacks() if usable(tried, answers(models, 0))]
    rows = len(attacks) + more
    confidence = confidence_of_each(rows)
    for tried in attacks:
        scores = np.stack([tried.score(answers(models, target)) for target in range(len(inside))])
        members, others = scores[0, inside[0]], scores[0, ~inside[0]]
        in_turn, (curve, *band), drawn = pooled(scores, inside, seed=seed, confidence=confidence)
        outcome = Found(
            attack=tried.name,
            success=threshold_on(members, others, seed).success,
            target=roc(members, others, confidence=confidence),
            sure=roc(members, others, confidence=sure_of_each(rows)),
            in_turn=in_turn,
            curve=curve,
            band=np.stack(band),
            drawn=drawn,
        )
        findings.append(outcome)
    return findings


def confidence_of_each(attacks: int, figures: int = FIGURES) -> float:
    """The confidence of one interval: all together have 1 - INTERVAL_ERROR (Bonferroni)."""
    return 1 - INTERVAL_ERROR / (attacks * figures)


def sure_of_each(attacks: int) -> float:
    """The same for what contradicts a claim."""
    return 1 - (1 - SURE) / attacks


def threshold_on(
    members: Float[np.ndarray, " n"], others: Float[np.ndarray, " m"], seed: int
) -> LossThreshold:
    """The protocol of Yu et al. 2021 on the scores of any attack."""
    generator = public_generator(seed, "membership", "threshold")
    return loss_threshold(torch.from_numpy(-members), torch.from_numpy(-others), generator)


def usable(one: MembershipAttack, known: Answers) -> bool:
    """Whether an attack has all that it needs."""
    return all(map(known.has, one.needs))


def answers(models: Trained, target: int) -> Answers:
    """What an attack on one model reads. What it was trained on is not there."""
    others = [m for m in range(1, len(models.inside)) if m not in (target, pair_of(target))]
    public = models.public
    return Answers(
        target=models.confidence[target],
        shadows=models.confidence[others],
        inside=models.inside[others],
        public=None if public is None else public.against(target, others),
    )


def pooled(
    scores: Scores, inside: Bool[np.ndarray, "targets candidates"], *, seed: int, confidence: float
) -> tuple[Roc, Float[np.ndarray, "3 grid"], Float[np.ndarray, "draws figures"]]:
    """Rates over all targets at one threshold; the curve and the ends of its band, NaN below the
    smallest rate that can be measured with so many non-members; AUC and rates of each draw.

    Intervals: as many standard deviations as ``confidence`` asks of a normal, over candidates drawn
    with all their scores. The draws depend on the seed and the count of candidates only.

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
    reach = float(ndtri((1 + confidence) / 2)) * drawn.std(0, ddof=1)
    lows, highs = np.clip(values - reach, 0, 1), np.clip(values + reach, 0, 1)
    shown = 1 + len(LOW_RATES)
    auc, *tpr = map(_interval, values[:shown], lows[:shown], highs[:shown])
    curve = np.stack([values[shown:], lows[shown:], highs[shown:]])
    curve[:, GRID * (~inside).sum() < 1] = np.nan
    return Roc(auc=auc, tpr=dict(zip(LOW_RATES, tpr, strict=True))), curve, drawn[:, :shown]


def _interval(value: float, low: float, high: float) -> Rate:
    """A number with the ends of its interval, which has the number itself."""
    return Rate(value=float(value), low=float(min(low, value)), high=float(max(high, value)))


def paired_difference(one: Found, other: Found) -> Rate | None:
    """TPR of ``one`` less that of ``other`` at the first of LOW_RATES, over all models in turn,
    paired by candidate.

    None without draws of both, and for draws of different counts.
    """
    if one.drawn is None or other.drawn is None or one.drawn.shape != other.drawn.shape:
        return None
    low, high = np.quantile(
        one.drawn[:, 1] - other.drawn[:, 1], [INTERVAL_ERROR / 2, 1 - INTERVAL_ERROR / 2]
    )
    value = one.in_turn.tpr[LOW_RATES[0]].value - other.in_turn.tpr[LOW_RATES[0]].value
    return _interval(value, low, high)


def _rates(
    place: Int[np.ndarray, "targets candidates"],
    inside: Bool[np.ndarray, "targets candidates"],
    times: Float[np.ndarray, " candidates"] | Int[np.ndarray, " candidates"],
) -> Float[np.ndarray, " figures"]:
    """AUC, LOW_RATES and GRID where each candidate counts ``times``; ``place`` orders the scores,
    equal ones together.
    """
    weight = np.broadcast_to(times, place.shape).astype(np.float64)
    scores = place.max() + 1
    members = np.bincount(place[inside], weights=weight[inside], minlength=scores)
    others = np.bincount(place[~inside], weights=weight[~inside], minlength=scores)
    # those with this score or a higher one; none above the highest
    accused, false_alarms = (
        np.append(group[::-1].cumsum()[::-1], 0.0) for group in (members, others)
    )
    area = (others * (accused[1:] + members / 2)).sum() / members.sum() / others.sum()
    allowed = (np.concatenate([LOW_RATES, GRID]) * others.sum() + 1e-9).astype(int)
    threshold = np.searchsorted(-false_alarms, -allowed)  # the lowest with no more false alarms
    return np.concatenate([[area], accused[threshold] / members.sum()])


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


def over_the_claim(sure: Mapping[str, Roc], limits: Sequence[Limit]) -> Mapping[str, str]:
    """Attacks whose exact 99 % interval is above what a claim allows, by name, and where."""
    above = {}
    for name, found in sure.items():
        for rate, tpr in found.tpr.items():
            for limit in limits:
                if tpr.low > limit.bound(rate):
                    above[name] = f"{limit.name}, at {100 * rate:g} % false alarms"
    return above
