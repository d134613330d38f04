"""From a base to a plan: each client's Poisson rate and its calibrated noise. Made once, on the
server's side.

Refused before anything is written: an epsilon or delta that no noise can reach, and a model that
mixes examples. The model is run on public rows of the test split, never on training rows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace

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
from fedlsg.accounting.population import front
from fedlsg.carriers import carried_parameters
from fedlsg.gradients import LossFunction, check_supported, trainable
from fedlsg.gradients.independence import check_model
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.secure_sum.discrete import most_log_ratio
from fedlsg.secure_sum.discrete.sum_release import MOST_EXAMPLES
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.prepare import check_personal, client_weights, prepare
from fedlsg.simulations.planning.row_faults import check_rows, check_train_shape, naming_failures
from fedlsg.simulations.planning.run_base import Base
from fedlsg.simulations.planning.start_weights import check_source
from fedlsg.simulations.settings.participation import adaptive_clip
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.workloads import LoadedWorkload, Progress, Split, silent, to_device
from fedlsg.state import ClientTerms, different_terms
from fedlsg.training import make_optimizer
from fedlsg.user_code.objects import restored

__all__ = ["Base", "Plan", "make_plan", "prepare"]

SHARED = 32  # at most this many Poisson rates get noise of their own: a calibration takes a second
PROBES = 7
TOKENS = 16
"""Most tokens of a probe text, if enough texts are that short: the check of long texts is slow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Base):
    """A base with the terms of every client: its Poisson rate and its calibrated noise
    multiplier.
    """

    terms: Sequence[ClientTerms]


def make_plan(
    settings: Settings,
    *,
    progress: Progress = silent,
    declared: Sequence[int] | None = None,
    given: Collection[str] = (),
    loaded: LoadedWorkload | None = None,
) -> Plan:
    """``prepare``, then check delta and calibrate each client's noise multiplier.

    The multiplier targets the largest number of local steps of any client in the public schedule;
    no amplification by client sampling is claimed. Raises ValueError for a delta or an epsilon that
    cannot be met.
    """
    base = prepare(
        settings, progress=progress, declared=declared, given=given, loaded=loaded
    ).with_level()
    base.participation  # noqa: B018 - raises for a trace that cannot be used
    if base.method.carrier.source is not None:
        progress(f"reading the source of probes, {base.probe_source.name}")
        check_source(base.probe_source, base.build_model(), base.workload)
    own = workloads.own(base.settings.workload) is not None
    if own:
        progress("checking the rows")
        check_rows(base)
    progress(f"calibrating the noise of {len(base.sizes):,} clients")
    terms = client_terms(base)
    if own and declared is None:
        check_train_shape(
            base.build_model(), base.workload.train, base.workload.test, device=base.device
        )
    common = {t.noise_multiplier for t in different_terms(terms)}
    if base.method.mechanism.adds_noise:
        largest = max(common)
        mechanism = replace(base.method.mechanism, noise_multiplier=largest)
        resolved = replace(base.settings, noise_multiplier=largest if len(common) == 1 else None)
        if base.draws_in_secret:
            adaptive_clip(base.settings, largest)
        base = replace(base, settings=resolved, method=replace(base.method, mechanism=mechanism))
    return Plan(**{f.name: getattr(base, f.name) for f in fields(Base)}, terms=terms)


