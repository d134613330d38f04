"""Which runs a comparison consists of: method x epsilon x rank x sparsity x varied settings x seed,
balanced.

A comparison drops settings that a method lacks, and says so.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import itemgetter
from typing import Any, TypeVar

from fedlsg import strategies
from fedlsg.config.mechanisms import KINDS, is_silent
from fedlsg.simulations.compare.grid.choosing import Choosing
from fedlsg.simulations.settings.settings import declarations

NOISE = frozenset({"epsilon", "noise_multiplier", "delta"})
"""Settings that say nothing where no noise is added."""
CLIP = frozenset({"clip", "clip_norm", "norms_clip_weight", "classifier_clip_weight"})
"""Settings that say nothing where neither a clip nor noise is."""


def lacks(method: str, name: str, settings: Mapping[str, Any], values: Sequence[Any] = ()) -> bool:
    """Whether no value of the setting ``name`` changes a run of this method with the other
    ``settings``.

    values: what it is to be varied over; a setting of a recipe that gives the same method for all
    of them is lacking, such as the rank of ``rs`` on dense gradients.
    """
    kind = settings.get("mechanism") or strategies.default_mechanism(method)
    if name in NOISE:
        return is_silent(kind)
    if name in CLIP:
        return kind in KINDS and KINDS[kind].plain
    if name in strategies.own_settings(method):
        values = (*values, *TRIED.get(name, ()))
        return len(values) > 1 and not _looks_at(method, name, settings, values)
    return name in strategies.recipe_settings()


def _looks_at(method: str, name: str, settings: Mapping[str, Any], values: Sequence[Any]) -> bool:
    own = {key: value for key, value in settings.items() if key in strategies.own_settings(method)}
    try:
        first, *others = (strategies.recipe(method, **(own | {name: value})) for value in values)
    except ValueError:  # settings that its cells will be refused for, each with its reason
        return True
    return any(other != first for other in others)


def dropped_lines(dropped: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each method that lacks settings, from (label, setting) pairs."""
    pairs = grouped(dropped, itemgetter(0))
    lacking = {label: tuple(dict.fromkeys(name for _, name in own)) for label, own in pairs.items()}
    return [
        f"{', '.join(names)}: no setting of {', '.join(labels)}, left out there"
        for names, labels in grouped(lacking, lacking.__getitem__).items()
    ]


