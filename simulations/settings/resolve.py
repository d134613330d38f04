"""From settings to a run: fill their gaps from the workload's preset, build method and codecs."""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, get_args

from fedlsg import strategies
from fedlsg.config import Setting
from fedlsg.config import values_of as declared_values
from fedlsg.config.mechanisms import is_silent
from fedlsg.config.partitions import SCHEMES
from fedlsg.masks.mask import DropRate
from fedlsg.method import LocalTraining, Method
from fedlsg.payload import DEFAULT_CODEC, Codec, find_codec, keeps_memory
from fedlsg.simulations.settings.any_run import Resolved, void
from fedlsg.simulations.settings.automatic import choose_method, fill_auto, tuned_settings
from fedlsg.simulations.settings.participation import fill_participation
from fedlsg.simulations.settings.settings import (
    AUTO,
    RUN,
    Settings,
    check_parameters,
    codec_settings,
    from_values,
    mechanism_settings,
    server_settings,
    split_multiple,
    times,
    values_of,
)
from fedlsg.simulations.workloads import LoadedWorkload
from fedlsg.simulations.workloads.base import GIVEN
from fedlsg.simulations.workloads.partition import natural_parts

_WORKLOADS = ("clip", "clip_norm", "learning_rate")
"""Settings of mechanism and server that a workload's preset gives, and files say even where it does
not.
"""

GRID = "secure-sum"
"""What files say in place of a codec under trust=secure: masked integers on a grid."""
SPARE = 10
"""Under trust=secure, by default, one in so many clients may be missing, and one in so many may
collude with the server."""

FALLBACK: Mapping[str, Any] = MappingProxyType(
    {
        **{
            name: declared.setting.fallback
            for name, declared in RUN.items()
            if declared.setting.fallback is not None
        },
        **{name: (mechanism_settings() | server_settings())[name].default for name in _WORKLOADS},
    }
)
"""Values for settings that a workload's preset leaves out, from the declarations."""


def fill(settings: Settings, workload: LoadedWorkload) -> Resolved:
    """Settings with every gap filled from the workload's preset (its row for the method first)."""
    check_parameters(settings.parameters)
    asked, factor = split_multiple({AUTO: settings.auto})
    settings = replace(settings, auto=asked.get(AUTO))
    settings = choose_method(settings, workload)
    tuned = tuned_settings(settings, workload)
    preset = {**FALLBACK, **tuned}
    if settings.partition is None and workload.parts is not None:
        preset["partition"] = GIVEN
    scheme = settings.partition or preset["partition"]
    own = tuned.get("clients") if scheme == tuned.get("partition") != GIVEN else None
    if scheme not in SCHEMES and settings.clients is None and own is None:
        preset["clients"] = len(natural_parts(workload, str(scheme)))
    chosen = fill_auto(settings, workload, tuned, int(settings.clients or preset["clients"]))
    preset, settings = preset | chosen, replace(settings, auto=chosen.get(AUTO, settings.auto))
    given = values_of(settings)
    gone = void(
        preset,
        given,
        silent=is_silent(given.get("mechanism", strategies.default_mechanism(settings.method))),
    )
    if (
        "learning_rate" in given
        and "classifier_learning_rate" in preset
        and _trains_heads_alone(settings)
    ):
        # the preset has it for a new head on a network that is trained, too
        gone.add("classifier_learning_rate")
    wanted = {
        *FALLBACK,
        "clients_per_round",
        "batch_size",
        "microbatch_size",
        AUTO,
        *strategies.own_settings(settings.method),
        *server_settings(),
    }
    gaps = {
        name: value for name, value in preset.items() if name in wanted - gone and name not in given
    }
    filled = fill_codecs(from_values({**given, **times(gaps, factor)}))
    per_round = filled.clients if filled.clients_per_round is None else filled.clients_per_round
    assert per_round is not None
    spare = per_round // SPARE
    survivors = {"client": 1, "server": 1, "aggregate": per_round, "secure": per_round - spare}[
        filled.trust
    ]
    colluders = max(spare, 1) if filled.trust == "secure" else None
    own = {
        "model": workload.default_model if filled.model is None else filled.model,
        "clients_per_round": per_round,
        "min_survivors": survivors if filled.min_survivors is None else filled.min_survivors,
        "colluders": colluders if filled.colluders is None else filled.colluders,
        **fill_participation(filled),
    }
    return Resolved(**{**vars(filled), **own})


def _trains_heads_alone(settings: Settings) -> bool:
    """Whether only a head is trained: on features, or by a method that freezes other layers."""
    own = strategies.with_own(settings.method, settings.parameters)
    return settings.features is not None or own.carrier.train == "classifier"


