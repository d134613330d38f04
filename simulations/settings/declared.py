"""Every setting there is, as it is declared: of every run, of a method, of the mechanism, the server, and codecs.

Those of every run are known without torch. The others are found where they are used, and importing that loads torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from fedlsg.setting import Declared, declared, unknown
from simulations.settings.run import Settings

RUN: Mapping[str, Declared] = MappingProxyType(declared(Settings, without=("parameters",)))

PLACES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "multiplicity": (
        "rank", "sparsity", "direction", "power_steps", "warmup", "cooling", "importance", "sparsity_from", "residual",
        "redraw", "ranking", "carrier", "refresh", "lora_alpha", "topk_rate", "prune", "prune_rate",
        "prune_epsilon_share", "prune_clip_norm", "drop", "drop_rate", "mechanism", "clip", "clip_norm",
        "norms_clip_weight", "classifier_clip_weight",
    ),
    "shards_per_client": (
        "estimator", "optimizer", "learning_rate", "final_learning_rate", "norms_learning_rate",
        "classifier_learning_rate", "momentum", "weight_decay", "schedule", "sparsify_update", "ema",
    ),
    "codec": ("noise_floor_step",),
})  # fmt: skip
"""After which setting of a run files have had these since version 0.1; any other one comes last, and needs no entry."""

KNOWN = frozenset(name for names in PLACES.values() for name in names)
"""Settings that are no run's own, and are known not to be misspelt without a look at the methods."""


def method_settings() -> dict[str, Declared]:
    """Settings of the recipes. Raises ValueError where two recipes, or a recipe and a run, declare one name."""
    import strategies  # imports torch, which a look at the settings of a run must not

    found = strategies.recipe_settings()
    for name in found:
        if name in RUN or name in codec_settings():
            takers = ", ".join(strategies.takers_of(name))
            raise ValueError(
                f"method {takers} declares {name!r}, which is a setting of every run: give it another name"
            )
    return found


def mechanism_settings() -> dict[str, Declared]:
    """Settings of clip and noise that a user gives; how much noise is a setting of the run."""
    from fedlsg.privacy import Mechanism

    return declared(Mechanism, without=("noise_multiplier", "noise_share"))


def server_settings() -> dict[str, Declared]:
    """Settings of what the server does after the sum."""
    from fedlsg.training import ServerOptimizer

    return declared(ServerOptimizer)


def codec_settings() -> dict[str, Declared]:
    """Settings of the codecs. Raises ValueError for a name that a run, the mechanism or the server has.

    Two values under one name would make ``config.toml`` report another epsilon than the run has.
    """
    from fedlsg.payload import codec_settings as own  # imports torch

    found = own()
    for name in found.keys() & {*RUN, *mechanism_settings(), *server_settings(), "noise_multiplier", "noise_share"}:
        raise ValueError(f"a codec declares {name!r}, which is a setting of every run: give it another name")
    return found


def codec_names() -> dict[str, Declared]:
    """The settings that name a codec, with the codecs that there are, either way."""
    from fedlsg.payload import all_codecs  # imports torch

    names = {"codec": tuple(all_codecs())}
    names["downlink_codec"] = tuple(name for name, codec in all_codecs().items() if codec.goes_down)
    return {setting: replace(RUN[setting], choices=choices) for setting, choices in names.items()}


def all_settings() -> dict[str, Declared]:
    """All settings by name, in the order of config.toml."""
    found = {
        **RUN,
        **codec_names(),
        **method_settings(),
        **mechanism_settings(),
        **server_settings(),
        **codec_settings(),
    }
    return {name: found[name] for name in in_order(found)}


def check_parameters(parameters: Iterable[str]) -> None:
    """Raise ValueError for a parameter that no method, mechanism, server or codec declares for users.

    ``noise_share`` is one: it follows from ``trust``, and given freely it would make every reported epsilon wrong.
    """
    known = all_settings()
    for name in parameters:
        if name not in known or name in RUN:
            raise unknown("parameter", name, known)


def declarations(raw_names: Iterable[str]) -> dict[str, Declared]:
    """The declarations of settings by the names that were given, which may have dashes.

    The methods are looked at only where a setting is no run's own. Raises ValueError for an unknown name, with the
    nearest known one.
    """
    names = {raw_name: raw_name.replace("-", "_") for raw_name in raw_names}
    known = RUN if RUN.keys() >= set(names.values()) else all_settings()
    for raw_name, name in names.items():
        if name not in known:
            raise unknown("setting", raw_name, known)
    return {raw_name: known[name] for raw_name, name in names.items()}


def in_order(names: Iterable[str]) -> list[str]:
    """Names in the order of config.toml: those of a run, others in their places among them, what is new last."""
    given = list(names)
    order = [name for run in RUN for name in (run, *PLACES.get(run, ()))]
    return [name for name in order if name in given] + [name for name in given if name not in order]
