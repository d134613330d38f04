"""Which runs a comparison consists of: method x epsilon x rank x sparsity x seed, in a balanced order.

A grid is the same thing as the file ``grid.toml``:

    workload = "digits"
    seeds = [0, 1, 2]           # or 3
    epsilons = [1.0, 3.0]
    ranks = [4, 8]              # methods that have a rank and fix none
    sparsities = []
    [settings]                  # of every method
    rounds = 20
    [methods.lsg]               # a method with its own settings
    [methods.lsg-bottom]        # ... or a variant of one under a name of its own
    method = "lsg"
    direction = "bottom"
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import strategies
from fedlsg.choices import choose
from simulations.settings.settings import parse

AXES = {"seed": "--seeds", "epsilon": "--epsilons", "method": "--methods", "workload": "WORKLOAD", "run_dir": "--out"}
"""Settings that the grid itself varies, and where to say them instead."""

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
            raise ValueError(f"expected a method label of letters, digits, '.', '_' and '-', got {self.label!r}")

    def has(self, setting: str) -> bool:
        """Whether the recipe itself takes this setting."""
        return setting in strategies.own_settings(self.method)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: its directory's name, its label and coordinates, and the settings that it is asked to run with."""

    name: str
    label: str
    method: str
    seed: int
    epsilon: float | None
    rank: int | None
    sparsity: float | None
    given: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """See the module. ``settings`` and each entry's are by field name of ``Settings``, typed.

    Raises ValueError for what no run could make sense of, naming the setting and the fix.
    """

    workload: str
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...] = (0,)
    epsilons: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    sparsities: tuple[float, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError("expected at least one method: give --methods a,b,c, --methods all, or --grid FILE")
        if not self.seeds or min(self.seeds) < 0:
            raise ValueError(f"expected one seed at least and none below 0, got seeds={list(self.seeds)}")
        for name in ("seeds", "epsilons", "ranks", "sparsities"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"expected {name} without repetitions, got {', '.join(map(str, values))}")
        self._check_axes()
        given = [self.settings, *(entry.settings for entry in self.entries)]
        for name, option in AXES.items():
            if any(name in settings for settings in given):
                raise ValueError(f"{name} is an axis of the grid: give it as {option}, not as -c {name}=...")
        if any("preset" in settings for settings in given):
            raise ValueError(
                "a preset is the setting of one run: use fedlsg run --preset, or give its settings with -c"
            )
        if self.epsilons and any("noise_multiplier" in settings for settings in given):
            raise ValueError("give either --epsilons or -c noise_multiplier=..., which would replace every one of them")
        for name in strategies.recipe_settings().keys() & self.settings.keys():
            if not any(entry.has(name) for entry in self.entries):
                raise ValueError(f"none of the methods {', '.join(e.label for e in self.entries)} has a setting {name}")

    def _check_axes(self) -> None:
        """Refuse here what every cell on an axis would be refused for."""
        if any(not 0 < epsilon < math.inf for epsilon in self.epsilons):
            raise ValueError(f"expected epsilons > 0 and finite, got {', '.join(f'{e:g}' for e in self.epsilons)}")
        if any(rank < 1 for rank in self.ranks):
            raise ValueError(f"expected ranks >= 1, got {', '.join(map(str, self.ranks))}")
        if any(not 0 <= share < 1 for share in self.sparsities):
            raise ValueError(f"expected sparsities in [0, 1), got {', '.join(f'{p:g}' for p in self.sparsities)}")
        for axis, setting in (("ranks", "rank"), ("sparsities", "sparsity")):
            if getattr(self, axis) and not any(entry.has(setting) for entry in self.entries):
                labels = ", ".join(entry.label for entry in self.entries)
                raise ValueError(f"none of the methods {labels} has a {setting}: leave {axis} out")

    def cells(self) -> list[Cell]:
        """All cells, seeds outermost, then epsilons: however early one stops, the methods have gone equally far.

        A method without noise runs once a seed. A setting that only some recipes have goes to those recipes.
        """
        return [
            self._cell(entry, seed, epsilon, rank, sparsity)
            for seed in self.seeds
            for position, epsilon in enumerate(self.epsilons or (None,))
            for entry in self.entries
            if position == 0 or self._noised(entry)
            for rank in self._values("rank", self.ranks, entry)
            for sparsity in self._values("sparsity", self.sparsities, entry)
        ]

    def _values(self, name: str, values: Sequence[Any], entry: Entry) -> Sequence[Any]:
        own = {key: value for key, value in self.settings.items() if entry.has(key)} | dict(entry.settings)
        return values if values and name not in own and _looks_at(entry.method, name, own) else (None,)

    def _noised(self, entry: Entry) -> bool:
        kind = entry.settings.get("mechanism", self.settings.get("mechanism"))
        if kind is None:
            return strategies.recipe(entry.method).mechanism.adds_noise
        return kind in ("dp", "noise-only")

    def _cell(self, entry: Entry, seed: int, epsilon: float | None, rank: int | None, sparsity: float | None) -> Cell:
        noised = self._noised(entry)
        epsilon = epsilon if noised else None
        common = {
            name: value
            for name, value in self.settings.items()
            if (name not in strategies.recipe_settings() or entry.has(name)) and (noised or name != "noise_multiplier")
        }
        varied = {"epsilon": epsilon, "rank": rank, "sparsity": sparsity}
        coordinates = {name: value for name, value in varied.items() if value is not None}
        words = [entry.label, *(f"{name}{value:g}" for name, value in coordinates.items()), f"seed{seed}"]
        return Cell(
            name="-".join(words),
            label=entry.label,
            method=entry.method,
            seed=seed,
            epsilon=epsilon,
            rank=rank,
            sparsity=sparsity,
            given={
                "workload": self.workload, "method": entry.method, "seed": seed, "engine": "local",
                **common, **entry.settings, **coordinates,
            },
        )  # fmt: skip


def _looks_at(method: str, name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a setting makes a difference to the recipe: the rank of ``rs`` on dense gradients makes none."""
    if name not in strategies.own_settings(method):
        return False
    own = {key: value for key, value in settings.items() if key in strategies.own_settings(method)}
    one, other = {"rank": (1, 2), "sparsity": (0.25, 0.5)}[name]
    try:
        return strategies.recipe(method, **own, **{name: one}) != strategies.recipe(method, **own, **{name: other})
    except ValueError:  # settings that its cells will be refused for, each with its reason
        return True


def split_settings(pairs: Mapping[str, Any], labels: Sequence[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings of all methods, and those of one by its label, from names such as ``lsg.rank``.

    Raises ValueError for a label outside ``labels``, an unknown setting or a value of the wrong type.
    """
    spelt = {label.replace("-", "_"): label for label in labels} | {label: label for label in labels}
    common: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {label: {} for label in labels}
    for key, value in pairs.items():
        label, dot, name = key.rpartition(".")
        target = own[choose("method of this grid", label, spelt)] if dot else common
        target[name] = value
    return parse(common), {label: parse(settings) for label, settings in own.items()}


def as_toml(grid: Grid) -> dict[str, Any]:
    """The grid as grid.toml holds it; ``from_toml`` is its inverse."""
    return {
        "workload": grid.workload,
        "seeds": list(grid.seeds),
        "epsilons": list(grid.epsilons),
        "ranks": list(grid.ranks),
        "sparsities": list(grid.sparsities),
        "settings": dict(grid.settings),
        "methods": {
            entry.label: ({"method": entry.method} if entry.method != entry.label else {}) | dict(entry.settings)
            for entry in grid.entries
        },
    }


def from_toml(table: Mapping[str, Any]) -> Grid:
    """A grid from the keys of grid.toml; ``seeds`` is a list, or how many from 0.

    Raises ValueError for an unknown key or a value of the wrong type.
    """
    known = {"workload", "seeds", "epsilons", "ranks", "sparsities", "settings", "methods"}
    for key in table:
        choose("key of a grid file", key, dict.fromkeys(known))
    methods = table.get("methods", {})
    if not isinstance(methods, Mapping) or not all(isinstance(own, Mapping) for own in methods.values()):
        raise ValueError("expected a grid file to name its methods as [methods.NAME] tables")
    return Grid(
        workload=str(table.get("workload", "digits")),
        entries=tuple(_entry(label, own) for label, own in methods.items()),
        seeds=_seeds(table.get("seeds", 1)),
        epsilons=_numbers("epsilons", table.get("epsilons", []), float),
        ranks=_numbers("ranks", table.get("ranks", []), int),
        sparsities=_numbers("sparsities", table.get("sparsities", []), float),
        settings=parse(table.get("settings", {})),
    )


def _entry(label: str, own: Mapping[str, Any]) -> Entry:
    rest = {name: value for name, value in own.items() if name != "method"}
    return Entry(label=label, method=str(own.get("method", label)), settings=parse(rest))


def _seeds(value: object) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return tuple(range(value))
    return _numbers("seeds", value, int)


def _numbers(name: str, values: object, kind: type) -> tuple[Any, ...]:
    """Numbers of an axis, each of ``kind``. Raises ValueError naming the axis."""
    listed = values if isinstance(values, list | tuple) else [None]
    if any(isinstance(v, bool) or not isinstance(v, int | float) or kind(v) != v for v in listed):
        raise ValueError(f"expected {name} as a list of numbers ({kind.__name__}), got {values!r}")
    return tuple(kind(value) for value in listed)


def numbers(option: str, text: str | None, kind: type) -> tuple[Any, ...]:
    """The numbers of an option such as ``--epsilons 1,3,8``. Raises ValueError naming the option."""
    try:
        return tuple(kind(word) for word in words(text))
    except ValueError:
        raise ValueError(f"expected {option} as numbers ({kind.__name__}) with commas, got {text!r}") from None


def words(text: str | None) -> Iterator[str]:
    """The words of a list with commas."""
    return (word.strip() for word in (text or "").split(",") if word.strip())
