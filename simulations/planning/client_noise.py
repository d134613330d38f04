"""Each client adds as much noise as its epsilon needs, over all rounds together.

A client is charged for its training steps and the pruning round, in addition to what it was charged
for before (``base.charged_before``). Noise is calibrated so that all of these together reach its
epsilon. It follows from the kind of the client alone: declared size, epsilon and delta. An epsilon
or delta that no noise can reach is refused before anything is written.

Two noise multipliers are distinguished: the effective one is noise over sensitivity, and is what
accountants take. The nominal one is noise over the clip norm C, and is what settings and terms say.
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
from fedlsg.simulations.planning.base.clients import (
    BY_NOISE,
    Clients,
    client_weights,
    own_weights,
)
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.state import ClientTerms

MAX_RATES = 32
"""Noise is calibrated for at most this many Poisson rates: a calibration takes a second."""
LEAST_LEFT = 1.001
"""The least ratio of epsilon to what was spent before: below it, too little is left to train."""
Noise = Mapping[Kind, tuple[float, float]]
"""Nominal noise multipliers of training and of the pruning round, by kind of client."""
NO_NOISE: Noise = {}
"""No noise multiplier was calibrated before."""


def client_terms(
    base: Base, blocks: int | None = None, noise: Noise = NO_NOISE
) -> Sequence[ClientTerms]:
    """Sampling rate, nominal noise multiplier and weight of every client.

    blocks: ``count_blocks`` of the model and method; None: it is counted here.
    noise: noise multipliers that were calibrated before; empty: they are calibrated here.
    Raises ValueError for a delta or a number of examples that is too large, for an epsilon that was
    spent before, and for noise at which no client would train.
    """
    clients = base.clients
    mechanism = base.method.mechanism
    if mechanism.private:
        check_deltas(clients)
    if base.sums is not None and not base.unit.whole and max(clients.sizes) > MOST_EXAMPLES:
        raise ValueError(
            f"trust=secure is planned for clients of {MOST_EXAMPLES:,} examples, one has "
            f"{max(clients.sizes):,}"
        )
    blocks = count_blocks(base) if blocks is None else blocks
    terms = _terms_of_kinds(base, blocks, noise)
    if base.settings.trust != "client":
        terms = _with_largest(terms)
    if mechanism.private:
        smallest_delta = min(delta for *_, delta in terms if delta is not None)
        for events in front(whole_histories(base, terms, blocks)):
            check_certified(events, smallest_delta)
            check_budget(events, clients)
    # one object for each kind: there may be a million clients
    each = tuple(terms[kind] for kind in clients.kinds)
    return weighted_by_noise(each) if counts_by_noise(base) else each


def _terms_of_kinds(base: Base, blocks: int, noise: Noise) -> dict[Kind, ClientTerms]:
    """The terms of each kind of client, with the noise that it would need alone."""
    weights = client_weights(base.clients, base.method.mechanism)
    rates = base.clients.rate_of_size
    sigmas = {kind: training for kind, (training, _) in noise.items()}
    if not noise:
        sigmas = dict(noise_of_each(base, blocks))
    terms = {
        kind: ClientTerms(
            num_examples=kind[0],
            sample_rate=rates[kind[0]],
            noise_multiplier=sigmas[kind],
            weight=weights[kind[0]],
        )
        for kind in dict.fromkeys(base.clients.kinds)
    }
    if noise:
        return {
            kind: replace(t, prune_noise_multiplier=noise[kind][1]) for kind, t in terms.items()
        }
    if base.method.prune.reads_data:
        return _with_pruning(base, terms, blocks)
    return terms


def check_deltas(clients: Clients) -> None:
    """Raise ValueError for a delta of 1 / (number of units) or more: a unit could be published.

    Unless clients are the units, the number is that of the largest client with this delta.
    """
    sizes: dict[float | None, set[int]] = {}
    for size, _, delta in clients.kinds:
        sizes.setdefault(delta, set()).add(size)
    for delta, sizes_of_delta in sizes.items():
        assert delta is not None, "a private mechanism has a delta"
        population = clients.sizes if clients.unit.whole else [*sizes_of_delta]
        check_delta(delta, clients.unit.population(population))


def _with_pruning(
    base: Base, terms: Mapping[Kind, ClientTerms], blocks: int
) -> dict[Kind, ClientTerms]:
    """The terms with the noise of the pruning round, which is computed once for equal charges."""
    noise_of_charge: dict[tuple[Any, ...], float] = {}
    pruned = {}
    for kind, t in terms.items():
        size, epsilon, delta = kind
        steps = base.clients.accounted_steps(size)
        charge = (t.sample_rate, steps, t.noise_multiplier, epsilon, delta)
        if charge not in noise_of_charge:
            noise_of_charge[charge] = pruning_noise(base, t, blocks, epsilon, delta)
        pruned[kind] = replace(t, prune_noise_multiplier=noise_of_charge[charge])
    return pruned


def _with_largest(terms: Mapping[Kind, ClientTerms]) -> dict[Kind, ClientTerms]:
    """The terms with the largest noise for all clients.

    Where only a sum is private, it needs the shares of all: unequal shares would add up to less
    noise than the client that needs most.
    """
    sigma = max(t.noise_multiplier for t in terms.values())
    prune = max(t.prune_noise_multiplier for t in terms.values())
    return {
        kind: replace(t, noise_multiplier=sigma, prune_noise_multiplier=prune)
        for kind, t in terms.items()
    }


def counts_by_noise(base: Base) -> bool:
    """Whether a client counts by 1 / sigma_k^2.

    ``weighting`` decides that. By default it is so for clients with own budgets, if rows are dealt
    at random. In other partitions clients may differ, and a mean by noise would prefer the data of
    clients with a large epsilon: noise averages out over rounds, this preference does not.
    """
    weighting = base.settings.weighting
    if weighting is not None:
        return weighting == BY_NOISE
    dealt_at_random = base.settings.partition == "iid" and base.declared is None
    return base.clients.own_budgets and dealt_at_random


def weighted_by_noise(terms: Sequence[ClientTerms]) -> Sequence[ClientTerms]:
    """The clients' terms with the weights that their noise gives them."""
    sigmas = [t.noise_multiplier for t in terms]
    batches = [t.sample_rate * t.num_examples for t in terms]
    weights = own_weights(sigmas, batches)
    return tuple(replace(t, weight=w) for t, w in zip(terms, weights, strict=True))


