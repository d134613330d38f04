"""From a base to a plan: each client's Poisson rate and its calibrated noise. Made once, on the
server's side.

Refused before anything is written: an epsilon or delta that no noise can reach, and a model that
mixes examples. The model is run on public rows of the test split, never on training rows.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

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
from fedlsg.carriers import carried_parameters
from fedlsg.gradients import LossFunction, check_supported, trainable
from fedlsg.gradients.independence import check_model
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.secure_sum.discrete import most_log_ratio
from fedlsg.secure_sum.discrete.sum_release import MOST_EXAMPLES
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.before import Before, History, Kind
from fedlsg.simulations.planning.memory import with_microbatch
from fedlsg.simulations.planning.prepare import (
    check_clients,
    check_personal,
    client_weights,
    prepare,
)
from fedlsg.simulations.planning.row_faults import check_rows, check_train_shape, naming_failures
from fedlsg.simulations.planning.run_base import Base
from fedlsg.simulations.planning.start_weights import check_source
from fedlsg.simulations.settings.own_epsilons import own_weights
from fedlsg.simulations.settings.participation import adaptive_clip
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.workloads import LoadedWorkload, Progress, Split, silent, to_device
from fedlsg.state import ClientTerms, different_terms
from fedlsg.training import make_optimizer
from fedlsg.user_code.objects import restored

__all__ = ["Base", "Plan", "make_plan", "prepare"]

SHARED = 32  # at most this many Poisson rates get noise of their own: a calibration takes a second
PROBES = 7
Spent = Callable[[Base], Before]
Noise = Mapping[Kind, tuple[float, float]]
"""Noise multipliers of training and of the pruning round, by kind of client."""
NO_NOISE: Noise = {}
TOKENS = 16
"""Most tokens of a probe text, if enough texts are that short: the check of long texts is slow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Base):
    """A base with the terms of every client: its Poisson rate and its calibrated noise
    multiplier.

    ``notes``: what the owner should know before the first charge, a sentence each. ``began``: when
    the command or call began that the user waits for, on the clock of ``time.monotonic``.
    """

    terms: Sequence[ClientTerms]
    notes: tuple[str, ...] = ()
    began: float = field(default_factory=time.monotonic)


def make_plan(
    settings: Settings,
    *,
    progress: Progress = silent,
    declared: Sequence[int] | None = None,
    given: Collection[str] = (),
    loaded: LoadedWorkload | None = None,
    spent: Spent | None = None,
    noise: Noise = NO_NOISE,
) -> Plan:
    """``prepare``, then check delta and calibrate each client's noise multiplier.

    The multiplier targets the largest number of local steps of any client in the public schedule;
    no amplification by client sampling is claimed. ``spent``: what the clients of a base were
    charged for before, which epsilon covers, too. ``noise``: that of clients by their size, where
    it was calibrated when the run was last planned. Raises ValueError for a delta or an epsilon
    that cannot be met.
    """
    base = prepare(settings, progress=progress, declared=declared, given=given, loaded=loaded)
    base = with_microbatch(base.with_level())
    if spent is not None:
        base = replace(base, before=spent(base))
    base.participation  # noqa: B018 - raises for a trace that cannot be used
    check_clients(base)
    if base.method.carrier.source is not None:
        progress(f"reading the source of probes, {base.probe_source.name}")
        check_source(base.probe_source, base.build_model(), base.workload)
    own = workloads.own(base.settings.workload) is not None
    if own:
        progress("checking the rows")
        check_rows(base)
    progress(f"calibrating the noise of {len(base.sizes):,} clients")
    terms = client_terms(base, noise=noise)
    if own and declared is None:
        check_train_shape(
            base.build_model(), base.workload.train, base.workload.test, device=base.device
        )
    common = {t.noise_multiplier for t in different_terms(terms)}
    if base.method.mechanism.adds_noise:
        largest = max(common)
        mechanism = replace(base.method.mechanism, noise_multiplier=largest)
        alike = len(common) == 1 and not base.own_budgets
        resolved = replace(base.settings, noise_multiplier=largest if alike else None)
        if base.draws_in_secret:
            adaptive_clip(base.settings, largest)
        base = replace(base, settings=resolved, method=replace(base.method, mechanism=mechanism))
    return Plan(**{f.name: getattr(base, f.name) for f in fields(Base)}, terms=terms)


