"""Settings as a user gives them, with the preset that they name merged under them.

    settings = resolve({"preset": "lsg-cifar10-eps3.3", "seed": 1})

The user's own settings override a preset. The merge happens once, on the command line or at ``flwr
run``. The result names the preset as ``from_preset``, not as ``preset``. So config.toml, a resumed
run and every client read the resolved values, and no preset is merged a second time. Importing this
module imports no torch.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from fedlsg.config.mechanisms import is_silent
from fedlsg.simulations.settings.any_run import void
from fedlsg.simulations.settings.published import find
from fedlsg.simulations.settings.published.preset import GROUP_RATES
from fedlsg.simulations.settings.settings import (
    AUTO,
    KNOWN,
    PRESET,
    RUN,
    Settings,
    from_values,
    parse,
    split_multiple,
    times,
)
from fedlsg.user_code import is_reference

WORKLOADS = (
    "digits",
    "cifar10",
    "cifar100",
    "svhn",
    "svhn-extra",
    "fashion-mnist",
    "imagenet",
    "hf-image",
    "glue-sst2",
    "glue-qnli",
    "glue-qqp",
    "glue-mnli",
    "hf-text",
)
"""The workloads of fedlsg, known without importing torch; a test compares them with the packages.
"""
RECIPES = frozenset(
    file.stem for file in (Path(__file__).parents[2] / "strategies" / "recipes").glob("[a-z]*.py")
)
"""The recipes of fedlsg, by the names of their files."""
FREE_FORM = "settings"
"""The key of Flower's run config that carries settings which pyproject.toml does not list."""


def resolve(given: Mapping[str, object]) -> Settings:
    """Settings of raw values, which override the preset that they name, if any.

    Settings of the preset are left out if a given setting makes them ``void``, or if only the
    preset's method has them. Raises ValueError as ``find`` and ``settings.parse`` do, also for an
    unknown ``from_preset``.
    """
    known = parse(given)
    check_origin(known)
    name = known.pop("preset", None)
    if name is None:
        return from_values(known)
    preset = find(str(name))
    method = str(known.get("method", preset.settings["method"]))
    silent = method == "sgd" or is_silent(known.get("mechanism"))
    left_out = void(preset.settings, known, silent=silent)
    if "epochs" in known:  # the number of rounds follows from it
        left_out.add("rounds")
    if method != preset.settings["method"]:
        from fedlsg import strategies  # imports torch, which listing presets must not

        strategies.check_name(method)
        of_preset = strategies.own_settings(str(preset.settings["method"]))
        left_out |= of_preset - strategies.own_settings(method)
    under = parse({key: value for key, value in preset.settings.items() if key not in left_out})
    if "learning_rate" in known:  # the rates of a preset's groups keep their ratios
        printed, given_rate = preset.settings["learning_rate"], known["learning_rate"]
        under |= {name: under[name] / printed * given_rate for name in GROUP_RATES if name in under}
    asked, factor = split_multiple(known)
    return from_values({**times(under, factor), **asked, "from_preset": preset.name})


def check_origin(known: Mapping[str, object]) -> None:
    """Raise ValueError, with the nearest name, if ``from_preset`` names no preset."""
    if "from_preset" in known:
        name = str(known["from_preset"])
        try:
            find(name)
        except ValueError as error:
            raise ValueError(
                f"from_preset={name}: {error}; a run writes it: give --preset NAME"
            ) from None


def first_look(given: Mapping[str, object]) -> str:
    """The engine of raw settings, after all checks that need no torch.

    Settings that only methods declare are checked later, while the engine starts: torch is imported
    in that time. Names of workloads and methods are checked here; torch is imported only for
    unknown ones. Raises ValueError.
    """
    known = parse(
        {name: value for name, value in given.items() if name.replace("-", "_") not in KNOWN}
    )
    check_origin(known)
    if "preset" in known:
        find(str(known["preset"]))
    _check_names(str(known.get("workload", WORKLOADS[0])), str(known.get("method", AUTO)))
    engine = str(known.get("engine", RUN["engine"].default))
    if engine == "flower":
        raise ValueError(
            "engine=flower is what `flwr run .` uses; fedlsg run has engine=auto, ray and local"
        )
    return engine


def _check_names(workload: str, method: str) -> None:
    """Raise ValueError for an unknown workload or method; names of files are loaded later."""
    if workload not in WORKLOADS and not is_reference(workload):
        from fedlsg.simulations import workloads

        workloads.presets(workload)
    if method != AUTO and not is_reference(method) and method.replace("-", "_") not in RECIPES:
        from fedlsg import strategies

        strategies.check_name(method)


def from_run_config(config: Mapping[str, object]) -> Settings:
    """Settings of Flower's run config, its preset resolved.

    Flower hands over every setting that the app's pyproject.toml lists, those that nobody gave at
    their default: under a preset, a setting at its default counts as not given. (``method='lsg'``
    therefore cannot override a preset's method there; ``fedlsg run`` can.) Settings that are not
    listed come in ``settings="width=3 other=4"``.
    """
    known = parse(unfolded(config))
    check_origin(known)
    if "preset" not in known:
        return from_values(known)
    defaults = {name: declared.default for name, declared in RUN.items()}
    return resolve({name: value for name, value in known.items() if value != defaults.get(name)})


def unfolded(config: Mapping[str, object]) -> dict[str, object]:
    """A run config with the settings of its free-form key in place of that key.

    Raises ValueError for a word without "=", and for a setting that is given twice: here, or here
    and by its own key.
    """
    rest = {name: value for name, value in config.items() if name != FREE_FORM}
    keys = {name.replace("-", "_"): name for name in rest}
    taken = {
        name
        for name, key in keys.items()
        if rest[key] not in (PRESET, RUN[name].default if name in RUN else None)
    }
    for word in shlex.split(str(config.get(FREE_FORM, ""))):
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise ValueError(f'expected {FREE_FORM}="name=value other=value", got {word!r}')
        name = name.replace("-", "_")
        if name in taken:
            raise ValueError(
                f"setting {name!r} is given twice: leave {word!r} out of the key {FREE_FORM!r}"
            )
        taken.add(name)
        rest[keys.get(name, name)] = value
    return rest