def whole_histories(
    base: Base, terms: Mapping[Kind, ClientTerms], blocks: int
) -> list[tuple[Event, ...]]:
    """All events of clients when all planned rounds are over, with those from before the plan.

    Each entry has the planned events first. Kinds of clients that are charged alike share one.
    """
    different = {}
    for kind, t in terms.items():
        noise = t.sample_rate, t.noise_multiplier, t.prune_noise_multiplier
        steps = base.clients.accounted_steps(t.num_examples)
        earlier = base.before.of(kind)
        different[noise, steps, earlier] = t
    return [
        (*events_of(base, t, blocks), *history)
        for (_, _, earlier), t in different.items()
        for history in earlier
    ]


def events_of(base: Base, terms: ClientTerms, blocks: int) -> list[Event]:
    """The events of a client in the planned rounds: its training steps, then the pruning round."""
    clients = base.clients
    mechanism = terms.mechanism(base.method.mechanism)
    effective = mechanism.noise_multiplier
    if mechanism.private:
        effective = mechanism.effective_noise_multiplier(blocks)
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
    """The most that the discrete noise of secure sums adds to the privacy loss, in all releases."""
    return 0.0 if base.sums is None else most_log_ratio(base.sums)


def pruning_round(method: Method, epsilon: float | None, delta: float | None) -> tuple[Event, ...]:
    """The event of the pruning round, which alone spends its share of the epsilon.

    () without a pruning round that adds noise, and without a given epsilon.
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

    If the noise multiplier of training was given instead of an epsilon, the round spends its share
    of the epsilon that training costs.
    """
    prune = base.method.prune
    if not (prune.reads_data and base.method.mechanism.adds_noise):
        return 0.0
    if epsilon is not None:
        (event,) = pruning_round(base.method, epsilon, delta)
        return event.noise_multiplier
    assert delta is not None, "a private mechanism has a delta"
    target = prune.epsilon_share * compose(events_of(base, terms, blocks), delta=delta).upper
    return calibrate_noise_multiplier(epsilon=target, delta=delta, sample_rate=1.0, steps=1)


