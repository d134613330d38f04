"""Fill the gaps of the settings from the workload's preset, refuse what is out of range, build the method."""

import math
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

import torch

import strategies
from fedlsg.method import LocalTraining, Method
from fedlsg.training import After
from simulations.settings.codecs import check_exact, fill_codecs
from simulations.settings.settings import Settings
from simulations.workloads import Workload

T = TypeVar("T")

FALLBACK: dict[str, Any] = {
    "clients": 5,
    "rounds": 10,
    "local_steps": 1,
    "local_momentum": 0.0,
    "sample_rate": 0.1,
    "microbatch_size": 256,
    "augment": "none",
    "multiplicity": 1,
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


def fill(settings: Settings, workload: Workload) -> Settings:
    """Settings with every gap filled from the workload's preset (its row for the method first)."""
    without_noise = (settings.mechanism or strategies.default_mechanism(settings.method)) in ("none", "clip-only")
    if without_noise and settings.epsilon is not None:
        raise ValueError("epsilon needs a mechanism that adds noise: choose method dpsgd, or mechanism dp")
    if without_noise and settings.noise_multiplier is not None:
        raise ValueError("noise_multiplier needs a mechanism that adds noise: choose method 'dpsgd', or mechanism dp")
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
        fill_codecs(filled),
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
    names = strategies.own_settings(settings.method) | {f.name for f in fields(After)} | PROTECTION
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
    parts = {**asdict(method.carrier), **asdict(method.mask), **asdict(method.after), **asdict(method.compression)}
    parts["lora_alpha"] = parts.pop("alpha")
    parts |= {"carrier": method.carrier.kind, "drop_rate": method.mask.sparsity, "prune": method.prune.kind}
    parts |= {f"prune_{name}": value for name, value in asdict(method.prune).items()}
    names = set(strategies.own_settings(settings.method)) | {f.name for f in fields(After)}
    used = {name: parts[name] for name in names if name in parts}
    if not method.mechanism.adds_noise:
        used["epsilon"] = None
    return replace(
        settings,
        **used,
        mechanism=method.mechanism.kind,
        clip=method.mechanism.clip,
        local_learning_rate=local.learning_rate,
    )


COUNTS = (
    "rounds", "clients", "local_steps", "microbatch_size", "multiplicity", "evaluate_every", "min_survivors",
    "threads", "client_cpus",
)  # fmt: skip
"""Settings that count something and start at 1."""

PROTECTION = frozenset({"mechanism", "clip", "clip_norm", "norms_clip_weight", "classifier_clip_weight"})
"""Settings of the mechanism that a user gives as they are."""

RECIPE_CHOICES = frozenset({
    "rank", "sparsity", "direction", "power_steps", "warmup", "cooling", "importance", "sparsity_from", "residual",
    "redraw", "ranking", "carrier", "refresh", "lora_alpha", "prune", "prune_rate", "prune_epsilon_share",
    "prune_clip_norm", "drop", "drop_rate", "topk_rate",
})  # fmt: skip
"""Settings that only some recipes have."""


def check(s: Settings) -> None:
    if s.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, and torch finds no CUDA device here; use --device cpu")
    if s.device == "cuda" and s.precision == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ValueError("precision='bfloat16' was asked for, and this CUDA device has no bfloat16; use 'float32'")
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
    if s.augment == "none" and known(s.multiplicity) > 1:
        raise ValueError(f"multiplicity={s.multiplicity} averages augmented copies: give augment=flip-crop, too")
    if s.seed < 0:
        raise ValueError(f"expected seed={s.seed} >= 0")
    if not 1 <= known(s.clients_per_round) <= known(s.clients):
        raise ValueError(f"expected 1 <= clients_per_round={s.clients_per_round} <= clients={s.clients}")
    if not 1 <= known(s.min_survivors) <= known(s.clients_per_round):
        raise ValueError(f"expected 1 <= min_survivors={s.min_survivors} <= clients_per_round={s.clients_per_round}")
    if s.trust == "aggregate" and known(s.local_steps) > 1:
        raise ValueError("trust='aggregate' shares one step's noise: it needs local_steps=1")
    check_exact(s)
