"""A grid as the file ``grid.toml`` and as options; and a check of its cells before the first runs.

The file:

    workload = "digits"
    seeds = [0, 1, 2]           # or 3
    epsilons = [1.0, 3.0]
    ranks = [4, 8]              # methods that have a rank and fix none
    sparsities = []
    notes = []                  # sentences for its tables and pages
    [labels]                    # what tables and figures call methods
    lsg = "LSG, rank 4"
    [choosing]                  # what a search wrote: the cost of choosing these settings
    [vary]                      # any other setting: every combination is run
    clip_norm = [0.1, 1, 10]
    [settings]                  # of every method
    rounds = 20
    [methods.lsg]               # a method with its own settings
    [methods.lsg-bottom]        # ... or a variant of one under a name of its own
    method = "lsg"
    direction = "bottom"
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlsg import bounded
from fedlsg.config.choices import choose
from fedlsg.config.foreign import in_our_words
from fedlsg.simulations.compare.grid import choosing
from fedlsg.simulations.compare.grid.cells import (
    AXES,
    OWN_RECIPE,
    Cell,
    Entry,
    Grid,
    grouped,
    is_number,
)
from fedlsg.simulations.planning.base.prepare import data_key, prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.client_noise import client_terms
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.simulations.settings.rule_checker import idle
from fedlsg.simulations.settings.settings import (
    FACTOR,
    RATE,
    RUN,
    Settings,
    all_settings,
    declarations,
    from_mapping,
    names_given,
    parse,
)
from fedlsg.simulations.workloads import LoadedWorkload
from fedlsg.user_code.failure import without_exit

KINDS: Mapping[str, type] = {"epsilons": float, "ranks": int, "sparsities": float}
"""The axes of numbers."""
TABLES = ("labels", "choosing", "vary", "settings", "methods")
"""The keys of a grid file that are tables."""


def read_toml(path: str, what: str, more: str = "") -> dict[str, Any]:
    """The table of a file. Raises ValueError naming it, and ``more``, if it cannot be read."""
    try:
        return bounded.read_toml(Path(path).expanduser())
    except OSError as error:
        raise ValueError(f"cannot read the {what} {path}: {error.strerror}{more}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no TOML file: {error}") from None


def split_settings(
    pairs: Mapping[str, Any], labels: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings of all methods, and those of one by its label, from names such as ``lsg.rank``.

    Raises ValueError for a label outside ``labels``, an unknown setting or a value of the wrong
    type.
    """
    spelt = {
        **{label.removesuffix(OWN_RECIPE): label for label in labels},
        **{label.replace("-", "_"): label for label in labels},
        **{label: label for label in labels},
    }
    common: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {label: {} for label in labels}
    for key, value in pairs.items():
        label, dot, name = key.rpartition(".")
        target = own[choose("method of this grid", label, spelt)] if dot else common
        target[name] = value
    return parse(common), {label: parse(settings) for label, settings in own.items()}


def as_toml(grid: Grid) -> dict[str, Any]:
    """The grid as grid.toml holds it; ``from_toml`` is its inverse."""
    optional = {
        "vary": {name: list(values) for name, values in grid.vary.items()},
        "notes": list(grid.notes),
        "labels": dict(grid.labels),
        "choosing": choosing.as_table(grid.choosing) if grid.choosing else {},
    }
    methods: dict[str, dict[str, Any]] = {}
    for entry in grid.entries:
        methods[entry.label] = {} if entry.method == entry.label else {"method": entry.method}
        methods[entry.label] |= entry.settings
    return {
        "workload": grid.workload,
        **{name: list(getattr(grid, name)) for name in ("seeds", *KINDS)},
        **{name: value for name, value in optional.items() if value},
        "settings": dict(grid.settings),
        "methods": methods,
    }