def client_terms(
    base: Base, blocks: int | None = None, noise: Noise = NO_NOISE
) -> Sequence[ClientTerms]:
    """Rate and nominal noise multiplier of every client; both follow from its declared size and
    its epsilon, and from what clients of that kind have spent before.

    ``blocks``: ``count_blocks`` of the same model and method, where that is known. ``noise``: as in
    ``make_plan``.
    """
    s, mechanism = base.settings, base.method.mechanism
    kinds = dict.fromkeys(base.kinds)
    if mechanism.private:
        check_deltas(base)
    if base.sums is not None and not base.unit.whole and max(base.sizes) > MOST_EXAMPLES:
        raise ValueError(
            f"trust=secure is planned for clients of {MOST_EXAMPLES:,} examples, one has "
            f"{max(base.sizes):,}"
        )
    blocks = count_blocks(base) if blocks is None else blocks
    # Noise for a larger rate is enough for a smaller one: beyond SHARED different rates, clients
    # share it.
    weights = client_weights(base)
    rates = {size: base.rate_of(size) for size in weights}
    shared = shared_rates(map(base.accounted_rate, rates.values()), limit=SHARED)
    of_size = {size: (q, base.accounted_steps(size)) for q, size in zip(shared, rates, strict=True)}
    settings = {kind: of_size[kind[0]] for kind in kinds}
    sigmas = (
        {kind: noise[kind][0] for kind in settings}
        if noise
        else noise_of_each(base, blocks, settings)
    )
    pruning: dict[tuple[Any, ...], float] = {}
    terms = list[ClientTerms]()
    for kind, setting in settings.items():
        size, *budget = kind
        rate = rates[size]
        one = ClientTerms(
            num_examples=size,
            sample_rate=rate,
            noise_multiplier=sigmas[kind],
            weight=weights[size],
        )
        if noise:
            one = replace(one, prune_noise_multiplier=noise[kind][1])
        elif base.method.prune.reads_data:
            key = rate, setting[1], one.noise_multiplier, *budget
            if key not in pruning:
                pruning[key] = pruning_noise(base, one, blocks, *budget)
            one = replace(one, prune_noise_multiplier=pruning[key])
        terms.append(one)
    if s.trust != "client":
        # The sum has all shares of the noise: unequal shares would add up to less than the largest
        # client needs.
        largest = max(t.noise_multiplier for t in terms)
        most = max(t.prune_noise_multiplier for t in terms)
        terms = [replace(t, noise_multiplier=largest, prune_noise_multiplier=most) for t in terms]
    if mechanism.private:
        of_kind = dict(zip(settings, terms, strict=True))
        least = min(delta for *_, delta in kinds if delta is not None)
        for events in front(whole_histories(base, of_kind, blocks)):
            check_certified(events, least)
            check_budget(events, base)
    # one object for each kind: there may be a million clients
    of_kind = dict(zip(settings, terms, strict=True))
    found = tuple(map(of_kind.__getitem__, base.kinds))
    return _weighted(found) if base.own_budgets else found


def check_deltas(base: Base) -> None:
    """Raise ValueError for a delta of clients at which a unit of theirs could be published."""
    sizes: dict[float | None, set[int]] = {}
    for size, _, delta in base.kinds:
        sizes.setdefault(delta, set()).add(size)
    for delta, own in sizes.items():
        assert delta is not None, "a private mechanism has a delta"
        check_delta(delta, base.unit.population(base.sizes if base.unit.whole else [*own]))


def _weighted(terms: Sequence[ClientTerms]) -> Sequence[ClientTerms]:
    """The clients' terms with the weights that their noise gives them."""
    sigmas = [one.noise_multiplier for one in terms]
    weights = own_weights(sigmas, [one.sample_rate * one.num_examples for one in terms])
    return tuple(replace(one, weight=w) for one, w in zip(terms, weights, strict=True))


def whole_histories(
    base: Base, terms: Mapping[Kind, ClientTerms], blocks: int
) -> list[tuple[Event, ...]]:
    """What clients will have been charged for when all rounds are over: before, and by the plan.
    ``terms``: of each kind of client.
    """
    different = {}
    for kind, t in terms.items():
        noise = t.sample_rate, t.noise_multiplier, t.prune_noise_multiplier
        steps, earlier = base.accounted_steps(t.num_examples), base.before.of(kind)
        different[noise, steps, earlier] = t
    return [
        (*events_of(base, one, blocks), *history)
        for (*_, earlier), one in different.items()
        for history in earlier
    ]


