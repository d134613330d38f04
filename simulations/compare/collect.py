"""Results of the cells of a grid and of given run directories, with labels that distinguish them."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from warnings import warn

from simulations.compare.grid import Cell, word
from simulations.compare.runner import Ended, Folder
from simulations.plan.continuity import HARMLESS
from simulations.rundir.examined import RESULTS, Say, open_run
from simulations.rundir.journal import Link
from simulations.rundir.results import Result, read_run

SHOWN = frozenset({"rank", "sparsity", "epsilon", "noise_multiplier"})
"""Settings with a column of their own, or that follow from one."""

CELLS = "cells"
LABELLED = 2
"""A label names at most so many settings."""


def cell_result(folder: Folder, cell: Cell, record: Mapping[str, Ended], link: Link | None = None) -> Result:
    """The state of a cell as a result; a run directory that cannot be read is a failed cell."""
    group = (cell.label, repr({**cell.given, "seed": None}))
    state = folder.status(cell, record)
    status, reason = state.status, state.reason
    if folder.run(cell).config.exists():
        try:
            if status == "done":
                open_run(folder.run(cell).path, RESULTS, warn)
            found = read_run(folder.run(cell).path, label=cell.label, status=status, reason=reason, link=link)
            return replace(found, group=group, varied=cell.varied)
        except ValueError as error:
            status, reason = "failed", str(error)
    return Result(
        name=cell.name, label=cell.label, status=status, reason=reason, settings=cell.given, summary={}, group=group,
        varied=cell.varied,
    )  # fmt: skip


def read_runs(paths: Iterable[Path], link: Link | None = None, say: Say = warn) -> list[Result]:
    """Run directories; the folder of a comparison means all of its runs.

    Runs that differ in their seed only form a group. If a method comes with several settings, its groups keep the
    labels of their grids, provided that each has one and none is ambiguous. Otherwise a label names the settings that
    differ, or a number if they are many; ``detail`` names all of them. Raises ValueError for a folder that is neither,
    and if there is no run at all.
    """
    found: dict[Path, Result] = {}
    for path in paths:
        cells = path / CELLS
        inside = sorted(cell for cell in cells.iterdir() if (cell / "config.toml").exists()) if cells.is_dir() else []
        for run in inside or [path]:
            result = read_run(open_run(run, RESULTS, say).path, link=link)
            found[run.expanduser().resolve()] = replace(result, varied=_varied(run, result) if inside else ())
    if not found:
        raise ValueError("expected at least one run directory")
    results = list(found.values())
    labels = _grid_labels(found)
    several = len({run.settings.get("workload") for run in results}) > 1
    names = _names(results, labels)
    return [
        replace(
            run, label=f"{run.settings['workload']} {label}" if several else label, detail=detail, group=_group(run)
        )
        for run in results
        for label, detail in [names[_group(run)]]
    ]


def _grid_labels(found: Mapping[Path, Result]) -> dict[tuple[Any, ...], str]:
    """The labels of groups in their grids, if no other group of the workload has the same label."""
    called: dict[tuple[Any, ...], set[str | None]] = {}
    meant: dict[tuple[Any, str | None], set[tuple[Any, ...]]] = {}
    for path, run in found.items():
        given = [name for name in _grid_of(path).get("methods", ()) if path.name.startswith(f"{name}-")]
        label = max(given, key=len, default=None)
        called.setdefault(_group(run), set()).add(label)
        meant.setdefault((run.settings.get("workload"), label), set()).add((run.method, str(_hidden(run))))
    return {
        _group(run): label
        for run in found.values()
        for label in called[_group(run)]
        if label is not None and len(called[_group(run)]) == len(meant[run.settings.get("workload"), label]) == 1
    }


def _varied(cell: Path, result: Result) -> tuple[tuple[str, Any], ...]:
    """The settings that a grid varies for a cell, which its name has, and their values."""
    said = {name: result.settings[name] for name in _grid_of(cell).get("vary", ()) if name in result.settings}
    return tuple((name, value) for name, value in said.items() if f"-{word(name, value)}-" in f"{cell.name}-")


def _grid_of(cell: Path) -> dict[str, Any]:
    """What grid.toml says of a cell's comparison; empty where it cannot be read. No method that it names is loaded."""
    try:
        table = tomllib.loads((cell.parent.parent / "grid.toml").read_text()) if cell.parent.name == CELLS else {}
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in table.items() if isinstance(value, dict)}


def _group(run: Result) -> tuple[Any, ...]:
    return tuple(sorted((name, str(value)) for name, value in _binding(run).items()))


def _binding(run: Result) -> dict[str, Any]:
    """The settings that decide the outcome of a run, except its seed, those that follow from others and unused ones."""
    follows = {"noise_multiplier"} if run.settings.get("epsilon") is not None else set()
    follows |= {"local_learning_rate"} if run.settings.get("local_steps", 1) == 1 else set()
    harmless = HARMLESS | {"seed"} | follows
    return {name: value for name, value in run.settings.items() if name not in harmless}


def _hidden(run: Result) -> dict[str, Any]:
    """The binding settings that have no column, in the order of their names."""
    shown = SHOWN | {name for name, _ in run.varied}
    return {name: value for name, value in sorted(_binding(run).items()) if name not in shown}


def _names(results: Sequence[Result], labels: Mapping[tuple[Any, ...], str]) -> dict[tuple[Any, ...], tuple[str, str]]:
    """(label, detail) of every group: within one method and workload, by the settings that have no column."""
    families: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, Any]]] = {}
    for run in results:
        family = (run.settings.get("workload"), run.method)
        families.setdefault(family, {})[_group(run)] = _hidden(run)
    found = {}
    for (_, method), groups in families.items():
        variants = list({str(own): own for own in groups.values()}.values())
        differing = sorted({k for own in variants for k in own if any(o.get(k) != own[k] for o in variants)})
        for group, own in groups.items():
            detail = ", ".join(f"{name}={own[name]}" for name in differing if own.get(name) is not None)
            short = f"{method} ({detail})" if len(differing) <= LABELLED else f"{method} #{variants.index(own) + 1}"
            own_name = short if detail or len(differing) > LABELLED else method
            found[group] = (labels[group] if groups.keys() <= labels.keys() else own_name, detail)
    return found