def build_method(settings: Resolved) -> Method:
    """The method of the settings; the noise multiplier of each client is set later."""
    given = {
        name: value for name, value in settings.parameters.items() if name not in codec_settings()
    }
    if settings.noise_multiplier is not None:
        given["noise_multiplier"] = settings.noise_multiplier
    colluders = readers_among(settings)
    if colluders:
        # at least m - t clients have all of the noise together
        given["noise_share"] = 1 / math.sqrt(settings.min_survivors - colluders)
        given["colluders"] = colluders
    method = strategies.recipe(settings.method, **given)
    return method if settings.personal is None else replace(method, personal=settings.personal)


def readers_among(s: Resolved) -> int:
    """t, the clients of a sum whose own shares of the noise are not counted.

    It is 0 if each payload has all of its noise, and 1 under trust=aggregate, unless a sum may have
    a single client.
    """
    if s.trust == "secure":
        return s.colluders or 0
    return 1 if s.trust == "aggregate" and s.min_survivors > 1 else 0


def resolved(settings: Resolved, method: Method, local: LocalTraining) -> Resolved:
    """Settings with the recipe's own defaults written out, so that config.toml is complete."""
    parameters: dict[str, Any] = {**recipe_values(settings, method), **asdict(method.server)}
    parameters |= {"mechanism": method.mechanism.kind, "clip": method.mechanism.clip}
    return replace(
        settings,
        parameters={
            name: value
            for name, value in (settings.parameters | parameters).items()
            if value is not None
        },
        epsilon=settings.epsilon if method.mechanism.adds_noise else None,
        local_learning_rate=local.learning_rate,
    )


def recipe_values(settings: Resolved, method: Method) -> dict[str, Any]:
    """The recipe's own settings as the method has them: given, or its default.

    A keyword that fills a field of the method (it is declared by the very same ``Setting``) has the
    field's value: the rank of ``rs`` on dense gradients is 0. Guarantee: the values that are
    returned build the same method again.
    """
    parts: dict[str, tuple[Setting, Any]] = {}
    for part in (method.carrier, method.mask, method.prune, method.compression):
        parts |= declared_values(part)
    if method.mask.prunes:
        parts["drop_rate"] = (get_args(DropRate)[1], method.mask.sparsity)
    own = strategies.declared_by(settings.method)
    values = {
        name: settings.parameters.get(name, declared.default) for name, declared in own.items()
    }
    shown = {
        name: parts[name][1]
        for name, declared in own.items()
        if parts.get(name, (None,))[0] == declared.setting != Setting()
    }
    again = replace(settings, parameters={**settings.parameters, **values, **shown})
    return values | shown if build_method(again) == method else values


def uplink_codec(s: Settings) -> Codec:
    """The codec of a client's values."""
    return find_codec(s.codec).with_settings(s.parameters)


def downlink_codec(s: Settings) -> Codec:
    """The codec of updates that the server sends, with a sparse downlink."""
    return find_codec(s.downlink_codec or DEFAULT_CODEC).with_settings(s.parameters)


def fill_codecs(s: Settings) -> Settings:
    """The settings with the downlink codec, and with the settings of both codecs.

    By default the downlink has the uplink's codec, if its grid follows from the noise and it may be
    used for updates. Raises ValueError for an unknown codec, or a setting of a codec out of range.
    """
    up = find_codec(s.codec)
    if s.downlink != "full" and s.downlink_codec is None:
        name = up.name if up.grid_from_noise and up.goes_down else DEFAULT_CODEC
        s = replace(s, downlink_codec=name)
    of_codecs = _settings_of(uplink_codec(s))
    if s.downlink_codec is not None:
        of_codecs |= _settings_of(downlink_codec(s))
    return replace(s, parameters={**s.parameters, **of_codecs})


def codec_summary(s: Settings, method: Method) -> dict[str, Any]:
    """The uplink codec for a summary: its name, indices, settings, and the variance it adds."""
    if s.trust == "secure":
        return {"name": GRID, "indices": s.indices}
    codec = uplink_codec(s)
    feedback = {"error_feedback": True} if keeps_memory(method, codec) else {}
    indices = "chosen" if method.compression.chooses else s.indices
    return {"name": codec.name, "indices": indices, **feedback, **codec.summary()}


def _settings_of(codec: Codec) -> dict[str, Any]:
    """The settings of a codec, by name."""
    return {name: getattr(codec, name) for name in codec.settings}
