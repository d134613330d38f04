"""Merge a preset with the user's own settings, when they enter a run: the command line, or ``flwr run``.

This happens once. The result names the preset as ``from_preset``, not as ``preset``. So config.toml, a resumed run and
every client read the resolved values, and no preset is merged a second time.
"""

from collections.abc import Mapping
from dataclasses import fields

from simulations.settings.published.catalogue import find
from simulations.settings.published.preset import GROUP_RATES
from simulations.settings.settings import Settings, from_mapping, parse


def resolve(given: Mapping[str, object]) -> dict[str, object]:
    """Settings by field name: the preset that ``given`` names, if any, under everything else that it gives.

    Preset values that a given setting makes void are left out (see ``void``). Raises ValueError as ``find`` and
    ``settings.parse`` do.
    """
    known: dict[str, object] = dict(parse(given))
    name = known.pop("preset", None)
    if name is None:
        return known
    preset = find(str(name))
    gone = void(preset.settings, known)
    under: dict[str, object] = {key: value for key, value in preset.settings.items() if key not in gone}
    if "learning_rate" in known:  # the papers' one rate for every group moves as one
        under |= dict.fromkeys(GROUP_RATES, known["learning_rate"])
    return {**under, **known, "from_preset": preset.name}


def void(preset: Mapping[str, object], given: Mapping[str, object]) -> frozenset[str]:
    """Settings of a preset that a given one replaces or leaves without meaning.

    Another method drops what only the preset's method takes; a noise multiplier, or no noise, drops the epsilon; a
    batch size the rate; Adam the momentum; a constant learning rate its final value.
    """
    gone: set[str] = set()
    method = str(given.get("method", preset["method"]))
    if method != preset["method"]:
        import strategies  # imports torch, which listing presets must not

        strategies.check_name(method)
        gone |= strategies.own_settings(str(preset["method"])) - strategies.own_settings(method)
    silent = method == "sgd" or given.get("mechanism") in ("none", "clip-only")
    if silent or "noise_multiplier" in given:
        gone.add("epsilon")
    if "batch_size" in given:
        gone.add("sample_rate")
    if given.get("optimizer") == "adam":
        gone.add("momentum")
    if given.get("schedule") == "constant":
        gone.add("final_learning_rate")
    return frozenset(gone)


def from_run_config(config: Mapping[str, object]) -> Settings:
    """Settings of Flower's run config, its preset resolved.

    Flower hands over every setting, those that nobody gave at their default: under a preset, a setting at its default
    counts as not given. (``method='lsg'`` therefore cannot override a preset's method there; ``fedlsg run`` can.)
    """
    known = parse(config)
    if "preset" not in known:
        return from_mapping(config)
    defaults = {f.name: f.default for f in fields(Settings)}
    return from_mapping(resolve({name: value for name, value in known.items() if value != defaults[name]}))