def check_budget(events: Sequence[Event], clients: Clients) -> None:
    """Raise ValueError if one round at the given noise multiplier spends more than the epsilon.

    events: of a client by the plan; the first one has the training steps.
    """
    s = clients.settings
    if s.epsilon is None or s.noise_multiplier is None:
        return
    training, *others = events
    steps = clients.accounted_steps(min(clients.sizes), clients.steps_a_round)
    log_ratio = training.log_ratio * steps / training.steps
    one_round = [replace(training, steps=steps, log_ratio=log_ratio), *others]
    try:
        spent = compose(one_round, delta=s.delta, accountants=("pld",)).upper
    except AccountingError:  # the cheap accountant failed; every client uses both before it trains
        return
    if spent > s.epsilon:
        raise ValueError(
            f"at noise_multiplier={s.noise_multiplier:g} one round costs epsilon {spent:.3g}, more "
            f"than the budget epsilon={s.epsilon:g}: no client would train; give one of the two, "
            "or more noise"
        )


def check_certified(events: Sequence[Event], delta: float) -> None:
    """Raise AccountingError, a ValueError, unless an accountant certifies a finite epsilon.

    The cheaper accountant is asked first.
    """
    try:
        compose(events, delta=delta, accountants=("pld",))
    except AccountingError:
        compose(events, delta=delta)


def noise_of_each(base: Base, blocks: int) -> Mapping[Kind, float]:
    """Nominal noise multiplier of training, by kind of client.

    It is the given one if there is one, and 0 without noise. Otherwise the effective one,
    sigma_eff, is calibrated so that training, the pruning round and all earlier charges together
    reach epsilon: they are on the same examples. Then

        sigma = sigma_eff * (sensitivity / C) * (examples of a unit)
    """
    mechanism = base.method.mechanism
    kinds = dict.fromkeys(base.clients.kinds)
    given = base.settings.noise_multiplier if mechanism.adds_noise else 0.0
    if given is not None:
        return dict.fromkeys(kinds, given)
    # kinds that have the same budget and the same past are calibrated together
    by_budget: dict[tuple[float, float, History], list[Kind]] = {}
    for kind in kinds:
        _, epsilon, delta = kind
        if epsilon is None or delta is None:
            raise ValueError("expected either epsilon and delta, or noise_multiplier")
        for history in base.before.of(kind):
            by_budget.setdefault((epsilon, delta, history), []).append(kind)
    charges = charged_by_size(base.clients)
    effective = dict.fromkeys(kinds, 0.0)  # the largest over the pasts of a kind
    for (epsilon, delta, history), kinds_of_budget in by_budget.items():
        check_something_left(history, epsilon, delta)
        pruning = () if base.before.rounds else pruning_round(base.method, epsilon, delta)
        sigmas = calibrate_each(
            {charges[size] for size, _, _ in kinds_of_budget},
            epsilon=epsilon,
            delta=delta,
            besides=(*pruning, *history),
            log_ratio=log_ratio_of(base),
        )
        for kind in kinds_of_budget:
            effective[kind] = max(effective[kind], sigmas[charges[kind[0]]])
    sensitivity = mechanism.sensitivity(blocks) / mechanism.clip_norm if mechanism.clips else 1.0
    return {kind: sigma * sensitivity * base.unit.examples for kind, sigma in effective.items()}


def charged_by_size(clients: Clients) -> dict[int, tuple[float, int]]:
    """The sampling rate and the steps that noise is calibrated for, by declared size.

    Beyond MAX_RATES different rates, clients share the noise of a larger rate than their own, which
    is enough for them.
    """
    rates = clients.rate_of_size
    shared = shared_rates(map(clients.accounted_rate, rates.values()), limit=MAX_RATES)
    return {
        size: (rate, clients.accounted_steps(size))
        for rate, size in zip(shared, rates, strict=True)
    }


def check_something_left(history: History, epsilon: float, delta: float) -> None:
    """Raise ValueError if a client has spent (nearly) all of its epsilon before."""
    before = spread([history], delta=delta).largest
    if before * LEAST_LEFT >= epsilon:
        raise ValueError(
            f"epsilon={epsilon:g} is for all rounds together, and the clients have spent "
            f"{before:.4g} at delta={delta:g} before: give a larger epsilon"
        )
