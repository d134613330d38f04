"""From settings to a plan: data, partition, model, method, public schedule, and each client's noise.

``prepare`` is what every process of a run does for itself (deterministic, no accountant); ``make_plan`` adds the
calibration, once, on the server's side. Both refuse bad settings before anything is written.
"""

from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

import strategies
from fedlsg.accounting import AccountingError, Event, calibrate_noise_multiplier, check_delta, compose
from fedlsg.carriers import carried_parameters
from fedlsg.method import LocalTraining, Method, Schedule
from fedlsg.persample import check_supported, trainable
from fedlsg.privatize import Mechanism
from simulations import workloads
from simulations.partition import partition
from simulations.preset import build_method, check, fill, known, resolved
from simulations.settings import Settings
from simulations.workloads import Options, Progress, Workload, build_model, silent
from strategies.state import select_clients
from strategies.strategy import ClientTerms


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """What every process derives for itself from the settings. ``settings`` have their gaps filled."""

    settings: Settings
    workload: Workload
    parts: list[Tensor]
    method: Method
    schedule: Schedule
    local: LocalTraining

    @property
    def sizes(self) -> list[int]:
        """Declared number of examples N_k of every client."""
        return [len(part) for part in self.parts]

    def build_model(self) -> nn.Module:
        """The initial model: public, equal in every process, on the run's device."""
        return build_model(self.workload, self.settings.model, self.settings.seed).to(self.settings.device)

    @cached_property
    def steps(self) -> list[int]:
        """Local steps of every client in the public schedule: K times the rounds in which it is asked."""
        clients, per_round, seed = len(self.parts), known(self.settings.clients_per_round), self.settings.seed
        asked: Counter[int] = Counter()
        for round in range(1, self.schedule.rounds + 1):
            asked.update(select_clients(clients, per_round, round=round, seed=seed))
        return [asked[client] * self.local.steps for client in range(clients)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Base):
    """A base with the terms of every client: its Poisson rate and its calibrated noise multiplier."""

    terms: tuple[ClientTerms, ...]

    @property
    def divisor(self) -> float:
        """Clients a round times the expected batch: public, fixed before the run."""
        return known(self.settings.clients_per_round) * self.local.expected_batch


def prepare(settings: Settings, *, progress: Progress = silent) -> Base:
    """Load the data, fill the gaps of the settings, build the method. ``progress`` hears of slow steps.

    Raises ValueError, OSError or ImportError with a text that names the setting and the fix.
    """
    strategies.check_name(settings.method)
    data_dir = None if settings.data_dir is None else Path(settings.data_dir).expanduser().resolve()
    options = Options(**{f.name: getattr(settings, f.name) for f in fields(Options)})
    workload = workloads.load(settings.workload, data_dir=data_dir, options=options, progress=progress)
    settings = fill(replace(settings, data_dir=None if data_dir is None else str(data_dir)), workload)
    check(settings)
    parts = partition(
        workload.train.labels,
        num_clients=known(settings.clients),
        scheme=known(settings.partition),
        seed=settings.seed,
        alpha=known(settings.alpha),
        shards_per_client=known(settings.shards_per_client),
    )
    mean_size = len(workload.train) / len(parts)
    batch = settings.batch_size
    rate = known(settings.sample_rate) if batch is None else min(batch / mean_size, 1.0)
    steps = known(settings.local_steps)
    schedule = Schedule(rounds=known(settings.rounds), local_steps=steps, sample_rate=rate)
    rates = (settings.local_learning_rate, settings.learning_rate)
    local = LocalTraining(
        steps=steps,
        sample_rate=rate,
        learning_rate=next(value for value in rates if value is not None),
        momentum=known(settings.local_momentum),
        expected_batch=rate * mean_size,
        microbatch_size=known(settings.microbatch_size),
    )
    method = build_method(settings)
    settings = resolved(settings, method, local)
    return Base(settings=settings, workload=workload, parts=parts, method=method, schedule=schedule, local=local)


def make_plan(settings: Settings, *, progress: Progress = silent) -> Plan:
    """``prepare``, then check delta and calibrate each client's noise multiplier.

    The multiplier targets the largest number of local steps of any client in the public schedule; no amplification
    by client sampling is claimed. Raises ValueError for a delta or an epsilon that cannot be met.
    """
    base = prepare(settings, progress=progress)
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
    terms = []
    for size, rate in zip(base.sizes, rates, strict=True):
        sigma = s.noise_multiplier if mechanism.adds_noise else 0.0
        if sigma is None:
            sigma = calibrated(mechanism, blocks, s.epsilon, s.delta, rate, max(base.steps))
        terms.append(ClientTerms(num_examples=size, sample_rate=rate, noise_multiplier=sigma))
    if s.trust == "aggregate":
        # The sum carries everybody's share of noise: with unequal shares it would have less than the largest promises.
        largest = max(t.noise_multiplier for t in terms)
        terms = [replace(t, noise_multiplier=largest) for t in terms]
    if mechanism.private:
        for rate, sigma in {(t.sample_rate, t.noise_multiplier) for t in terms}:
            effective = replace(mechanism, noise_multiplier=sigma).effective_noise_multiplier(blocks)
            check_certified(rate, effective, max(base.steps), known(s.delta))
    return tuple(terms)


def check_certified(rate: float, noise_multiplier: float, steps: int, delta: float) -> None:
    """Raise AccountingError, a ValueError, unless an accountant certifies a finite epsilon; the cheaper goes first."""
    event = Event(sample_rate=rate, noise_multiplier=noise_multiplier, steps=steps)
    try:
        compose([event], delta=delta, accountants=("pld",))
    except AccountingError:
        compose([event], delta=delta)


def calibrated(
    mechanism: Mechanism, blocks: int, epsilon: float | None, delta: float | None, rate: float, steps: int
) -> float:
    """Nominal noise multiplier whose effective one reaches ``epsilon``: sigma = sigma_eff * sensitivity / C."""
    if epsilon is None or delta is None:
        raise ValueError("expected either epsilon and delta, or noise_multiplier")
    effective = calibrate_noise_multiplier(epsilon=epsilon, delta=delta, sample_rate=rate, steps=steps)
    clips = mechanism.clips
    return effective * (mechanism.sensitivity(blocks) / mechanism.clip_norm if clips else 1.0)


def count_blocks(base: Base) -> int:
    """Blocks of every frame of the run: two a carried weight, one any other trainable parameter."""
    model = base.build_model()
    check_supported(model)
    carried = carried_parameters(model, base.method.carrier, classifier=base.workload.classifier)
    return len(trainable(model)) + len(carried)