def planned_epsilon(plan: Plan) -> float:
    """The largest epsilon of a client when all rounds are over, with what was spent before them."""
    terms = dict(zip(plan.kinds, plan.terms, strict=True))
    histories = whole_histories(plan, terms, count_blocks(plan))
    return spread(histories, delta=plan.settings.delta).largest


def events_of(base: Base, terms: ClientTerms, blocks: int) -> list[Event]:
    """What a client that always takes part is charged for in the rounds that come: its training
    steps, and the pruning round.
    """
    mechanism = terms.mechanism(base.method.mechanism)
    effective = (
        mechanism.effective_noise_multiplier(blocks)
        if mechanism.private
        else mechanism.noise_multiplier
    )
    effective /= base.unit.examples
    log_ratio = 0.0 if base.sums is None else most_log_ratio(base.sums)
    steps = base.accounted_steps(terms.num_examples)
    rate = base.accounted_rate(terms.sample_rate)
    events = [Event(sample_rate=rate, noise_multiplier=effective, steps=steps, log_ratio=log_ratio)]
    if terms.prune_noise_multiplier and not base.before.rounds:  # it was charged before
        events.append(
            Event(sample_rate=1.0, noise_multiplier=terms.prune_noise_multiplier, steps=1)
        )
    return events


def pruning_round(base: Base, epsilon: float | None, delta: float | None) -> tuple[Event, ...]:
    """The pruning round's event if an epsilon is given: alone it spends its share of that
    epsilon.
    """
    prune = base.method.prune
    if not (prune.reads_data and base.method.mechanism.adds_noise) or epsilon is None:
        return ()
    target = prune.epsilon_share * epsilon
    sigma = calibrate_noise_multiplier(epsilon=target, delta=delta, sample_rate=1.0, steps=1)
    return (Event(sample_rate=1.0, noise_multiplier=sigma, steps=1),)


def pruning_noise(
    base: Base, terms: ClientTerms, blocks: int, epsilon: float | None, delta: float | None
) -> float:
    """Noise multiplier of the pruning round, 0 without one.

    If the noise multiplier of training was given instead of an epsilon, the share is of training's
    own epsilon.
    """
    prune, mechanism = base.method.prune, base.method.mechanism
    if not (prune.reads_data and mechanism.adds_noise):
        return 0.0
    known_round = pruning_round(base, epsilon, delta)
    if known_round:
        return known_round[0].noise_multiplier
    assert delta is not None, "a private mechanism has a delta"
    target = prune.epsilon_share * compose(events_of(base, terms, blocks), delta=delta).upper
    return calibrate_noise_multiplier(epsilon=target, delta=delta, sample_rate=1.0, steps=1)


def check_budget(events: Sequence[Event], base: Base) -> None:
    """Raise ValueError if a single round at the given noise multiplier spends more than the given
    epsilon.
    """
    s = base.settings
    if s.epsilon is None or s.noise_multiplier is None:
        return
    first, *others = events
    steps = base.accounted_steps(min(base.sizes), base.steps_a_round)
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


def noise_of_each(
    base: Base, blocks: int, settings: Mapping[Kind, tuple[float, int]]
) -> Mapping[Kind, float]:
    """Nominal noise multiplier by kind of client; ``settings``: what clients of a kind are charged
    with in the rounds that come, sampling rate and steps.

    Its effective one reaches epsilon: sigma = sigma_eff * sensitivity / C, times the examples of a
    unit. The same epsilon covers the pruning round, and whatever was charged before, which are on
    the same examples. The given noise multiplier where there is one; 0 without noise.
    """
    s, mechanism = base.settings, base.method.mechanism
    if not mechanism.adds_noise or s.noise_multiplier is not None:
        return dict.fromkeys(settings, (s.noise_multiplier or 0.0) if mechanism.adds_noise else 0.0)
    together: dict[tuple[float, float, History], list[Kind]] = {}
    for kind in settings:
        _, epsilon, delta = kind
        if epsilon is None or delta is None:
            raise ValueError("expected either epsilon and delta, or noise_multiplier")
        for history in base.before.of(kind):
            together.setdefault((epsilon, delta, history), []).append(kind)
    effective = dict.fromkeys(settings, 0.0)
    for (epsilon, delta, history), kinds in together.items():
        check_something_left(history, epsilon, delta)
        pruning = () if base.before.rounds else pruning_round(base, epsilon, delta)
        each = calibrate_each(
            {settings[kind] for kind in kinds},
            epsilon=epsilon,
            delta=delta,
            besides=(*pruning, *history),
            log_ratio=0.0 if base.sums is None else most_log_ratio(base.sums),
        )
        for kind in kinds:
            effective[kind] = max(effective[kind], each[settings[kind]])
    nominal = mechanism.sensitivity(blocks) / mechanism.clip_norm if mechanism.clips else 1.0
    return {kind: sigma * nominal * base.unit.examples for kind, sigma in effective.items()}


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


