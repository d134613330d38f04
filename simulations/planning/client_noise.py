"""The noise of every client: calibrated so that its charges, and what it was charged for before,
reach its epsilon.

Refused before anything is written: an epsilon or delta that no noise can reach.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedlsg.accounting import (
    AccountingError,
    Event,
    calibrate_each,
    calibrate_noise_multiplier,
    check_delta,
    compose,
    shared_rates,
)
from fedlsg.accounting.population import front, spread
from fedlsg.method import Method
from fedlsg.secure_sum.discrete import most_log_ratio
from fedlsg.secure_sum.discrete.sum_release import MOST_EXAMPLES
from fedlsg.simulations.planning.base.charged_before import History, Kind
from fedlsg.simulations.planning.base.clients import Clients, client_weights, own_weights
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.state import ClientTerms

SHARED = 32  # at most this many Poisson rates get noise of their own: a calibration takes a second
Noise = Mapping[Kind, tuple[float, float]]
"""Noise multipliers of training and of the pruning round, by kind of client."""
NO_NOISE: Noise = {}


def client_terms(
    base: Base, blocks: int | None = None, noise: Noise = NO_NOISE
) -> Sequence[ClientTerms]:
    """Rate and nominal noise multiplier of every client; both follow from its declared size and
    its epsilon, and from what clients of that kind have spent before.

    ``blocks``: ``count_blocks`` of the same model and method, where that is known. ``noise``: as in
    ``make_plan``.
    """
    clients, mechanism = base.clients, base.method.mechanism
    if mechanism.private:
        check_deltas(clients)
    if base.sums is not None and not base.unit.whole and max(clients.sizes) > MOST_EXAMPLES:
        raise ValueError(
            f"trust=secure is planned for clients of {MOST_EXAMPLES:,} examples, one has "
            f"{max(clients.sizes):,}"
        )
    blocks = count_blocks(base) if blocks is None else blocks
    weights, rates = client_weights(clients, mechanism), clients.rate_of_size
    sigmas = noise_of_each(base, blocks) if not noise else {k: noise[k][0] for k in noise}
    terms = {
        kind: ClientTerms(
            num_examples=kind[0],
            sample_rate=rates[kind[0]],
            noise_multiplier=sigmas[kind],
            weight=weights[kind[0]],
        )
        for kind in dict.fromkeys(clients.kinds)
    }
    if noise:
        terms = {k: replace(t, prune_noise_multiplier=noise[k][1]) for k, t in terms.items()}
    elif base.method.prune.reads_data:
        terms = _with_pruning(base, terms, blocks)
    if base.settings.trust != "client":
        terms = _with_largest(terms)
    if mechanism.private:
        least = min(delta for *_, delta in terms if delta is not None)
        for events in front(whole_histories(base, terms, blocks)):
            check_certified(events, least)
            check_budget(events, clients)
    # one object for each kind: there may be a million clients
    each = tuple(map(terms.__getitem__, clients.kinds))
    return _weighted(each) if clients.own_budgets else each


def check_deltas(clients: Clients) -> None:
    """Raise ValueError for a delta of clients at which a unit of theirs could be published."""
    sizes: dict[float | None, set[int]] = {}
    for size, _, delta in clients.kinds:
        sizes.setdefault(delta, set()).add(size)
    for delta, of_delta in sizes.items():
        assert delta is not None, "a private mechanism has a delta"
        together = clients.sizes if clients.unit.whole else [*of_delta]
        check_delta(delta, clients.unit.population(together))


def _with_pruning(
    base: Base, terms: Mapping[Kind, ClientTerms], blocks: int
) -> dict[Kind, ClientTerms]:
    """The terms with the noise of the pruning round, which is computed once for equal charges."""
    known: dict[tuple[Any, ...], float] = {}
    pruned = {}
    for kind, t in terms.items():
        size, *budget = kind
        charge = t.sample_rate, base.clients.accounted_steps(size), t.noise_multiplier, *budget
        if charge not in known:
            known[charge] = pruning_noise(base, t, blocks, *budget)
        pruned[kind] = replace(t, prune_noise_multiplier=known[charge])
    return pruned


def _with_largest(terms: Mapping[Kind, ClientTerms]) -> dict[Kind, ClientTerms]:
    """The terms with the largest noise for all. The sum has all shares of the noise: unequal shares
    would add up to less than the largest client needs.
    """
    sigma = max(t.noise_multiplier for t in terms.values())
    prune = max(t.prune_noise_multiplier for t in terms.values())
    return {
        kind: replace(t, noise_multiplier=sigma, prune_noise_multiplier=prune)
        for kind, t in terms.items()
    }


def _weighted(terms: Sequence[ClientTerms]) -> Sequence[ClientTerms]:
    """The clients' terms with the weights that their noise gives them."""
    sigmas = [t.noise_multiplier for t in terms]
    weights = own_weights(sigmas, [t.sample_rate * t.num_examples for t in terms])
    return tuple(replace(t, weight=w) for t, w in zip(terms, weights, strict=True))


