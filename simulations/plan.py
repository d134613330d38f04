"""From settings to a plan: data, partition, model, method, public schedule, and each client's noise.

``prepare`` is what every process of a run does for itself (deterministic, no accountant); ``make_plan`` adds the
calibration, once, on the server's side. Both refuse bad settings before anything is written.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean as mean

from torch import Tensor, nn

import strategies
from fedlsg.accounting import AccountingError, Event, calibrate_noise_multiplier, check_delta, compose
from fedlsg.adapters import prepare_model
from fedlsg.carriers import carried_parameters
from fedlsg.method import LocalTraining, Method, Schedule
from fedlsg.payload import IndexMode
from fedlsg.population import front, shared_rates
from fedlsg.precision import Numbers
from fedlsg.privatize import Mechanism
from fedlsg.quantize import DEFAULT_STEP, Dither
from fedlsg.ranking import accumulated_noise
from fedlsg.supported import check_supported, trainable
from simulations import workloads
from simulations.own_part import Own, make_parts
from simulations.preset import build_method, check, check_fits, fill, known, resolved
from simulations.probes import check_model
from simulations.published import from_run_config
from simulations.settings import Settings, as_config
from simulations.workloads import Options, Progress, Workload, build_model, silent
from simulations.workloads.workload import Augment
from strategies.state import select_clients
from strategies.strategy import ClientTerms

SHARED = 32  # so many different Poisson rates get noise of their own: a calibration takes a second


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """What every process derives for itself from the settings. ``settings`` have their gaps filled.

    stream: labels that tell batches and noise of a reproducible run from those of another with the same public seed.
    declared: N_k as the clients of a deployment declared them; their rows are theirs, and ``parts`` is empty.
    """

    settings: Settings
    workload: Workload
    parts: Sequence[Tensor]
    method: Method
    schedule: Schedule
    local: LocalTraining
    stream: tuple[int | str, ...] = ()
    declared: tuple[int, ...] | None = None

    @property
    def sizes(self) -> list[int]:
        """Declared number of examples N_k of every client."""
        return [len(part) for part in self.parts] if self.declared is None else list(self.declared)

    def build_model(self) -> nn.Module:
        """The initial model as the method trains it: public, equal in every process, on the run's device."""
        s = self.settings
        model = build_model(self.workload, s.model, s.seed)
        prepare_model(model, self.method.carrier, classifier=self.workload.classifier, seed=s.seed)
        return model.to(s.device)

    @property
    def index_mode(self) -> IndexMode:
        """How payloads say which coordinates they hold."""
        return "chosen" if self.method.compression.chooses else self.settings.indices

    @property
    def divisor(self) -> float:
        """Clients a round times the expected batch: public, fixed before the run."""
        return known(self.settings.clients_per_round) * self.local.expected_batch

    @property
    def augment(self) -> Augment | None:
        """How training inputs are changed at random, None where they are not."""
        return None if self.settings.augment == "none" else self.workload.augment

    def dither(self, client: int, mechanism: Mechanism, local: LocalTraining) -> Dither:
        """How a client's values are quantised, as server, client and whoever reads a record know it."""
        return Dither(
            seed=self.settings.seed,
            client=client,
            noise_std=accumulated_noise(mechanism.noise_std, local.steps, local.momentum),
            floor_step=self.settings.noise_floor_step or DEFAULT_STEP,
        )

    @cached_property
    def dense_parameters(self) -> int:
        """Parameters that ``dpsgd`` would train on this model: what communication is compared with."""
        model = build_model(self.workload, self.settings.model, self.settings.seed)
        return sum(p.numel() for p in trainable(model).values())

    @cached_property
    def steps(self) -> list[int]:
        """Local steps of every client in the public schedule: K times the rounds in which it is asked."""
        clients, per_round, seed = len(self.sizes), known(self.settings.clients_per_round), self.settings.seed
        asked: Counter[int] = Counter()
        for round in range(1, self.schedule.rounds + 1):
            asked.update(select_clients(clients, per_round, round=round, seed=seed))
        return [asked[client] * self.local.steps for client in range(clients)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Base):
    """A base with the terms of every client: its Poisson rate and its calibrated noise multiplier."""

    terms: tuple[ClientTerms, ...]


