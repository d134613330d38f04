"""Results of the cells of a grid and of given run directories, with labels that distinguish
them.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any
from warnings import warn

from fedlsg.simulations.compare.cells import Cell, grouped, word
from fedlsg.simulations.compare.runner import Ended, Folder
from fedlsg.simulations.planning.continuity import HARMLESS
from fedlsg.simulations.storage.examined import RESULTS, Say, open_run
from fedlsg.simulations.storage.journal import Link
from fedlsg.simulations.storage.results import Result, read_run

SHOWN = frozenset({"rank", "sparsity", "epsilon", "noise_multiplier"})
"""Settings with a column of their own, or that follow from one."""

CELLS = "cells"
LABELLED = 2
"""A label names at most so many settings."""


def cell_result(
    folder: Folder, cell: Cell, record: Mapping[str, Ended], link: Link | None = None
) -> Result:
    """The state of a cell as a result; a run directory that cannot be read is a failed cell."""
    state, run = folder.status(cell, record), folder.run(cell)
    result = Result(
        name=cell.name,
        label=cell.label,
        status=state.status,
        reason=state.reason,
        settings=cell.given,
        summary={},
    )
    if run.config.exists():
        try:
            if state.status == "done":
                open_run(run.path, RESULTS, warn)
            result = read_run(run.path, status=state.status, reason=state.reason, link=link)
        except ValueError as error:
            result = replace(result, status="failed", reason=str(error))
    group = (cell.label, repr({**cell.given, "seed": None}))
    return replace(result, label=cell.label, group=group, varied=cell.varied)


def read_runs(paths: Iterable[Path], link: Link | None = None, say: Say = warn) -> list[Result]:
    """Run directories; the folder of a comparison means all of its runs.

    Runs that differ in their seed only form a group. If a method comes with several settings, its
    groups keep the labels of their grids, provided that each has one and none is ambiguous.
    Otherwise a label names the settings that differ, or a number if they are many; ``detail`` names
    all of them. Raises ValueError for a folder that is neither, and if there is no run at all.
    """
    runs: dict[Path, Result] = {}
    for path in paths:
        cells = sorted(path.glob(f"{CELLS}/*/config.toml"))
        for run in [config.parent for config in cells] or [path]:
            result = read_run(open_run(run, RESULTS, say).path, link=link)
            place = run.expanduser().resolve()
            varied = _varied(run, result) if cells else ()
            result = replace(result, label=_grid_label(place), varied=varied)
            runs[place] = replace(result, group=_group(result))
    if not runs:
        raise ValueError("expected at least one run directory")
    labels = _clear_labels(runs.values())
    families = grouped(runs, lambda place: (_workload(runs[place]), runs[place].method))
    several = len({workload for workload, _ in families}) > 1
    for (workload, _), places in families.items():
        names = _names([runs[place] for place in places], labels)
        for place, (label, detail) in zip(places, names, strict=True):
            label = f"{workload} {label}" if several else label
            runs[place] = replace(runs[place], label=label, detail=detail)
    return list(runs.values())


def _workload(run: Result) -> Any:
    return run.settings.get("workload")


def _clear_labels(runs: Iterable[Result]) -> set[tuple[Any, str]]:
    """The workloads and labels of grids that mean one method with one setting each."""
    clear = set()
    for label, labelled in grouped(runs, lambda run: (_workload(run), run.label)).items():
        meanings = {(run.method, str(_hidden(run))) for run in labelled}
        if label[1] and len(meanings) == 1:
            clear.add(label)
    return clear


def _names(runs: Sequence[Result], labels: Set[tuple[Any, str]]) -> list[tuple[str, str]]:
    """(label, detail) of the runs of one method on one workload.

    Those of their grids where all are in ``labels``; else by the settings that have no column.
    """
    clear = all((_workload(run), run.label) in labels for run in runs)
    groups = {run.group for run in runs}
    kept = clear and len({(run.group, run.label) for run in runs}) == len(groups)
    hidden = [_hidden(run) for run in runs]
    variants = list({str(settings): settings for settings in hidden}.values())
    differing = []
    for name in sorted(set().union(*variants)):
        if len({str(settings.get(name)) for settings in variants}) > 1:
            differing.append(name)
    names = []
    for run, settings in zip(runs, hidden, strict=True):
        given = (name for name in differing if settings.get(name) is not None)
        detail = ", ".join(f"{name}={settings[name]}" for name in given)
        if kept:
            label = run.label
        elif len(differing) > LABELLED:
            label = f"{run.method} #{variants.index(settings) + 1}"
        else:
            label = f"{run.method} ({detail})" if detail else run.method
        names.append((label, detail))
    return names


def _grid_label(cell: Path) -> str:
    """What a run is called in its grid; empty if there is none."""
    methods = _grid_of(cell).get("methods", ())
    return max((name for name in methods if cell.name.startswith(f"{name}-")), key=len, default="")


def _varied(cell: Path, result: Result) -> tuple[tuple[str, Any], ...]:
    """The settings that a grid varies for a cell, which its name has, and their values."""
    varied = []
    for name in _grid_of(cell).get("vary", ()):
        if name in result.settings:
            value = result.settings[name]
            if f"-{word(name, value)}-" in f"{cell.name}-":
                varied.append((name, value))
    return tuple(varied)


def _grid_of(cell: Path) -> dict[str, Any]:
    """The tables of grid.toml of a cell's comparison; empty where it cannot be read.

    No method that it names is loaded.
    """
    if cell.parent.name != CELLS:
        return {}
    try:
        table = tomllib.loads((cell.parent.parent / "grid.toml").read_text())
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in table.items() if isinstance(value, dict)}


def _group(run: Result) -> tuple[Any, ...]:
    return tuple(sorted((name, str(value)) for name, value in _binding(run).items()))


def _binding(run: Result) -> dict[str, Any]:
    """The settings that decide the outcome of a run.

    Except its seed, those that follow from others and unused ones.
    """
    follows = {"seed"}
    if run.settings.get("epsilon") is not None:
        follows.add("noise_multiplier")
    if run.settings.get("local_steps", 1) == 1:
        follows.add("local_learning_rate")
    unused = HARMLESS | follows
    return {name: value for name, value in run.settings.items() if name not in unused}


def _hidden(run: Result) -> dict[str, Any]:
    """The binding settings that have no column, in the order of their names."""
    shown = SHOWN | {name for name, _ in run.varied}
    return {name: value for name, value in sorted(_binding(run).items()) if name not in shown}
