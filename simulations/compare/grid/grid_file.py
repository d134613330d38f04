"""A grid as the file ``grid.toml`` and as options of the command line, and one check of its cells
before the first.

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
from operator import itemgetter
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
    return {
        "workload": grid.workload,
        **{name: list(getattr(grid, name)) for name in ("seeds", *KINDS)},
        **(
            {"vary": {name: list(values) for name, values in grid.vary.items()}}
            if grid.vary
            else {}
        ),
        **({"notes": list(grid.notes)} if grid.notes else {}),
        **({"labels": dict(grid.labels)} if grid.labels else {}),
        **({"choosing": choosing.as_table(grid.choosing)} if grid.choosing else {}),
        "settings": dict(grid.settings),
        "methods": {
            entry.label: ({"method": entry.method} if entry.method != entry.label else {})
            | dict(entry.settings)
            for entry in grid.entries
        },
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
    named = isinstance(table, Mapping) and all(
        isinstance(name, str) and name.strip() for name in table.values()
    )
    if not isinstance(table, Mapping) or not named:
        raise ValueError(f'expected [labels] of a grid file as texts, lsg = "LSG", got {table!r}')
    return {str(key): name for key, name in table.items()}


def _check_key(key: str, known: Sequence[str]) -> None:
    """Raise ValueError for an unknown key of a grid file: a setting, by whatever name, has its
    place there.
    """
    if key in known:
        return
    settings = all_settings()
    is_setting = key.replace("-", "_") in settings
    said = "" if is_setting else in_our_words(key, settings)
    if is_setting and key not in AXES:
        said = "; it is a setting"
    if said:
        raise ValueError(
            f"unknown key of a grid file {key!r}{said}: give settings under [settings], or "
            "[methods.NAME]; lists of epsilons and ranks are at the top"
        )
    choose("key of a grid file", key, dict.fromkeys(known))


def read_varied(texts: Sequence[str]) -> dict[str, list[str]]:
    """The values of ``--vary NAME=A,B,C`` by setting, as texts. Raises ValueError naming the
    option.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not name:
            raise ValueError(f"expected --vary NAME=A,B,C, got {text!r}")
        if name in found:
            raise ValueError(f"--vary {name} is given twice: give it once")
        found[name] = list(words(values))
    return found


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
    multiples = [str(one) for one in table.get(RATE, ()) if re.fullmatch(FACTOR, str(one))]
    if multiples:
        raise ValueError(
            f"multiples of the rule's {RATE} ({', '.join(multiples)}) are searched, each method "
            f'from its own: --search "{RATE}={",".join(multiples)}"; --vary {RATE}= takes numbers, '
            "which turn the rule off"
        )
    known = declarations(table)
    found = {
        name.replace("-", "_"): tuple(known[name].parse(value) for value in table[name])
        for name in table
    }
    return {
        name: tuple(sorted(values)) if all(map(is_number, values)) else values
        for name, values in found.items()
    }


def _entry(label: str, own: Mapping[str, Any]) -> Entry:
    rest = {name: value for name, value in own.items() if name != "method"}
    return Entry(label=label, method=str(own.get("method", label)), settings=parse(rest))


def _seeds(value: object) -> tuple[int, ...]:
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
    """The numbers of an option such as ``--epsilons 1,3,8``. Raises ValueError naming the
    option.
    """
    try:
        return tuple(kind(word) for word in words(text))
    except ValueError:
        raise ValueError(
            f"expected {option} as numbers ({kind.__name__}) with commas, got {text!r}"
        ) from None


def words(text: str | None) -> Iterator[str]:
    """The words of a list with commas."""
    return (word.strip() for word in (text or "").split(",") if word.strip())


NAMED = 3
"""So many cells are named for each reason."""


def check_cells(cells: Iterable[Cell]) -> None:
    """Raise ValueError that names the cells that cannot run, and why, or a setting that does
    nothing in any cell.

    Nothing is written or charged.

    Each cell is prepared and planned as its run does it: settings, data, partition, method, noise,
    and the model on the CPU. Cells that differ in their seed are checked once. What the accountants
    found is kept for the cells. Not found here: too little memory, a loss that diverges, and errors
    of a user's code, whose traceback is in the log of its cell.
    """
    groups = grouped(cells, lambda cell: repr({**cell.given, "seed": None})).values()
    check = _Check()
    found = [
        (reason, cell)
        for alike in groups
        for reason in [check.reason(alike[0].given)]
        for cell in alike
    ]
    refused = grouped((one for one in found if one[0] is not None), itemgetter(0))
    if check.idle and not refused:
        for name in set.intersection(*map(set, check.idle)):
            raise ValueError(f"in every cell, {check.idle[0][name]}")
    if refused:
        count = sum(map(len, refused.values()))
        reasons = [
            f"{_some([cell.name for _, cell in own])}: {reason}" for reason, own in refused.items()
        ]
        raise ValueError(
            f"{count} of {len(found)} cells cannot run, so none was started: {'; '.join(reasons)}"
        )


class _Check:
    """Prepares cells one after the other. Data that the next cell needs are kept, and models are
    checked once.

    ``idle``: for each cell, its settings without effect.
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
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