def prepare(
    settings: Settings, *, progress: Progress = silent, declared: Sequence[int] | None = None, own: Own | None = None
) -> Base:
    """Load the data, fill the gaps of the settings, build the method. ``progress`` hears of slow steps.

    In a deployment only what is public of the workload is loaded: the server gives N_k as its clients ``declared``
    them, a client gives its ``own`` training rows.
    Raises ValueError, OSError or ImportError with a text that names the setting and the fix.
    """
    if settings.preset is not None:
        settings = from_run_config(as_config(settings))
    strategies.check_name(settings.method)
    data_dir = None if settings.data_dir is None else Path(settings.data_dir).expanduser().resolve()
    options = Options(**{f.name: getattr(settings, f.name) for f in fields(Options)})
    deployed = declared is not None or own is not None
    workload = workloads.load(
        settings.workload, data_dir=data_dir, options=options, progress=progress, public_only=deployed
    )
    if own is not None:
        workload = replace(workload, train=own.read(workload))
    settings = fill(replace(settings, data_dir=None if data_dir is None else str(data_dir)), workload)
    check(settings)
    if settings.augment != "none" and workload.augment is None:
        raise ValueError(f"workload {workload.name} has no augmentation {settings.augment!r}; leave augment out")
    parts = make_parts(settings, workload, own) if declared is None else []
    mean_size = mean(declared) if declared is not None else len(workload.train) / (len(parts) if own is None else 1)
    batch = settings.batch_size
    rate = known(settings.sample_rate) if batch is None else min(batch / mean_size, 1.0)
    expected_batch = rate * mean_size if own is None or own.expected_batch is None else own.expected_batch
    steps = known(settings.local_steps)
    schedule = Schedule(rounds=known(settings.rounds), local_steps=steps, sample_rate=rate)
    rates = (settings.local_learning_rate, settings.learning_rate)
    local = LocalTraining(
        steps=steps,
        sample_rate=rate,
        learning_rate=next(value for value in rates if value is not None),
        momentum=known(settings.local_momentum),
        expected_batch=expected_batch,
        microbatch_size=known(settings.microbatch_size),
        multiplicity=known(settings.multiplicity),
        numbers=Numbers(precision=settings.precision, activation_storage=settings.activation_storage),
    )
    method = build_method(settings)
    check_fits(settings, method)
    return Base(
        settings=resolved(settings, method, local),
        workload=workload,
        parts=parts,
        method=method,
        schedule=schedule,
        local=local,
        declared=None if declared is None else tuple(declared),
    )


def make_plan(settings: Settings, *, progress: Progress = silent, declared: Sequence[int] | None = None) -> Plan:
    """``prepare``, then check delta and calibrate each client's noise multiplier.

    The multiplier targets the largest number of local steps of any client in the public schedule; no amplification
    by client sampling is claimed. Raises ValueError for a delta or an epsilon that cannot be met.
    """
    base = prepare(settings, progress=progress, declared=declared)
    terms = client_terms(base)
    common = {t.noise_multiplier for t in terms}
    if base.method.mechanism.adds_noise:
        largest = max(common)
        mechanism = replace(base.method.mechanism, noise_multiplier=largest)
        resolved = replace(base.settings, noise_multiplier=largest if len(common) == 1 else None)
        base = replace(base, settings=resolved, method=replace(base.method, mechanism=mechanism))
    return Plan(**{f.name: getattr(base, f.name) for f in fields(Base)}, terms=terms)


def client_terms(base: Base) -> tuple[ClientTerms, ...]:
    """Rate and nominal noise multiplier of every client."""
    s, mechanism = base.settings, base.method.mechanism
    rates = [base.local.sample_rate if s.batch_size is None else min(s.batch_size / n, 1.0) for n in base.sizes]
    if mechanism.private:
        check_delta(known(s.delta), max(base.sizes))
    blocks = count_blocks(base)
    terms, most = [], max(base.steps)
    # Noise that is enough for a larger rate is enough: beyond SHARED different rates, clients share it.
    for size, rate, within in zip(base.sizes, rates, shared_rates(rates, limit=SHARED), strict=True):
        sigma = s.noise_multiplier if mechanism.adds_noise else 0.0
        if sigma is None:
            sigma = calibrated(mechanism, blocks, s.epsilon, s.delta, within, most, pruning_round(base))
        first = ClientTerms(num_examples=size, sample_rate=rate, noise_multiplier=sigma)
        terms.append(replace(first, prune_noise_multiplier=pruning_noise(base, first, blocks)))
    if s.trust == "aggregate":
        # The sum carries everybody's share of noise: with unequal shares it would have less than the largest promises.
        largest = max(t.noise_multiplier for t in terms)
        pruning = max(t.prune_noise_multiplier for t in terms)
        terms = [replace(t, noise_multiplier=largest, prune_noise_multiplier=pruning) for t in terms]
    if mechanism.private:
        for events in front([tuple(events_of(base, t, blocks)) for t in terms]):
            check_certified(events, known(s.delta))
            check_budget(events, base)
    return tuple(terms)