def from_toml(table: Mapping[str, Any]) -> Grid:
    """A grid from the keys of grid.toml; ``seeds`` is a list, or how many from 0.

    Raises ValueError for an unknown key or a value of the wrong type.
    """
    known = ("workload", "seeds", *KINDS, "notes", *TABLES)
    for key in table:
        _check_key(key, known)
    return Grid(
        workload=str(table.get("workload", RUN["workload"].default)),
        entries=tuple(_entry(label, own) for label, own in table.get("methods", {}).items()),
        seeds=_seeds(table.get("seeds", 1)),
        **{name: _numbers(name, table.get(name, []), kind) for name, kind in KINDS.items()},
        settings=parse(table.get("settings", {})),
        vary=parse_varied(table.get("vary", {})),
        notes=tuple(map(str, table.get("notes", ()))),
        labels=parse_labels(table.get("labels", {})),
        choosing=choosing.from_table(table["choosing"]) if "choosing" in table else None,
    )


def parse_labels(table: object) -> dict[str, str]:
    """Names of methods from the table ``labels``. Raises ValueError for anything else."""
    if not isinstance(table, Mapping) or not all(
        isinstance(name, str) and name.strip() for name in table.values()
    ):
        raise ValueError(f'expected [labels] of a grid file as texts, lsg = "LSG", got {table!r}')
    return {str(key): name for key, name in table.items()}


def _check_key(key: str, known: Sequence[str]) -> None:
    """Raise ValueError for an unknown key of a grid file.

    For a setting, also by the name that another library gives it, the message says its place.
    """
    if key in known:
        return
    settings = all_settings()
    hint = ""
    if key.replace("-", "_") not in settings:
        hint = in_our_words(key, settings)
    elif key not in AXES:
        hint = "; it is a setting"
    if hint:
        raise ValueError(
            f"unknown key of a grid file {key!r}{hint}: give settings under [settings], or "
            "[methods.NAME]; lists of epsilons and ranks are at the top"
        )
    choose("key of a grid file", key, dict.fromkeys(known))


