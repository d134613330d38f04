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
    found = Result(
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
            found = read_run(run.path, status=state.status, reason=state.reason, link=link)
        except ValueError as error:
            found = replace(found, status="failed", reason=str(error))
    group = (cell.label, repr({**cell.given, "seed": None}))
    return replace(found, label=cell.label, group=group, varied=cell.varied)


def read_runs(paths: Iterable[Path], link: Link | None = None, say: Say = warn) -> list[Result]:
    """Run directories; the folder of a comparison means all of its runs.

    Runs that differ in their seed only form a group. If a method comes with several settings, its
    groups keep the labels of their grids, provided that each has one and none is ambiguous.
    Otherwise a label names the settings that differ, or a number if they are many; ``detail`` names
    all of them. Raises ValueError for a folder that is neither, and if there is no run at all.
    """
    found: dict[Path, Result] = {}
    for path in paths:
        cells = (path / CELLS).iterdir() if (path / CELLS).is_dir() else ()
        inside = sorted(cell for cell in cells if (cell / "config.toml").exists())
        for run in inside or [path]:
            result = read_run(open_run(run, RESULTS, say).path, link=link)
            place = run.expanduser().resolve()
            varied = _varied(run, result) if inside else ()
            found[place] = replace(result, label=_grid_label(place), varied=varied)
    if not found:
        raise ValueError("expected at least one run directory")
    meant = grouped(found.values(), lambda run: (_workload(run), run.label))
    clear = {
        called
        for called, own in meant.items()
        if called[1] and len({(run.method, str(_hidden(run))) for run in own}) == 1
    }
    families = grouped(found, lambda path: (_workload(found[path]), found[path].method))
    for (workload, _), family in families.items():
        names = _names([found[path] for path in family], clear)
        for place, (label, detail) in zip(family, names, strict=True):
            label = f"{workload} {label}" if len({name for name, _ in families}) > 1 else label
            own = found[place]
            found[place] = replace(own, label=label, detail=detail, group=_group(own))
    return list(found.values())


def _workload(run: Result) -> Any:
    return run.settings.get("workload")


def _names(own: Sequence[Result], clear: Set[tuple[Any, str]]) -> list[tuple[str, str]]:
    """(label, detail) of the runs of one method on one workload.

    Those of their grids where all are ``clear``; else by the settings that have no column.
    """
    groups = grouped(own, _group).values()
    kept = all((_workload(run), run.label) in clear for run in own)
    kept = kept and all(len({run.label for run in group}) == 1 for group in groups)
    hidden = [_hidden(run) for run in own]
    variants = list({str(one): one for one in hidden}.values())
    names = {name for one in variants for name in one}
    differing = [
        name for name in sorted(names) if len({str(one.get(name)) for one in variants}) > 1
    ]
    found = []
    for run, mine in zip(own, hidden, strict=True):
        said = [f"{name}={mine[name]}" for name in differing if mine.get(name) is not None]
        detail = ", ".join(said)
        if kept:
            label = run.label
        elif len(differing) > LABELLED:
            label = f"{run.method} #{variants.index(mine) + 1}"
        else:
            label = f"{run.method} ({detail})" if detail else run.method
        found.append((label, detail))
    return found


def _grid_label(cell: Path) -> str:
    """What a run is called in its grid; empty if there is none."""
    methods = _grid_of(cell).get("methods", ())
    return max((name for name in methods if cell.name.startswith(f"{name}-")), key=len, default="")


def _varied(cell: Path, result: Result) -> tuple[tuple[str, Any], ...]:
    """The settings that a grid varies for a cell, which its name has, and their values."""
    own = result.settings
    varied = [(name, own[name]) for name in _grid_of(cell).get("vary", ()) if name in own]
    return tuple(one for one in varied if f"-{word(*one)}-" in f"{cell.name}-")


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
    return {k: value for k, value in run.settings.items() if k not in HARMLESS | follows}


def _hidden(run: Result) -> dict[str, Any]:
    """The binding settings that have no column, in the order of their names."""
    shown = SHOWN | {name for name, _ in run.varied}
    return {name: value for name, value in sorted(_binding(run).items()) if name not in shown}