def events_of(base: Base, terms: ClientTerms, blocks: int) -> list[Event]:
    """What the ledger of a client that always takes part will hold: its training steps, and the pruning round."""
    mechanism = terms.mechanism(base.method.mechanism)
    effective = mechanism.effective_noise_multiplier(blocks) if mechanism.private else mechanism.noise_multiplier
    events = [Event(sample_rate=terms.sample_rate, noise_multiplier=effective, steps=max(base.steps))]
    if terms.prune_noise_multiplier:
        events.append(Event(sample_rate=1.0, noise_multiplier=terms.prune_noise_multiplier, steps=1))
    return events


def pruning_round(base: Base) -> tuple[Event, ...]:
    """The pruning round's event where the budget is given: on its own it has its share of the epsilon."""
    s, prune = base.settings, base.method.prune
    if not (prune.reads_data and base.method.mechanism.adds_noise) or s.epsilon is None:
        return ()
    target = prune.epsilon_share * s.epsilon
    sigma = calibrate_noise_multiplier(epsilon=target, delta=known(s.delta), sample_rate=1.0, steps=1)
    return (Event(sample_rate=1.0, noise_multiplier=sigma, steps=1),)


def pruning_noise(base: Base, terms: ClientTerms, blocks: int) -> float:
    """Noise multiplier of the pruning round, 0 where there is none.

    Where the noise multiplier of training was given instead of an epsilon, the share is of training's own epsilon.
    """
    prune, mechanism = base.method.prune, base.method.mechanism
    if not (prune.reads_data and mechanism.adds_noise):
        return 0.0
    known_round = pruning_round(base)
    if known_round:
        return known_round[0].noise_multiplier
    delta = known(base.settings.delta)
    target = prune.epsilon_share * compose(events_of(base, terms, blocks), delta=delta).upper
    return calibrate_noise_multiplier(epsilon=target, delta=delta, sample_rate=1.0, steps=1)


def check_budget(events: Sequence[Event], base: Base) -> None:
    """Raise ValueError where a given noise multiplier spends a given epsilon before a single round is done."""
    s = base.settings
    if s.epsilon is None or s.noise_multiplier is None:
        return
    first, *besides = events
    once = [replace(first, steps=base.local.steps), *besides]
    try:
        spent = compose(once, delta=known(s.delta), accountants=("pld",)).upper
    except AccountingError:  # the cheap accountant cannot tell; every client asks both before it trains
        return
    if spent > s.epsilon:
        raise ValueError(
            f"at noise_multiplier={s.noise_multiplier:g} one round costs epsilon {spent:.3g}, more than the budget "
            f"epsilon={s.epsilon:g}: no client would train; give one of the two, or more noise"
        )


def check_certified(events: Sequence[Event], delta: float) -> None:
    """Raise AccountingError, a ValueError, unless an accountant certifies a finite epsilon; the cheaper goes first."""
    try:
        compose(events, delta=delta, accountants=("pld",))
    except AccountingError:
        compose(events, delta=delta)


def calibrated(
    mechanism: Mechanism,
    blocks: int,
    epsilon: float | None,
    delta: float | None,
    rate: float,
    steps: int,
    besides: tuple[Event, ...] = (),
) -> float:
    """Nominal noise multiplier whose effective one reaches ``epsilon``: sigma = sigma_eff * sensitivity / C.

    ``besides`` are events on the same examples, such as a pruning round, that the same epsilon has to cover.
    """
    if epsilon is None or delta is None:
        raise ValueError("expected either epsilon and delta, or noise_multiplier")
    effective = calibrate_noise_multiplier(epsilon=epsilon, delta=delta, sample_rate=rate, steps=steps, besides=besides)
    clips = mechanism.clips
    return effective * (mechanism.sensitivity(blocks) / mechanism.clip_norm if clips else 1.0)


def count_blocks(base: Base) -> int:
    """Blocks of every frame of the run: two a carried weight, one any other trainable parameter."""
    model = base.build_model()
    check_supported(model)
    if base.method.mechanism.clips:
        check_model(model, base.workload.test, device=base.settings.device)
    carried = carried_parameters(model, base.method.carrier, classifier=base.workload.classifier)
    return len(trainable(model)) + (len(carried) if base.method.carrier.splits else 0)