def read_varied(texts: Sequence[str]) -> dict[str, list[str]]:
    """The values of ``--vary NAME=A,B,C`` by setting, as texts. Raises ValueError for others."""
    varied: dict[str, list[str]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not name:
            raise ValueError(f"expected --vary NAME=A,B,C, got {text!r}")
        if name in varied:
            raise ValueError(f"--vary {name} is given twice: give it once")
        varied[name] = list(words(values))
    return varied


def parse_varied(table: object) -> dict[str, tuple[Any, ...]]:
    """Typed values by setting; numbers ascending. Raises ValueError naming the setting."""
    if not isinstance(table, Mapping) or not all(
        isinstance(values, list | tuple) for values in table.values()
    ):
        raise ValueError(
            "expected [vary] of a grid file as lists, such as clip_norm = [0.1, 1, 10], got "
            f"{table!r}"
        )
    for name, option in AXES.items():
        if name in table:
            raise ValueError(f"{name} is an axis of its own: give it as {option}, not with --vary")
    multiples = [text for text in map(str, table.get(RATE, ())) if re.fullmatch(FACTOR, text)]
    if multiples:
        raise ValueError(
            f"multiples of the rule's {RATE} ({', '.join(multiples)}) are searched, each method "
            f'from its own: --search "{RATE}={",".join(multiples)}"; --vary {RATE}= takes numbers, '
            "which turn the rule off"
        )
    declared = declarations(table)
    varied: dict[str, tuple[Any, ...]] = {}
    for name in table:
        values = list(map(declared[name].parse, table[name]))
        if all(map(is_number, values)):
            values.sort()
        varied[name.replace("-", "_")] = tuple(values)
    return varied


def _entry(label: str, table: Mapping[str, Any]) -> Entry:
    """A method of the grid from its table."""
    settings = {name: value for name, value in table.items() if name != "method"}
    return Entry(label=label, method=str(table.get("method", label)), settings=parse(settings))


def _seeds(value: object) -> tuple[int, ...]:
    """Seeds from a list, or from how many."""
    if is_number(value) and isinstance(value, int):
        return tuple(range(value))
    return _numbers("seeds", value, int)


def _numbers(name: str, values: object, kind: type) -> tuple[Any, ...]:
    """Numbers of an axis, each of ``kind``. Raises ValueError naming the axis."""
    listed = values if isinstance(values, list | tuple) else [None]
    if not all(is_number(v) and kind(v) == v for v in listed):
        raise ValueError(f"expected {name} as a list of numbers ({kind.__name__}), got {values!r}")
    return tuple(kind(value) for value in listed)


def numbers(option: str, text: str | None, kind: type) -> tuple[Any, ...]:
    """The numbers of an option such as ``--epsilons 1,3,8``. Raises ValueError for others."""
    try:
        return tuple(kind(word) for word in words(text))
    except ValueError:
        raise ValueError(
            f"expected {option} as numbers ({kind.__name__}) with commas, got {text!r}"
        ) from None


def words(text: str | None) -> Iterator[str]:
    """The words of a list with commas."""
    return (word.strip() for word in (text or "").split(",") if word.strip())


MAX_NAMED = 3
"""The most cells that are named for each reason."""


def check_cells(cells: Iterable[Cell]) -> None:
    """Raise ValueError for cells that cannot run, with the reasons.

    It is also raised for a setting that has no effect in any cell. Nothing is written or charged.

    Each cell is prepared and planned as its run does it: settings, data, partition, method, noise,
    and the model on the CPU. Cells that differ in their seed are checked once. The results of the
    accountants are kept for the cells. Not checked are the memory, a loss that diverges, and errors
    of a user's code, whose traceback is in the log of its cell.
    """
    groups = grouped(cells, lambda cell: repr({**cell.given, "seed": None})).values()
    check = _Check()
    refused: dict[str, list[str]] = {}  # names of cells by reason
    for own in groups:
        reason = check.reason(own[0].given)
        if reason is not None:
            refused.setdefault(reason, []).extend(cell.name for cell in own)
    if check.idle and not refused:
        for name in set.intersection(*map(set, check.idle)):
            raise ValueError(f"in every cell, {check.idle[0][name]}")
    if refused:
        count, cells_in_all = (sum(map(len, each)) for each in (refused.values(), groups))
        reasons = [f"{_some(names)}: {reason}" for reason, names in refused.items()]
        raise ValueError(
            f"{count} of {cells_in_all} cells cannot run, so none was started: {'; '.join(reasons)}"
        )


class _Check:
    """Prepares cells one after the other.

    data: those of the last cell, by their key: the next cell may need them again.
    blocks: ``count_blocks`` of each model, which is checked once.
    idle: for each cell, its settings without effect, and why.
    """

    def __init__(self) -> None:
        self.data: dict[Any, LoadedWorkload] = {}
        self.blocks: dict[Any, int] = {}
        self.idle: list[dict[str, str]] = []

    def reason(self, given: Any) -> str | None:
        """Why these settings cannot run; None if they can."""
        try:
            with without_exit():
                base = self._prepare(from_mapping(given))
                self.idle.append(idle(base.settings, base.method, names_given(given)))
        except (ValueError, OSError, ImportError) as error:
            return " ".join(str(error).split())
        except Exception:  # of a user's code: its cell reports it, with a traceback in its log
            return None
        return None

    def _prepare(self, settings: Settings) -> Base:
        """Prepare and plan a run on the CPU. Raises as its run would."""
        key = data_key(settings)
        base = prepare(settings, loaded=self.data.get(key))
        self.data = {key: base.workload}
        model = (
            key,
            base.settings.method,
            base.settings.model,
            repr(base.method.carrier),
            base.method.mechanism.clips,
        )
        here = replace(base, settings=replace(base.settings, device="cpu"))
        if model not in self.blocks:
            self.blocks[model] = count_blocks(here)
        here.clients.participation  # noqa: B018 - raises for a trace that cannot be used
        client_terms(here, self.blocks[model])
        return base


def _some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