def whole_histories(
    base: Base, terms: Mapping[Kind, ClientTerms], blocks: int
) -> list[tuple[Event, ...]]:
    """What clients will have been charged for when all rounds are over: before, and by the plan.
    ``terms``: of each kind of client.
    """
    different = {}
    for kind, t in terms.items():
        noise = t.sample_rate, t.noise_multiplier, t.prune_noise_multiplier
        steps, earlier = base.clients.accounted_steps(t.num_examples), base.before.of(kind)
        different[noise, steps, earlier] = t
    return [
        (*events_of(base, t, blocks), *history)
        for (*_, earlier), t in different.items()
        for history in earlier
    ]


def events_of(base: Base, terms: ClientTerms, blocks: int) -> list[Event]:
    """What a client that always takes part is charged for in the rounds that come: its training
    steps, and the pruning round.
    """
    mechanism, clients = terms.mechanism(base.method.mechanism), base.clients
    effective = (
        mechanism.effective_noise_multiplier(blocks)
        if mechanism.private
        else mechanism.noise_multiplier
    )
    training = Event(
        sample_rate=clients.accounted_rate(terms.sample_rate),
        noise_multiplier=effective / base.unit.examples,
        steps=clients.accounted_steps(terms.num_examples),
        log_ratio=log_ratio_of(base),
    )
    sigma = terms.prune_noise_multiplier
    if not sigma or base.before.rounds:  # the pruning round was charged before
        return [training]
    return [training, Event(sample_rate=1.0, noise_multiplier=sigma, steps=1)]


def log_ratio_of(base: Base) -> float:
    """What the rounding of a secure sum adds to the privacy loss of a release, at the most."""
    return 0.0 if base.sums is None else most_log_ratio(base.sums)


def pruning_round(method: Method, epsilon: float | None, delta: float | None) -> tuple[Event, ...]:
    """The pruning round's event if an epsilon is given: alone it spends its share of that
    epsilon.
    """
    if not (method.prune.reads_data and method.mechanism.adds_noise) or epsilon is None:
        return ()
    target = method.prune.epsilon_share * epsilon
    sigma = calibrate_noise_multiplier(epsilon=target, delta=delta, sample_rate=1.0, steps=1)
    return (Event(sample_rate=1.0, noise_multiplier=sigma, steps=1),)


def pruning_noise(
    base: Base, terms: ClientTerms, blocks: int, epsilon: float | None, delta: float | None
) -> float:
    """Noise multiplier of the pruning round, 0 without one.

    If the noise multiplier of training was given instead of an epsilon, the share is of training's
    own epsilon.
    """
    prune = base.method.prune
    if not (prune.reads_data and base.method.mechanism.adds_noise):
        return 0.0
    if known_round := pruning_round(base.method, epsilon, delta):
        return known_round[0].noise_multiplier
    assert delta is not None, "a private mechanism has a delta"
    target = prune.epsilon_share * compose(events_of(base, terms, blocks), delta=delta).upper
    return calibrate_noise_multiplier(epsilon=target, delta=delta, sample_rate=1.0, steps=1)


