"""The runs of a comparison: a ``Grid`` of methods and settings, and its cells.

The axes are method, epsilon, rank, sparsity, other varied settings, and seed. A ``Cell`` is one
run: a value of each axis. A setting that does not change a method (a rank for a dense one) is
dropped for it, and the comparison says so: ``lacks``, ``Grid.dropped``.
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
"""Settings that change nothing where no noise is added."""
CLIP = frozenset({"clip", "clip_norm", "norms_clip_weight", "classifier_clip_weight"})
"""Settings that change nothing where there is neither a clip nor noise."""
OPTIONS = {"rank": "--ranks", "sparsity": "--sparsities"}
"""Settings that a key of the grid, or ``vary``, gives values to."""
TRIED = {"rank": (1, 2), "sparsity": (0.25, 0.5)}
"""Values of these settings that show whether a recipe uses them: a grid may give only one value."""
AXES = {
    "seed": "--seeds",
    "epsilon": "--epsilons",
    "method": "--methods",
    "workload": "WORKLOAD",
    "run_dir": "--out",
}
"""Settings that the grid itself varies, and the options that give them."""

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")
"""Labels of methods: they are parts of names of folders."""
UNTOUCHED = "-untouched"
"""The label of a method without a search ends so, next to the one with chosen settings."""
OWN_RECIPE = "-recipe"
"""The end of the label of ``FILE.py:recipe``: FILE alone names it, too."""


def lacks(method: str, name: str, settings: Mapping[str, Any], values: Sequence[Any] = ()) -> bool:
    """Whether the setting ``name`` changes nothing in a run of this method.

    settings: the other settings of the run.
    values: what the setting is varied over. If the recipe gives the same method for all of them,
        such as ``rs`` on dense gradients for all ranks, the method lacks it.
    """
    kind = settings.get("mechanism") or strategies.default_mechanism(method)
    if name in NOISE:
        return is_silent(kind)
    if name in CLIP:
        return kind in KINDS and KINDS[kind].plain
    if name in strategies.own_settings(method):
        values = (*values, *TRIED.get(name, ()))
        return len(values) > 1 and not _changes(method, name, settings, values)
    return name in strategies.recipe_settings()


def _changes(method: str, name: str, settings: Mapping[str, Any], values: Sequence[Any]) -> bool:
    """Whether these values of a setting of a recipe give different methods."""
    of_recipe = strategies.own_settings(method)
    others = {key: value for key, value in settings.items() if key in of_recipe}
    try:
        methods = [strategies.recipe(method, **(others | {name: value})) for value in values]
    except ValueError:  # the cells will be refused, each with its reason
        return True
    return any(made != methods[0] for made in methods)


def dropped_lines(dropped: Iterable[tuple[str, str]]) -> list[str]:
    """Sentences about settings that methods lack, from pairs (label, setting).

    Methods that lack the same settings share a sentence.
    """
    settings_of: dict[str, tuple[str, ...]] = {}
    for label, pairs in grouped(dropped, itemgetter(0)).items():
        settings_of[label] = tuple(dict.fromkeys(name for _, name in pairs))
    return [
        f"{', '.join(names)}: no setting of {', '.join(labels)}, left out there"
        for names, labels in grouped(settings_of, settings_of.__getitem__).items()
    ]


T = TypeVar("T")
K = TypeVar("K")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key, keys in the order of their first items."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def is_number(value: Any) -> bool:
    """Whether a value of a setting is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A method of the grid.

    label: its name in tables and in the directories of its cells.
    method: the name of its recipe.
    settings: those of this entry alone.
    """

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        strategies.check_name(self.method)
        if not LABEL.fullmatch(self.label):
            short = re.sub(r"[^A-Za-z0-9]+", "-", self.label).strip("-") or self.method
            raise ValueError(
                f"expected a method label of letters, digits, '.', '_' and '-', which folders "
                f"have, got {self.label!r}: take {short!r}, and give tables and figures the other "
                f"name by labels={{{short!r}: {self.label!r}}}, or --label"
            )

    def has(self, setting: str) -> bool:
        """Whether the recipe itself takes this setting."""
        return setting in strategies.own_settings(self.method)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run.

    name: of its directory.
    label: of its entry.
    given: all settings that are not at their defaults.
    varied: those of them that ``Grid.vary`` gives, with their values.
    """

    name: str
    label: str
    given: Mapping[str, Any]
    varied: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The axes of a comparison, and the settings that all its runs have.

    workload: the data of all runs.
    entries: the methods.
    seeds: one run for each.
    epsilons: targets; without any, noise is that of the settings.
    ranks, sparsities: values of two settings that tables have columns for.
    settings: of all methods that have them: values by field name of ``Settings``.
    vary: values of any other settings. A method is run with every combination of those it has.
    notes: sentences that tables and pages show, such as what choosing these settings cost.
    labels: what tables and figures call methods. No run depends on it.
    choosing: the search that chose the settings.
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
    labels: Mapping[str, str] = field(default_factory=dict)
    choosing: Choosing | None = None

    def __post_init__(self) -> None:
        self._check_axes()
        self._check_given()
        self._check_varied()

    def _check_axes(self) -> None:
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

    def _check_given(self) -> None:
        given = [self.settings, self.vary, *(entry.settings for entry in self.entries)]
        for name, option in AXES.items():
            if any(name in settings for settings in given):
                raise ValueError(f"{name} is an axis of the grid: give {option} in its place")
        if any("preset" in settings for settings in given):
            raise ValueError(
                "a preset is the setting of one run: use fedlsg run --preset, or give its settings "
                "with -c"
            )
        if self.epsilons and any("noise_multiplier" in settings for settings in given):
            raise ValueError(
                "give either --epsilons or noise_multiplier, which would replace every one of them"
            )
        for name in strategies.recipe_settings().keys() & self.settings.keys():
            if not any(entry.has(name) for entry in self.entries):
                raise ValueError(
                    f"none of the methods {', '.join(e.label for e in self.entries)} has a setting "
                    f"{name}"
                )

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """All settings that are varied in addition to epsilon and seed, with their values."""
        return {name: values for name, values in self._keys().items() if values} | dict(self.vary)

    def _keys(self) -> dict[str, tuple[Any, ...]]:
        """The settings that have an axis of their own."""
        return {"rank": self.ranks, "sparsity": self.sparsities}

    def _check_varied(self) -> None:
        for name, declared in declarations(self.axes).items():
            values = self.axes[name]
            for value in values:
                declared.check(value)
            if name in self.vary and (len(values) < 2 or len(set(values)) < len(values)):
                raise ValueError(
                    f"expected two values of {name} at least, each once: --vary {name}=A,B,C"
                )
            if name in self.settings or (name in self.vary and self._keys().get(name)):
                raise ValueError(f"{name} is varied, and given elsewhere: leave one of them out")
            if all(
                lacks(entry.method, name, self._settings_of(entry), values)
                for entry in self.entries
            ):
                labels = ", ".join(entry.label for entry in self.entries)
                option = f"--vary {name}" if name in self.vary else OPTIONS[name]
                raise ValueError(
                    f"none of the methods {labels} has a setting {name}: leave {option} out"
                )

    def cells(self) -> list[Cell]:
        """All cells: seeds outermost, then epsilons, methods innermost.

        So a comparison that is stopped has got equally far with all methods. A method without noise
        has one cell for all epsilons, and a method that lacks a setting one for all its values.
        """
        axes = self.axes
        axes_of = {entry.label: self._axes_of(entry) for entry in self.entries}
        cells = []
        for seed, epsilon in product(self.seeds, self.epsilons or (None,)):
            is_first_epsilon = epsilon in (None, *self.epsilons[:1])
            for values in product(*axes.values()):
                point = dict(zip(axes, values, strict=True))
                for entry in self.entries:
                    own = axes_of[entry.label]
                    repeats = not self._adds_noise(entry) and not is_first_epsilon
                    # of a setting that the entry lacks, only the first value makes a cell;
                    # ``product`` gives the very objects, and 1 == True
                    repeats |= any(point[name] is not axes[name][0] for name in axes.keys() - own)
                    if not repeats:
                        varied = {name: value for name, value in point.items() if name in own}
                        cells.append(self._cell(entry, seed, epsilon, varied))
        return cells

    def dropped(self) -> list[tuple[str, str]]:
        """(label, setting) of each setting of all methods that a method lacks."""
        recipes = strategies.recipe_settings()
        pairs = []
        for entry in self.entries:
            settings = self._settings_of(entry)
            for name in (*self.settings, *self.axes):
                values = self.axes.get(name)
                is_lacking = values is not None and lacks(entry.method, name, settings, values)
                if is_lacking or (name in recipes and not entry.has(name)):
                    pairs.append((entry.label, name))
        return pairs

    def _settings_of(self, entry: Entry) -> dict[str, Any]:
        """The settings of an entry, and those of all methods that its recipe takes."""
        recipes = strategies.recipe_settings()
        common = {
            name: value
            for name, value in self.settings.items()
            if name not in recipes or entry.has(name)
        }
        return common | dict(entry.settings)

    def _axes_of(self, entry: Entry) -> set[str]:
        """The varied settings that an entry has and does not fix itself."""
        settings = self._settings_of(entry)
        return {
            name
            for name, values in self.axes.items()
            if name not in entry.settings and not lacks(entry.method, name, settings, values)
        }

    def _adds_noise(self, entry: Entry) -> bool:
        """Whether runs of an entry add noise, so that epsilon changes them."""
        kind = entry.settings.get("mechanism", self.settings.get("mechanism"))
        if kind is None:
            return strategies.recipe(entry.method).mechanism.adds_noise
        return not is_silent(kind)

    def _cell(
        self, entry: Entry, seed: int, epsilon: float | None, varied: Mapping[str, Any]
    ) -> Cell:
        """The run of an entry at one point; ``varied``: the values of the axes that it has."""
        settings = self._settings_of(entry)
        coordinates = dict(varied)
        if not self._adds_noise(entry):
            if "noise_multiplier" not in entry.settings:
                settings.pop("noise_multiplier", None)
        elif epsilon is not None:
            coordinates = {"epsilon": epsilon, **varied}
        if settings.get("engine") == "auto":  # cells share the processors among them
            settings["engine"] = "local"
        fixed = {"workload": self.workload, "method": entry.method, "seed": seed, "engine": "local"}
        words = [word(name, value) for name, value in coordinates.items()]
        return Cell(
            name="-".join([entry.label, *words, f"seed{seed}"]),
            label=entry.label,
            given={**fixed, **settings, **coordinates},
            varied=tuple((name, value) for name, value in varied.items() if name in self.vary),
        )


def word(name: str, value: Any) -> str:
    """A setting in the name of a folder: "learning_rate0.5"."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return name + re.sub(r"[^A-Za-z0-9._+-]", "_", text)
