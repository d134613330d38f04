"""Membership attacks on the answers of trained models: their rates, and the bounds of a claim.

Several attacks are tried and the best one is reported. So intervals hold for all attacks and both
figures of the verdict together (Bonferroni): chance in one of them is no finding. phi is the
scaled confidence log(p / (1 - p)) of the true class, so that the loss is log(1 + exp(-phi)); for
other losses it is minus the loss. Scores are higher for members. Attacks read ``Trained``; which
examples the target has is used for rates only.
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

BOOTSTRAP_DRAWS = 200
INTERVAL_ERROR = 0.05
"""Probability that any interval of a verdict misses its rate."""
FIGURES = 2
"""Figures of each attack that the verdict compares with guessing: TPR at the first of LOW_RATES,
and AUC.
"""
REFUTING_CONFIDENCE = 0.99
"""Confidence of intervals that may contradict a claim, for all attacks together."""
GRID = np.geomspace(1e-5, 1, 101)
"""False positive rates of curves."""
BoundOf = Callable[[float], float]
"""From a false positive rate to the largest true positive rate."""
Scores = Float[np.ndarray, "targets candidates"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The result of one attack. All intervals are simultaneous over the attacks.

    attack: its name.
    success: share of right answers as in Yu et al. 2021, Table 5.
    target: rates on the target alone, with exact intervals.
    sure: the same with intervals that may contradict a claim.
    in_turn: rates over all models, each the target once, with intervals from a bootstrap over the
        candidates.
    curve: true positive rates of ``in_turn`` on GRID; NaN below the smallest measurable rate.
    band: lower and upper ends of their intervals.
    drawn: AUC and rates of every draw of that bootstrap, which has the same candidates for every
        attack; None for results without one.
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
    """The largest expected rates of any attacker under a claim.

    name: in tables and figures.
    bound: from a false positive rate to the largest true positive rate.
    """

    name: str
    bound: BoundOf

    @property
    def auc(self) -> float:
        """Area under the bound, rounded up by its value at the right end of each interval."""
        edges = np.concatenate([np.geomspace(1e-9, 1e-3, 600), np.linspace(1e-3, 1, 2000)[1:]])
        widths = np.diff(edges, prepend=0.0)
        heights = [self.bound(float(edge)) for edge in edges]
        return min(1.0, float(np.sum(widths * heights)))


def attack(models: Trained, *, seed: int, more: int = 0) -> list[Found]:
    """The result of every attack, on the target and on each model in turn.

    Shadows of a model are the others, less its pair and the target. Attacks that need public rows
    are left out if there are none. ``more``: further attacks of the same table, with which the
    intervals are simultaneous.
    """
    inside, results = models.inside, []
    known = answers(models, 0)
    usable_attacks = [each for each in membership_attacks() if usable(each, known)]
    rows = len(usable_attacks) + more
    confidence = confidence_of_each(rows)
    for each in usable_attacks:
        scores = np.stack([each.score(answers(models, target)) for target in range(len(inside))])
        members, others = scores[0, inside[0]], scores[0, ~inside[0]]
        in_turn, curve_and_band, drawn = pooled(scores, inside, seed=seed, confidence=confidence)
        result = Found(
            attack=each.name,
            success=threshold_on(members, others, seed).success,
            target=roc(members, others, confidence=confidence),
            sure=roc(members, others, confidence=refuting_confidence_of_each(rows)),
            in_turn=in_turn,
            curve=curve_and_band[0],
            band=curve_and_band[1:],
            drawn=drawn,
        )
        results.append(result)
    return results


def confidence_of_each(attacks: int, figures: int = FIGURES) -> float:
    """The confidence of one interval: all together have 1 - INTERVAL_ERROR (Bonferroni)."""
    return 1 - INTERVAL_ERROR / (attacks * figures)


def refuting_confidence_of_each(attacks: int) -> float:
    """The confidence of one interval that may contradict a claim (Bonferroni over attacks)."""
    return 1 - (1 - REFUTING_CONFIDENCE) / attacks


def threshold_on(
    members: Float[np.ndarray, " n"], others: Float[np.ndarray, " m"], seed: int
) -> LossThreshold:
    """The protocol of Yu et al. 2021 on the scores of any attack."""
    generator = public_generator(seed, "membership", "threshold")
    return loss_threshold(torch.from_numpy(-members), torch.from_numpy(-others), generator)


def usable(attack: MembershipAttack, known: Answers) -> bool:
    """Whether the answers have all that an attack needs."""
    return all(map(known.has, attack.needs))


def answers(models: Trained, target: int) -> Answers:
    """What an attack on one model reads. It does not have the model's own training rows."""
    others = [
        model for model in range(1, len(models.inside)) if model not in (target, pair_of(target))
    ]
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
    """Rates over all targets at one threshold, the curve with its band, and the bootstrap.

    The curve is NaN below the smallest rate that can be measured with so many non-members. The
    bootstrap has AUC and rates of each draw.

    Intervals are value +- z s: s the standard deviation over the draws, z the normal quantile of
    ``confidence``. A draw takes candidates with all their scores, because the scores of one
    candidate under several models depend on each other. The draws depend on the seed and the number
    of candidates only. The intervals do not cover that models share their shadows.
    """
    first = public_generator(seed, "membership", "bootstrap").initial_seed()
    generator = np.random.default_rng(first)
    count = scores.shape[1]
    ranks = np.unique(scores, return_inverse=True)[1].reshape(scores.shape)
    values = pooled_figures(ranks, inside, np.ones(count))
    draws = []
    for _ in range(BOOTSTRAP_DRAWS):
        candidates = generator.integers(0, count, count)
        draws.append(pooled_figures(ranks, inside, np.bincount(candidates, minlength=count)))
    drawn = np.array(draws)
    reach = float(ndtri((1 + confidence) / 2)) * drawn.std(0, ddof=1)
    lows, highs = np.clip(values - reach, 0, 1), np.clip(values + reach, 0, 1)
    figures = 1 + len(LOW_RATES)  # the order of ``pooled_figures``: AUC, LOW_RATES, GRID
    auc, *tpr = map(_interval, values[:figures], lows[:figures], highs[:figures])
    curve = np.stack([values[figures:], lows[figures:], highs[figures:]])
    curve[:, GRID * (~inside).sum() < 1] = np.nan
    return Roc(auc=auc, tpr=dict(zip(LOW_RATES, tpr, strict=True))), curve, drawn[:, :figures]


