"""The papers' table rows as named presets (``Published``), a table a paper, and how they enter a
run.

    settings = resolve({"preset": "lsg-cifar10-eps3.3", "seed": 1})

A preset is a mapping of settings; the user's own settings override it. The merge happens once, on
the command line or at ``flwr run``. The result names the preset as ``from_preset``, not as
``preset``. So config.toml, a resumed run and every client read the resolved values, and no preset
is merged a second time. Importing this package imports no torch.
"""

import re
import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType

from fedlsg.config.mechanisms import is_silent
from fedlsg.simulations.settings.any_run import void
from fedlsg.simulations.settings.published.preset import GROUP_RATES, Published, rows_of
from fedlsg.simulations.settings.settings import (
    AUTO,
    KNOWN,
    PRESET,
    RUN,
    Settings,
    from_values,
    parse,
)
from fedlsg.user_code import is_reference

TABLES = Path(__file__).parent / "tables"


@cache  # the tables come with the package
def presets() -> tuple[Published, ...]:
    """All presets, sorted by name, the numbers in it by size."""
    found = (preset for path in sorted(TABLES.glob("*.toml")) for preset in rows_of(path))
    return tuple(sorted(found, key=lambda preset: by_size(preset.name)))


@cache  # the tables come with the package
def by_name() -> Mapping[str, Published]:
    """Presets by name and alias. Raises ValueError where two share one."""
    table: dict[str, Published] = {}
    for preset in presets():
        for name in (preset.name, *preset.aliases):
            if name in table:
                raise ValueError(
                    f"preset name {name!r} is taken: {table[name].source}, and {preset.source}"
                )
            table[name] = preset
    return MappingProxyType(table)


def find(name: str) -> Published:
    """The preset of a name or alias. Raises ValueError for an unknown one, with the nearest known
    name.
    """
    table = by_name()
    if name not in table:
        near = get_close_matches(name, table, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown preset {name!r}{hint} (fedlsg list presets lists them all)")
    return table[name]


def matching(words: str) -> tuple[Published, ...]:
    """Presets that contain every word, in any case, in name, aliases, workload, model, method,
    paper or place.

    Words that are a place of a paper as a whole, such as "LSG (Ito et al. 2023), Table 2", give
    that place's alone.
    """
    if there := tuple(preset for preset in presets() if preset.source.lower() == words.lower()):
        return there
    wanted = words.lower().split()
    return tuple(preset for preset in presets() if all(word in searched(preset) for word in wanted))


def searched(preset: Published) -> str:
    """The text that ``matching`` looks into."""
    settings = [str(preset.settings[key]) for key in ("workload", "model", "method")]
    return " ".join((preset.name, *preset.aliases, *settings, preset.source)).lower()


def by_size(name: str) -> tuple[tuple[int, float, str], ...]:
    """Sort key under which ``r16`` follows ``r8``, and ``eps1.7`` follows ``eps0.8``."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return tuple(
        (1, float(part), "") if index % 2 else (0, 0.0, part) for index, part in enumerate(parts)
    )


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
"""Those of fedlsg, which torch need not be imported for; a test compares them with what there
is.
"""
RECIPES = frozenset(
    file.stem for file in (Path(__file__).parents[3] / "strategies" / "recipes").glob("[a-z]*.py")
)
FREE_FORM = "settings"
"""The key of Flower's run config that carries settings which pyproject.toml does not list."""


def resolve(given: Mapping[str, object]) -> Settings:
    """Settings of raw values: the preset that ``given`` names, if any, under everything else that
    it gives.

    What a given setting makes ``void``, or the preset's method alone takes, is left out. Raises
    ValueError as ``find`` and ``settings.parse`` do, also for a ``from_preset`` that is no preset.
    """
    known = parse(given)
    check_origin(known)
    name = known.pop("preset", None)
    if name is None:
        return from_values(known)
    preset = find(str(name))
    method = str(known.get("method", preset.settings["method"]))
    gone = void(preset.settings, known, silent=method == "sgd" or is_silent(known.get("mechanism")))
    if "epochs" in known:  # they choose the rounds
        gone.add("rounds")
    if method != preset.settings["method"]:
        from fedlsg import strategies  # imports torch, which listing presets must not

        strategies.check_name(method)
        gone |= strategies.own_settings(str(preset.settings["method"])) - strategies.own_settings(
            method
        )
    under = parse({key: value for key, value in preset.settings.items() if key not in gone})
    if "learning_rate" in known:  # the rates of a preset's groups keep their ratios
        first, now = preset.settings["learning_rate"], known["learning_rate"]
        under |= {name: under[name] / first * now for name in GROUP_RATES if name in under}
    return from_values({**under, **known, "from_preset": preset.name})


def check_origin(known: Mapping[str, object]) -> None:
    """Raise ValueError, with the nearest name, if ``from_preset`` names no preset: then nothing was
    made from it.
    """
    if "from_preset" in known:
        name = str(known["from_preset"])
        try:
            find(name)
        except ValueError as error:
            raise ValueError(
                f"from_preset={name}: {error}; a run writes it: give --preset NAME"
            ) from None


def first_look(given: Mapping[str, object]) -> str:
    """The engine of raw settings, and an error for what is wrong with them, as far as no torch is
    needed for that.

    What only methods know waits until the engine is getting ready: it imports torch in that time.
    Names of workloads and methods do not wait: torch is imported for those alone that are not known
    without it.
    """
    said = parse(
        {name: value for name, value in given.items() if name.replace("-", "_") not in KNOWN}
    )
    check_origin(said)
    if "preset" in said:
        find(str(said["preset"]))
    _check_names(str(said.get("workload", WORKLOADS[0])), str(said.get("method", AUTO)))
    engine = str(said.get("engine", RUN["engine"].default))
    if engine == "flower":
        raise ValueError(
            "engine=flower is what `flwr run .` uses; fedlsg run has engine=auto, ray and local"
        )
    return engine


def _check_names(workload: str, method: str) -> None:
    """Raise ValueError for a workload or a method that there is not; names of files are loaded
    later.
    """
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
    """A run config with what its free-form key says in that key's place.

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


__all__ = [
    "Published",
    "find",
    "first_look",
    "from_run_config",
    "matching",
    "presets",
    "resolve",
    "unfolded",
]