def client_terms(base: Base, blocks: int | None = None) -> Sequence[ClientTerms]:
    """Rate and nominal noise multiplier of every client; both follow from its declared size.

    ``blocks``: ``count_blocks`` of the same model and method, where that is known.
    """
    s, mechanism = base.settings, base.method.mechanism
    if mechanism.private:
        check_delta(s.delta, base.unit.population(base.sizes))
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
    settings = {
        size: (q, base.accounted_steps(size)) for q, size in zip(shared, rates, strict=True)
    }
    sigmas = noise_of_each(base, blocks, set(settings.values()))
    pruning: dict[tuple[float, int, float], float] = {}
    terms = list[ClientTerms]()
    for size, setting in settings.items():
        rate = rates[size]
        one = ClientTerms(
            num_examples=size,
            sample_rate=rate,
            noise_multiplier=sigmas[setting],
            weight=weights[size],
        )
        if base.method.prune.reads_data:
            key = rate, setting[1], one.noise_multiplier
            if key not in pruning:
                pruning[key] = pruning_noise(base, one, blocks)
            one = replace(one, prune_noise_multiplier=pruning[key])
        terms.append(one)
    if s.trust != "client":
        # The sum has all shares of the noise: unequal shares would add up to less than the largest
        # client needs.
        largest = max(t.noise_multiplier for t in terms)
        most = max(t.prune_noise_multiplier for t in terms)
        terms = [replace(t, noise_multiplier=largest, prune_noise_multiplier=most) for t in terms]
    if mechanism.private:
        different = {
            (
                t.sample_rate,
                settings[t.num_examples][1],
                t.noise_multiplier,
                t.prune_noise_multiplier,
            ): t
            for t in terms
        }
        for events in front([tuple(events_of(base, t, blocks)) for t in different.values()]):
            check_certified(events, s.delta)
            check_budget(events, base)
    # one object for each size: there may be a million clients
    of_size = {one.num_examples: one for one in terms}
    return tuple(of_size[size] for size in base.sizes)


def events_of(base: Base, terms: ClientTerms, blocks: int) -> list[Event]:
    """The ledger of a client that always takes part: its training steps, and the pruning round."""
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
    if terms.prune_noise_multiplier:
        events.append(
            Event(sample_rate=1.0, noise_multiplier=terms.prune_noise_multiplier, steps=1)
        )
    return events


def pruning_round(base: Base) -> tuple[Event, ...]:
    """The pruning round's event if an epsilon is given: alone it spends its share of that
    epsilon.
    """
    s, prune = base.settings, base.method.prune
    if not (prune.reads_data and base.method.mechanism.adds_noise) or s.epsilon is None:
        return ()
    target = prune.epsilon_share * s.epsilon
    sigma = calibrate_noise_multiplier(epsilon=target, delta=s.delta, sample_rate=1.0, steps=1)
    return (Event(sample_rate=1.0, noise_multiplier=sigma, steps=1),)


def pruning_noise(base: Base, terms: ClientTerms, blocks: int) -> float:
    """Noise multiplier of the pruning round, 0 without one.

    If the noise multiplier of training was given instead of an epsilon, the share is of training's
    own epsilon.
    """
    prune, mechanism = base.method.prune, base.method.mechanism
    if not (prune.reads_data and mechanism.adds_noise):
        return 0.0
    known_round = pruning_round(base)
    if known_round:
        return known_round[0].noise_multiplier
    delta = base.settings.delta
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
    base: Base, blocks: int, settings: Collection[tuple[float, int]]
) -> Mapping[tuple[float, int], float]:
    """Nominal noise multiplier by what the ledger is charged with in the whole run: sampling rate
    and steps.

    Its effective one reaches epsilon: sigma = sigma_eff * sensitivity / C, times the examples of a
    unit. The same epsilon covers the pruning round, which is on the same examples. The given noise
    multiplier where there is one; 0 without noise.
    """
    s, mechanism = base.settings, base.method.mechanism
    if not mechanism.adds_noise or s.noise_multiplier is not None:
        return dict.fromkeys(settings, (s.noise_multiplier or 0.0) if mechanism.adds_noise else 0.0)
    if s.epsilon is None:
        raise ValueError("expected either epsilon and delta, or noise_multiplier")
    effective = calibrate_each(
        settings,
        epsilon=s.epsilon,
        delta=s.delta,
        besides=pruning_round(base),
        log_ratio=0.0 if base.sums is None else most_log_ratio(base.sums),
    )
    nominal = mechanism.sensitivity(blocks) / mechanism.clip_norm if mechanism.clips else 1.0
    return {setting: sigma * nominal * base.unit.examples for setting, sigma in effective.items()}


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
    if all(p.dtype == torch.bfloat16 for p in trainable(model).values()):
        raise ValueError(
            "the model's weights are bfloat16, which messages have not: give it float32 weights, "
            "model.float(), and precision='bfloat16' for passes in bfloat16"
        )
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
    with naming_failures(inputs, targets, "test"):
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
    with naming_failures(inputs, targets, "test"):
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