def _interval(value: float, low: float, high: float) -> Rate:
    """A number with an interval that is widened, if necessary, to include it."""
    return Rate(value=float(value), low=float(min(low, value)), high=float(max(high, value)))


def paired_difference(one: Found, other: Found) -> Rate | None:
    """TPR of ``one`` less that of ``other`` at the first of LOW_RATES, paired by candidate.

    The TPR is over all models in turn. None without draws of both, and for different numbers of
    draws.
    """
    if one.drawn is None or other.drawn is None or one.drawn.shape != other.drawn.shape:
        return None
    low, high = np.quantile(
        one.drawn[:, 1] - other.drawn[:, 1], [INTERVAL_ERROR / 2, 1 - INTERVAL_ERROR / 2]
    )
    value = one.in_turn.tpr[LOW_RATES[0]].value - other.in_turn.tpr[LOW_RATES[0]].value
    return _interval(value, low, high)


def pooled_figures(
    ranks: Int[np.ndarray, "targets candidates"],
    inside: Bool[np.ndarray, "targets candidates"],
    times: Float[np.ndarray, " candidates"] | Int[np.ndarray, " candidates"],
) -> Float[np.ndarray, " figures"]:
    """AUC, and TPR at LOW_RATES and at GRID, if each candidate counts ``times``.

    ranks: of the scores over all models, equal scores with one rank.
    """
    weight = np.broadcast_to(times, ranks.shape).astype(np.float64)
    scores = ranks.max() + 1
    members = np.bincount(ranks[inside], weights=weight[inside], minlength=scores)
    others = np.bincount(ranks[~inside], weights=weight[~inside], minlength=scores)
    # by rank: how many have this rank or a higher one; 0 above the highest
    hits, false_alarms = (np.append(group[::-1].cumsum()[::-1], 0.0) for group in (members, others))
    # share of pairs in which the member has the higher score; equal scores count half
    area = (others * (hits[1:] + members / 2)).sum() / members.sum() / others.sum()
    # 1e-9 exceeds the rounding error of a product that is a whole number
    allowed = (np.concatenate([LOW_RATES, GRID]) * others.sum() + 1e-9).astype(int)
    threshold = np.searchsorted(-false_alarms, -allowed)  # the lowest with no more false alarms
    return np.concatenate([[area], hits[threshold] / members.sum()])


def claimed(plan: Plan) -> tuple[Claim, tuple[Limit, ...]] | None:
    """The claim of the planned schedule for its worst client, and its bounds; None without a claim.

    The rates of one example are bounded at each false positive rate, and the bound is concave, so
    that it holds for the mean over examples at one threshold, too.
    """
    if not plan.method.mechanism.private:
        return None
    blocks, delta = count_blocks(plan), plan.settings.delta
    schedules = {tuple(events_of(plan, terms, blocks)) for terms in plan.terms}
    epsilons = {events: compose(list(events), delta=delta).upper for events in schedules}
    worst = max(epsilons, key=lambda events: epsilons[events])
    claim = claim_of(training_event(worst), epsilons[worst], delta)
    return claim, limits(claim, worst)


def limits(claim: Claim, events: tuple[Event, ...]) -> tuple[Limit, ...]:
    """The bound of (epsilon, delta), and before it that of the trade-off curve if it is computed.

    The curve is not computed for a claim with a pruning round or discrete noise.
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
    """The bound of (epsilon, delta): TPR <= min(e^eps FPR + delta, 1 - e^-eps (1 - delta - FPR)).

    The two terms are from the two directions of (epsilon, delta).
    """
    at_most = np.exp(min(epsilon, 700.0)) * rate + delta  # exp of a larger number overflows
    return float(min(1.0, at_most, 1 - np.exp(-epsilon) * max(0.0, 1 - delta - rate)))


def over_the_claim(sure: Mapping[str, Roc], limits: Sequence[Limit]) -> Mapping[str, str]:
    """By name, attacks whose exact 99 % interval is above a limit, with that limit in words."""
    above = {}
    for name, rates in sure.items():
        for rate, tpr in rates.tpr.items():
            for limit in limits:
                if tpr.low > limit.bound(rate):
                    above[name] = f"{limit.name}, at {100 * rate:g} % false alarms"
    return above
