"""Merge a preset with the user's own settings, when they enter a run: the command line, or ``flwr run``.

This happens once. The result names the preset as ``from_preset``, not as ``preset``. So config.toml, a resumed run and
every client read the resolved values, and no preset is merged a second time.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from fedlsg.user_code import is_reference
from simulations.settings.published.catalogue import find
from simulations.settings.published.preset import GROUP_RATES
from simulations.settings.settings import AUTO, KNOWN, PRESET, RUN, Settings, from_mapping, from_values, parse

HEADS = ("linear", "mlp", "cnn")
"""Models of ``simulations.models.heads``, which torch need not be imported for."""
WORKLOADS = (
    "digits", "cifar10", "cifar100", "svhn", "fashion-mnist", "imagenet", "hf-image", "glue-sst2", "glue-qnli",
    "glue-qqp", "glue-mnli", "hf-text",
)  # fmt: skip
"""Those of fedlsg, which torch need not be imported for; a test compares them with what there is."""
RECIPES = frozenset(file.stem for file in (Path(__file__).parents[3] / "strategies" / "recipes").glob("[a-z]*.py"))
FREE_FORM = "settings"
"""The key of Flower's run config that carries settings which pyproject.toml does not list."""


def resolve(given: Mapping[str, object]) -> dict[str, object]:
    """Settings by field name: the preset that ``given`` names, if any, under everything else that it gives.

    Preset values that a given setting makes void are left out (see ``void``). Raises ValueError as ``find`` and
    ``settings.parse`` do, also for a ``from_preset`` that is no preset.
    """
    known: dict[str, object] = dict(parse(given))
    check_origin(known)
    name = known.pop("preset", None)
    if name is None:
        return known
    preset = find(str(name))
    gone = void(preset.settings, known)
    under: dict[str, object] = {key: value for key, value in preset.settings.items() if key not in gone}
    if "learning_rate" in known:  # the papers' one rate for every group moves as one
        under |= dict.fromkeys(GROUP_RATES, known["learning_rate"])
    return {**under, **known, "from_preset": preset.name}


def check_origin(known: Mapping[str, object]) -> None:
    """Raise ValueError, with the nearest name, if ``from_preset`` names no preset: then nothing was made from it."""
    if "from_preset" in known:
        name = str(known["from_preset"])
        try:
            find(name)
        except ValueError as error:
            raise ValueError(f"from_preset={name}: {error}; a run writes it: give --preset NAME") from None


def void(preset: Mapping[str, object], given: Mapping[str, object]) -> frozenset[str]:
    """Settings of a preset that a given one replaces or leaves without meaning.

    Another method drops what only the preset's method takes; a noise multiplier, or no noise, drops the epsilon; a
    batch size the rate, and a rate the batch size; an optimizer other than SGD the momentum, and another optimizer the
    options; a model that is no head the features; a constant learning rate its final value.
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
    if "sample_rate" in given:
        gone |= {"batch_size", "sampling"}
    if str(given.get("optimizer", "sgd")).lower() != "sgd":
        gone.add("momentum")
    if "optimizer" in given and given["optimizer"] != preset.get("optimizer"):
        gone.add("optimizer_options")
    if given.get("model", "cnn") not in HEADS:
        gone |= {"features", "feature_norm"}
    if given.get("schedule") == "constant":
        gone.add("final_learning_rate")
    return frozenset(gone)


def first_look(given: Mapping[str, object]) -> str:
    """The engine of raw settings, and an error for what is wrong with them, as far as no torch is needed for that.

    What only methods know waits until the engine is getting ready: it imports torch in that time. Names of workloads
    and methods do not wait: torch is imported for those alone that are not known without it.
    """
    said = parse({name: value for name, value in given.items() if name.replace("-", "_") not in KNOWN})
    check_origin(said)
    if "preset" in said:
        find(str(said["preset"]))
    _check_names(str(said.get("workload", WORKLOADS[0])), str(said.get("method", AUTO)))
    engine = str(said.get("engine", RUN["engine"].default))
    if engine == "flower":
        raise ValueError("engine=flower is what `flwr run .` uses; fedlsg run has engine=ray and engine=local")
    return engine


def _check_names(workload: str, method: str) -> None:
    """Raise ValueError for a workload or a method that there is not; names of files are loaded later."""
    if workload not in WORKLOADS and not is_reference(workload):
        from simulations import workloads

        workloads.presets(workload)
    if method != AUTO and not is_reference(method) and method.replace("-", "_") not in RECIPES:
        import strategies

        strategies.check_name(method)


def from_run_config(config: Mapping[str, object]) -> Settings:
    """Settings of Flower's run config, its preset resolved.

    Flower hands over every setting that the app's pyproject.toml lists, those that nobody gave at their default: under
    a preset, a setting at its default counts as not given. (``method='lsg'`` therefore cannot override a preset's
    method there; ``fedlsg run`` can.) Settings that are not listed come in ``settings="width=3 other=4"``.
    """
    known = parse(unfolded(config))
    check_origin(known)
    if "preset" not in known:
        return from_values(known)
    defaults = {name: declared.default for name, declared in RUN.items()}
    return from_mapping(resolve({name: value for name, value in known.items() if value != defaults.get(name)}))


def unfolded(config: Mapping[str, object]) -> dict[str, object]:
    """A run config with what its free-form key says in that key's place.

    Raises ValueError for a word without "=", and for a setting that is given twice: here, or here and by its own key.
    """
    rest = {name: value for name, value in config.items() if name != FREE_FORM}
    keys = {name.replace("-", "_"): name for name in rest}
    taken = {
        name for name, key in keys.items() if rest[key] not in (PRESET, RUN[name].default if name in RUN else None)
    }
    for word in shlex.split(str(config.get(FREE_FORM, ""))):
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise ValueError(f'expected {FREE_FORM}="name=value other=value", got {word!r}')
        name = name.replace("-", "_")
        if name in taken:
            raise ValueError(f"setting {name!r} is given twice: leave {word!r} out of the key {FREE_FORM!r}")
        taken.add(name)
        rest[keys.get(name, name)] = value
    return rest
