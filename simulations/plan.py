"""From settings to a plan: data, partition, model, method, public schedule, and each client's noise.

``prepare`` is what every process of a run does for itself (deterministic, no accountant); ``make_plan`` adds the
calibration, once, on the server's side. Both refuse bad settings before anything is written.
"""

import math
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import strategies
from fedlsg.accounting import calibrate_noise_multiplier, check_delta
from fedlsg.after import After
from fedlsg.carriers import carried_parameters
from fedlsg.method import LocalTraining, Method, Schedule
from fedlsg.payload import check_codec
from fedlsg.persample import check_supported, trainable
from fedlsg.privatize import Mechanism
from simulations import workloads
from simulations.partition import partition
from simulations.settings import Settings
from simulations.workloads import Progress, Workload, build_model, silent
from strategies.state import select_clients
from strategies.strategy import ClientTerms

T = TypeVar("T")

FALLBACK: dict[str, Any] = {
    "clients": 5,
    "rounds": 10,
    "local_steps": 1,
    "local_momentum": 0.0,
    "sample_rate": 0.1,
    "microbatch_size": 256,
    "partition": "iid",
    "alpha": 0.5,
    "shards_per_client": 2,
    "clip": "joint",
    "clip_norm": 1.0,
    "epsilon": 8.0,
    "delta": 1e-5,
    "learning_rate": 0.1,
}
"""What a workload's preset may leave out."""


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
    workload = workloads.load(settings.workload, data_dir=data_dir, progress=progress)
    settings = fill(replace(settings, data_dir=None if data_dir is None else str(data_dir)), workload)
    _check(settings)
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


def fill(settings: Settings, workload: Workload) -> Settings:
    """Settings with every gap filled from the workload's preset (its row for the method first)."""
    preset = {**FALLBACK, **workload.defaults, **workload.method_defaults.get(settings.method, {})}
    if settings.noise_multiplier is not None:
        preset.pop("epsilon")  # a given noise multiplier replaces the target; a given epsilon stays as the budget
    if settings.batch_size is not None:
        preset.pop("sample_rate")
        if settings.sample_rate is not None:
            raise ValueError("give either sample_rate (common to all clients) or batch_size (a rate for each client)")
    if settings.optimizer == "adam":
        preset.pop("momentum", None)  # a preset's momentum speaks of SGD
    choices = set(strategies.own_settings(settings.method)) | {f.name for f in fields(After)}
    gaps = {
        f.name: preset[f.name]
        for f in fields(Settings)
        if getattr(settings, f.name) is None
        and f.name in preset
        and (f.name in FALLBACK or f.name in choices or f.name in ("clients_per_round", "batch_size"))
    }
    filled = replace(settings, **gaps)
    per_round = filled.clients if filled.clients_per_round is None else filled.clients_per_round
    survivors = per_round if filled.trust == "aggregate" else 1
    return replace(
        filled,
        model=workload.default_model if filled.model is None else filled.model,
        clients_per_round=per_round,
        min_survivors=survivors if filled.min_survivors is None else filled.min_survivors,
    )


def known(value: T | None) -> T:
    """A setting that ``fill`` has filled."""
    assert value is not None
    return value


def build_method(settings: Settings) -> Method:
    """The recipe with the settings that are given; the noise multiplier is set per client later."""
    names = (
        strategies.own_settings(settings.method) | {f.name for f in fields(After)} | {"mechanism", "clip", "clip_norm"}
    )
    given = {name: getattr(settings, name) for name in names if getattr(settings, name, None) is not None}
    for f in fields(Settings):
        if f.name in RECIPE_CHOICES - names and getattr(settings, f.name) is not None:
            given[f.name] = getattr(settings, f.name)  # refused by name in strategies.recipe
    if settings.noise_multiplier is not None:
        given["noise_multiplier"] = settings.noise_multiplier
    if settings.trust == "aggregate":
        given["noise_share"] = 1 / math.sqrt(known(settings.min_survivors))
    return strategies.recipe(settings.method, **given)


def resolved(settings: Settings, method: Method, local: LocalTraining) -> Settings:
    """Settings with the recipe's own defaults written out, so that config.toml says all that was used."""
    parts = {**asdict(method.carrier), **asdict(method.mask), **asdict(method.after)}
    names = set(strategies.own_settings(settings.method)) | {f.name for f in fields(After)}
    used = {name: parts[name] for name in names if name in parts}
    return replace(
        settings,
        **used,
        mechanism=method.mechanism.kind,
        clip=method.mechanism.clip,
        local_learning_rate=local.learning_rate,
    )


COUNTS = (
    "rounds", "clients", "local_steps", "microbatch_size", "evaluate_every", "min_survivors", "threads", "client_cpus",
)  # fmt: skip
"""Settings that count something and start at 1."""

RECIPE_CHOICES = frozenset({"rank", "sparsity", "direction", "power_steps", "warmup", "cooling"})
"""Settings that only some recipes have."""


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
    return tuple(terms)


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


def _check(s: Settings) -> None:
    if s.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, and torch finds no CUDA device here; use --device cpu")
    check_codec(s.codec, s.indices)
    for name in COUNTS:
        if not getattr(s, name) >= 1:
            raise ValueError(f"expected {name}={getattr(s, name)} >= 1")
    if not 0 <= s.client_gpus < math.inf:
        raise ValueError(f"expected 0 <= client_gpus={s.client_gpus} < inf")
    for name in ("epsilon", "noise_multiplier", "learning_rate", "alpha", "round_timeout"):
        value = getattr(s, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"expected 0 < {name}={value} < inf")
    if s.batch_size is not None and s.batch_size < 1:
        raise ValueError(f"expected batch_size={s.batch_size} >= 1")
    if s.seed < 0:
        raise ValueError(f"expected seed={s.seed} >= 0")
    if not 1 <= known(s.clients_per_round) <= known(s.clients):
        raise ValueError(f"expected 1 <= clients_per_round={s.clients_per_round} <= clients={s.clients}")
    if not 1 <= known(s.min_survivors) <= known(s.clients_per_round):
        raise ValueError(f"expected 1 <= min_survivors={s.min_survivors} <= clients_per_round={s.clients_per_round}")
    if s.trust == "aggregate" and known(s.local_steps) > 1:
        raise ValueError("trust='aggregate' shares one step's noise: it needs local_steps=1")