def count_blocks(base: Base) -> int:
    """Blocks of every frame of the run: ``Carrier.parts`` a carried weight, one any other trainable
    parameter.

    Raises ValueError if a function of the user that makes carriers or masks cannot make the first
    frame, or not twice the same.
    """
    if base.method.own_functions:
        base.public_state().check_repeatable()
    model = base.build_model()
    if workloads.own(base.settings.workload) is not None:
        check_repeatable(model, base.build_model())
    check_supported(model)
    check_weights(trainable(model))
    # refuses now what it cannot step
    make_optimizer(trainable(model), base.method.server, updates=1)
    if base.method.mechanism.clips:
        check_independent(
            model,
            base.workload.test,
            base.workload.loss,
            device=base.device,
            level=base.local.isolation,
        )
    else:
        check_runs(model, base.workload.test, base.workload.loss, device=base.device)
    carried = carried_parameters(model, base.method.carrier, classifier=base.workload.classifier)
    check_personal(base, trainable(model), carried)
    return len(trainable(model)) + len(carried) * (len(base.method.carrier.parts) - 1)


def check_weights(weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError where all trainable weights have 16 bits: most updates are smaller than
    their rounding.
    """
    types = {weight.dtype for weight in weights.values()}
    if types and types <= {torch.bfloat16, torch.float16}:
        raise ValueError(
            f"the model's weights are {' and '.join(sorted(map(str, types)))}, whose rounding "
            "hides most updates: give it float32 weights, model.float(), and float32 inputs; "
            "precision='bfloat16' takes passes in bfloat16"
        )


def check_repeatable(model: nn.Module, again: nn.Module) -> None:
    """Raise ValueError unless two builds of a model have equal weights and buffers: every process
    builds its own.
    """
    other = again.state_dict()
    changed = [
        name for name, value in model.state_dict().items() if not same_bits(value, other.get(name))
    ]
    if changed or len(other) != len(model.state_dict()):
        raise ValueError(
            "model: two calls of its function differ in "
            f"{', '.join(changed[:3]) or 'their state'}, and server and clients would not have the "
            "same model: draw from torch's default generator only, which is seeded"
        )


def same_bits(a: object, b: object) -> bool:
    """Whether two entries of a state are equal, NaN included."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    return type(a) is type(b)


def check_independent(
    model: nn.Module, test: Split, loss: LossFunction, *, device: str, level: Isolation = "checked"
) -> None:
    """Raise ``UnsupportedLayerError``, naming the layer, if the model mixes the examples of a
    batch.

    The texts of a batch have the same padded length here, alone and together: effects of padding
    are not checked.
    """
    inputs, targets = test.batch(probes(test))
    with naming_failures(model, inputs, targets, "test"):
        rows = to_device(inputs, device), targets.to(device)
        with restored(loss):
            check_model(model, loss, [rows], level=level)


@torch.no_grad()
def check_runs(model: nn.Module, test: Split, loss: LossFunction, *, device: str) -> None:
    """Raise ValueError if model or loss fail on a few public rows; for methods that may mix
    examples.
    """
    inputs, targets = test.batch(probes(test))
    model.eval()
    with naming_failures(model, inputs, targets, "test"):
        inputs = to_device(inputs, device)
        loss(model(**inputs) if isinstance(inputs, dict) else model(inputs), targets.to(device))


def probes(test: Split) -> Int64[Tensor, " rows"]:
    """Public rows from all over a test split; of texts, of all lengths up to ``TOKENS``, or the
    shortest.

    The longest is first: a batch with it is as long as that one alone.
    """
    rows = test.order(torch.arange(len(test)))
    if test.lengths is not None:
        short = int((test.lengths <= TOKENS).sum())
        rows = rows[: max(short, PROBES)]
    return rows[torch.linspace(len(rows) - 1, 0, PROBES).long()]