T = TypeVar("T")
K = TypeVar("K")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key, in the order of the first one of each."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def is_number(value: Any) -> bool:
    """Whether a value of a setting is a number: True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


OPTIONS = {"rank": "--ranks", "sparsity": "--sparsities"}
"""Settings that a key of the grid, or ``vary``, gives values to."""
TRIED = {"rank": (1, 2), "sparsity": (0.25, 0.5)}
"""Values of them, of which a grid may give a single one, that show whether a recipe looks at
them.
"""
AXES = {
    "seed": "--seeds",
    "epsilon": "--epsilons",
    "method": "--methods",
    "workload": "WORKLOAD",
    "run_dir": "--out",
}
"""Settings that the grid itself varies, and the options that give them."""

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A method of the grid under its label, with the settings that only it gets."""

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        strategies.check_name(self.method)
        if not LABEL.fullmatch(self.label):
            raise ValueError(
                f"expected a method label of letters, digits, '.', '_' and '-', got {self.label!r}"
            )

    def has(self, setting: str) -> bool:
        """Whether the recipe itself takes this setting."""
        return setting in strategies.own_settings(self.method)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: its directory's name, its label, and the settings to run with."""

    name: str
    label: str
    given: Mapping[str, Any]
    varied: tuple[tuple[str, Any], ...] = ()
    """The settings that the grid varies for this method, with their values here."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The axes of a comparison. ``settings``, also those of each entry, are typed, by field name of
    ``Settings``.

    vary: values of any other settings. A method is run with every combination of the ones that it
    has. ``ranks`` and ``sparsities`` are the same of two settings that tables have columns for:
    figures are not over them.

    Raises ValueError for what no run accepts, naming the setting and the fix.
    """

    workload: str
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...] = (0,)
    epsilons: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    sparsities: tuple[float, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Sentences that its tables and pages show, such as what choosing these settings cost."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What its tables and figures call methods. No run depends on it."""
    choosing: Choosing | None = None
    """The search that chose its settings."""

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError(
                "expected at least one method: give --methods a,b,c, --methods all, or --grid FILE"
            )
        if not self.seeds or min(self.seeds) < 0:
            raise ValueError(
                f"expected one seed at least and none below 0, got seeds={list(self.seeds)}"
            )
        for name in ("seeds", "epsilons", "ranks", "sparsities"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(
                    f"expected {name} without repetitions, got {', '.join(map(str, values))}"
                )
        if any(not 0 < epsilon < math.inf for epsilon in self.epsilons):
            raise ValueError(
                "expected epsilons > 0 and finite, got "
                f"{', '.join(f'{e:g}' for e in self.epsilons)}"
            )
        given = [self.settings, self.vary, *(entry.settings for entry in self.entries)]
        for name, option in AXES.items():
            if any(name in settings for settings in given):
                raise ValueError(
                    f"{name} is an axis of the grid: give it as {option}, not as -c {name}=..."
                )
        if any("preset" in settings for settings in given):
            raise ValueError(
                "a preset is the setting of one run: use fedlsg run --preset, or give its settings "
                "with -c"
            )
        if self.epsilons and any("noise_multiplier" in settings for settings in given):
            raise ValueError(
                "give either --epsilons or -c noise_multiplier=..., which would replace every one "
                "of them"
            )
        for name in strategies.recipe_settings().keys() & self.settings.keys():
            if not any(entry.has(name) for entry in self.entries):
                raise ValueError(
                    f"none of the methods {', '.join(e.label for e in self.entries)} has a setting "
                    f"{name}"
                )
        self._check_varied()

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """All settings that are varied besides epsilon and seed: ``vary``, and those that have a
        key of their own.
        """
        return {name: values for name, values in self._keys().items() if values} | dict(self.vary)

    def _keys(self) -> dict[str, tuple[Any, ...]]:
        return {"rank": self.ranks, "sparsity": self.sparsities}

    def _check_varied(self) -> None:
        for name, declared in declarations(self.axes).items():
            values, own = self.axes[name], self._keys().get(name)
            for value in values:
                declared.check(value)
            if name in self.vary and (len(values) < 2 or len(set(values)) < len(values)):
                raise ValueError(
                    f"expected two values of {name} at least, each once: --vary {name}=A,B,C"
                )
            if name in self.settings or (name in self.vary and own):
                raise ValueError(f"{name} is varied, and given elsewhere: leave one of them out")
            if all(lacks(entry.method, name, self._own(entry), values) for entry in self.entries):
                labels = ", ".join(entry.label for entry in self.entries)
                option = f"--vary {name}" if name in self.vary else OPTIONS[name]
                raise ValueError(
                    f"none of the methods {labels} has a setting {name}: leave {option} out"
                )

    def cells(self) -> list[Cell]:
        """All cells, seeds outermost, then epsilons: when a run stops, all methods got equally far.

        A method without noise runs once a seed. A setting that only some recipes have goes to those
        recipes, and what would repeat a run of the others is none.
        """
        has = {entry.label: self._has(entry) for entry in self.entries}
        return [
            self._cell(
                entry, seed, epsilon, {name: at[name] for name in at if name in has[entry.label]}
            )
            for seed in self.seeds
            for epsilon in self.epsilons or (None,)
            for values in product(*self.axes.values())
            for at in [dict(zip(self.axes, values, strict=True))]
            for entry in self.entries
            if self._adds_noise(entry) or epsilon in (None, *self.epsilons[:1])
            if all(at[name] is self.axes[name][0] for name in at.keys() - has[entry.label])
        ]

    def dropped(self) -> list[tuple[str, str]]:
        """(label, setting) of each setting that is given or varied for all methods and that a
        method lacks.
        """
        recipes = strategies.recipe_settings()
        return [
            (entry.label, name)
            for entry in self.entries
            for name in (*self.settings, *self.axes)
            if (name in self.axes and lacks(entry.method, name, self._own(entry), self.axes[name]))
            or (name in recipes and not entry.has(name))
        ]

    def _own(self, entry: Entry) -> dict[str, Any]:
        """The settings of an entry, with those of all methods that it takes."""
        recipes = strategies.recipe_settings()
        common = {
            name: value
            for name, value in self.settings.items()
            if name not in recipes or entry.has(name)
        }
        return common | dict(entry.settings)

    def _has(self, entry: Entry) -> set[str]:
        """The varied settings that an entry has and does not fix itself."""
        own = self._own(entry)
        return {
            name
            for name, values in self.axes.items()
            if name not in entry.settings and not lacks(entry.method, name, own, values)
        }

    def _adds_noise(self, entry: Entry) -> bool:
        kind = entry.settings.get("mechanism", self.settings.get("mechanism"))
        if kind is None:
            return strategies.recipe(entry.method).mechanism.adds_noise
        return not is_silent(kind)

    def _cell(
        self, entry: Entry, seed: int, epsilon: float | None, varied: Mapping[str, Any]
    ) -> Cell:
        own, coordinates = self._own(entry), dict(varied)
        if not self._adds_noise(entry):
            if "noise_multiplier" not in entry.settings:
                own.pop("noise_multiplier", None)
        elif epsilon is not None:
            coordinates = {"epsilon": epsilon, **varied}
        if own.get("engine") == "auto":  # cells share the processors among them
            own["engine"] = "local"
        fixed = {"workload": self.workload, "method": entry.method, "seed": seed, "engine": "local"}
        words = [entry.label, *(word(*one) for one in coordinates.items()), f"seed{seed}"]
        return Cell(
            name="-".join(words),
            label=entry.label,
            given={**fixed, **own, **coordinates},
            varied=tuple(one for one in varied.items() if one[0] in self.vary),
        )


def word(name: str, value: Any) -> str:
    """A setting in the name of a folder: "learning_rate0.5"."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return name + re.sub(r"[^A-Za-z0-9._+-]", "_", text)