def check_budget(events: Sequence[Event], clients: Clients) -> None:
    """Raise ValueError if a single round at the given noise multiplier spends more than the given
    epsilon.
    """
    s = clients.settings
    if s.epsilon is None or s.noise_multiplier is None:
        return
    first, *others = events
    steps = clients.accounted_steps(min(clients.sizes), clients.steps_a_round)
    once = [replace(first, steps=steps, log_ratio=first.log_ratio * steps / first.steps), *others]
    try:
        spent = compose(once, delta=s.delta, accountants=("pld",)).upper
    except AccountingError:  # the cheap accountant failed; every client uses both before it trains
        return
    if spent > s.epsilon:
        raise ValueError(
            f"at noise_multiplier={s.noise_multiplier:g} one round costs epsilon {spent:.3g}, more "
            f"than the budget epsilon={s.epsilon:g}: no client would train; give one of the two, "
            "or more noise"
        )


def check_certified(events: Sequence[Event], delta: float) -> None:
    """Raise AccountingError, a ValueError, unless an accountant certifies a finite epsilon; the
    cheaper goes first.
    """
    try:
        compose(events, delta=delta, accountants=("pld",))
    except AccountingError:
        compose(events, delta=delta)


def noise_of_each(base: Base, blocks: int) -> Mapping[Kind, float]:
    """Nominal noise multiplier by kind of client.

    Its effective one reaches epsilon: sigma = sigma_eff * sensitivity / C, times the examples of a
    unit. The same epsilon covers the pruning round, and whatever was charged before, which are on
    the same examples. The given noise multiplier where there is one; 0 without noise.
    """
    mechanism, kinds = base.method.mechanism, dict.fromkeys(base.clients.kinds)
    given = base.settings.noise_multiplier if mechanism.adds_noise else 0.0
    if given is not None:
        return dict.fromkeys(kinds, given)
    together: dict[tuple[float, float, History], list[Kind]] = {}
    for kind in kinds:
        _, epsilon, delta = kind
        if epsilon is None or delta is None:
            raise ValueError("expected either epsilon and delta, or noise_multiplier")
        for history in base.before.of(kind):
            together.setdefault((epsilon, delta, history), []).append(kind)
    charged = charged_by_size(base.clients)
    effective = dict.fromkeys(kinds, 0.0)
    for (epsilon, delta, history), alike in together.items():
        check_something_left(history, epsilon, delta)
        pruning = () if base.before.rounds else pruning_round(base.method, epsilon, delta)
        sigmas = calibrate_each(
            {charged[size] for size, *_ in alike},
            epsilon=epsilon,
            delta=delta,
            besides=(*pruning, *history),
            log_ratio=log_ratio_of(base),
        )
        for kind in alike:
            effective[kind] = max(effective[kind], sigmas[charged[kind[0]]])
    nominal = mechanism.sensitivity(blocks) / mechanism.clip_norm if mechanism.clips else 1.0
    return {kind: sigma * nominal * base.unit.examples for kind, sigma in effective.items()}


def charged_by_size(clients: Clients) -> dict[int, tuple[float, int]]:
    """What noise is calibrated for in the rounds that come: sampling rate and steps, by declared
    size.

    Noise for a larger rate is enough for a smaller one: beyond SHARED different rates, clients
    share it.
    """
    rates = clients.rate_of_size
    shared = shared_rates(map(clients.accounted_rate, rates.values()), limit=SHARED)
    return {
        size: (rate, clients.accounted_steps(size))
        for rate, size in zip(shared, rates, strict=True)
    }


LEAST_LEFT = 1.001
"""An epsilon that is above what was spent by a smaller factor leaves nothing to train with."""


def check_something_left(history: History, epsilon: float, delta: float) -> None:
    """Raise ValueError if what a client has spent before leaves nothing of its epsilon."""
    before = spread([history], delta=delta).largest
    if before * LEAST_LEFT >= epsilon:
        raise ValueError(
            f"epsilon={epsilon:g} is for all rounds together, and the clients have spent "
            f"{before:.4g} at delta={delta:g} before: give a larger epsilon"
        )
