"""Fill the gaps of the settings from the workload's preset, refuse what is out of range, build the method."""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, get_args

import torch

import strategies
from fedlsg.masks.mask import DropRate
from fedlsg.method import LocalTraining, Method
from fedlsg.setting import Setting
from fedlsg.setting import values_of as declared_values
from simulations.settings.codecs import check_exact, fill_codecs
from simulations.settings.declared import RUN, check_parameters, codec_settings, mechanism_settings, server_settings
from simulations.settings.run import Resolved
from simulations.settings.settings import Settings, from_values, values_of
from simulations.workloads import Workload

_WORKLOADS = ("clip", "clip_norm", "learning_rate")
"""Settings of mechanism and server that a workload's preset gives, and files say even where it does not."""

FALLBACK: Mapping[str, Any] = MappingProxyType(
    {
        **{name: one.setting.fallback for name, one in RUN.items() if one.setting.fallback is not None},
        **{name: (mechanism_settings() | server_settings())[name].default for name in _WORKLOADS},
    }
)
"""What a workload's preset may leave out, from the declarations."""


def fill(settings: Settings, workload: Workload) -> Resolved:
    """Settings with every gap filled from the workload's preset (its row for the method first)."""
    given = settings.parameters
    check_parameters(given)
    without_noise = given.get("mechanism", strategies.default_mechanism(settings.method)) in ("none", "clip-only")
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
    if given.get("optimizer") == "adam":
        preset.pop("momentum", None)  # a preset's momentum is that of SGD
    wanted = {
        *FALLBACK,
        "clients_per_round",
        "batch_size",
        *strategies.own_settings(settings.method),
        *server_settings(),
    }
    gaps = {name: value for name, value in preset.items() if name in wanted and name not in values_of(settings)}
    filled = fill_codecs(from_values({**values_of(settings), **gaps}))
    per_round = filled.clients if filled.clients_per_round is None else filled.clients_per_round
    survivors = per_round if filled.trust == "aggregate" else 1
    own = {
        "model": workload.default_model if filled.model is None else filled.model,
        "clients_per_round": per_round,
        "min_survivors": survivors if filled.min_survivors is None else filled.min_survivors,
    }
    return Resolved(**{**vars(filled), **own})


def build_method(settings: Resolved) -> Method:
    """The recipe with the settings that are given; the noise multiplier is set per client later."""
    given = {name: value for name, value in settings.parameters.items() if name not in codec_settings()}
    if settings.noise_multiplier is not None:
        given["noise_multiplier"] = settings.noise_multiplier
    if settings.trust == "aggregate":
        given["noise_share"] = 1 / math.sqrt(settings.min_survivors)
    return strategies.recipe(settings.method, **given)


def resolved(settings: Resolved, method: Method, local: LocalTraining) -> Resolved:
    """Settings with the recipe's own defaults written out, so that config.toml says all that was used."""
    parameters: dict[str, Any] = {**recipe_values(settings, method), **asdict(method.server)}
    parameters |= {"mechanism": method.mechanism.kind, "clip": method.mechanism.clip}
    return replace(
        settings,
        parameters={name: value for name, value in (settings.parameters | parameters).items() if value is not None},
        epsilon=settings.epsilon if method.mechanism.adds_noise else None,
        local_learning_rate=local.learning_rate,
    )


def recipe_values(settings: Resolved, method: Method) -> dict[str, Any]:
    """The recipe's own settings as the method has them: given, or its default.

    A keyword that fills a field of the method (it is declared by the very same ``Setting``) has the field's value: the
    rank of ``rs`` on dense gradients is 0. Guarantee: the values that are returned build the same method again.
    """
    parts: dict[str, tuple[Setting, Any]] = {}
    for part in (method.carrier, method.mask, method.prune, method.compression):
        parts |= declared_values(part)
    if method.mask.kind in ("all", "drop"):
        parts["drop_rate"] = (get_args(DropRate)[1], method.mask.sparsity)
    own = strategies.declared_by(settings.method)
    said = {name: settings.parameters.get(name, one.default) for name, one in own.items()}
    shown = {
        name: parts[name][1] for name, one in own.items() if parts.get(name, (None,))[0] == one.setting != Setting()
    }
    again = replace(settings, parameters={**settings.parameters, **said, **shown})
    return said | shown if build_method(again) == method else said


def check(s: Resolved) -> None:
    if s.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was requested, but torch finds no CUDA device here; use --device cpu")
    if s.device == "cuda" and s.precision == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ValueError("precision='bfloat16' was requested, but this CUDA device has no bfloat16; use 'float32'")
    for name, declared in RUN.items():
        declared.check(getattr(s, name))
    if s.augment == "none" and s.multiplicity > 1:
        raise ValueError(f"multiplicity={s.multiplicity} averages augmented copies: give augment=flip-crop, too")
    if not 1 <= s.clients_per_round <= s.clients:
        raise ValueError(f"expected 1 <= clients_per_round={s.clients_per_round} <= clients={s.clients}")
    if not 1 <= s.min_survivors <= s.clients_per_round:
        raise ValueError(f"expected 1 <= min_survivors={s.min_survivors} <= clients_per_round={s.clients_per_round}")
    if s.trust == "aggregate" and s.local_steps > 1:
        raise ValueError("trust='aggregate' shares one step's noise: it needs local_steps=1")
    check_exact(s)
