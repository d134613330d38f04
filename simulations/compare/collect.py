"""Results of the cells of a grid, and of run directories that somebody names, with labels that tell them apart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulations.compare.grid import Cell
from simulations.compare.results import Result, read_run
from simulations.compare.runner import Ended, Folder
from simulations.continuity import HARMLESS
from simulations.links import Link

SHOWN = frozenset({"rank", "sparsity", "epsilon", "noise_multiplier"})
"""Settings that have a column of their own, or follow from one that has."""

LABELLED = 2
"""Settings that a label names at most."""


def cell_result(folder: Folder, cell: Cell, record: Mapping[str, Ended], link: Link | None = None) -> Result:
    """How a cell stands, as a result; a run directory that cannot be read is a failed cell."""
    group = (cell.label, cell.epsilon, cell.rank, cell.sparsity)
    state = folder.status(cell, record)
    status, reason = state.status, state.reason
    if folder.run(cell).config.exists():
        try:
            found = read_run(folder.run(cell).path, label=cell.label, status=status, reason=reason, link=link)
            return replace(found, group=group)
        except ValueError as error:
            status, reason = "failed", str(error)
    return Result(
        name=cell.name, label=cell.label, status=status, reason=reason, settings=cell.given, summary={}, group=group
    )


def read_runs(paths: Iterable[Path], link: Link | None = None) -> list[Result]:
    """Run directories; a comparison's folder stands for all of its runs.

    Runs that differ in nothing but their seed form a group. Where one method comes with several settings, its label
    names those that differ, or a number where they are many; ``detail`` names all of them. Raises ValueError for a
    folder that is neither, and where there is no run at all.
    """
    found: dict[Path, Result] = {}
    for path in paths:
        cells = path / "cells"
        inside = sorted(cell for cell in cells.iterdir() if (cell / "config.toml").exists()) if cells.is_dir() else []
        for run in inside or [path]:
            found[run.expanduser().resolve()] = read_run(run.expanduser().resolve(), link=link)
    if not found:
        raise ValueError("expected at least one run directory")
    results = list(found.values())
    several = len({run.settings.get("workload") for run in results}) > 1
    names = _names(results)
    return [
        replace(
            run, label=f"{run.settings['workload']} {label}" if several else label, detail=detail, group=_group(run)
        )
        for run in results
        for label, detail in [names[_group(run)]]
    ]


def _group(run: Result) -> tuple[Any, ...]:
    return tuple(sorted((name, str(value)) for name, value in _binding(run).items()))


def _binding(run: Result) -> dict[str, Any]:
    """What decides a run's outcome, its seed apart; a noise multiplier that follows from epsilon is left out."""
    follows = {"noise_multiplier"} if run.settings.get("epsilon") is not None else set()
    harmless = {name.replace("-", "_") for name in HARMLESS} | {"seed"} | follows
    return {name: value for name, value in run.settings.items() if name not in harmless}


def _names(results: Sequence[Result]) -> dict[tuple[Any, ...], tuple[str, str]]:
    """(label, detail) of every group: within one method and workload, by the settings that have no column."""
    families: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, Any]]] = {}
    for run in results:
        family = (run.settings.get("workload"), run.method)
        hidden = {name: value for name, value in _binding(run).items() if name not in SHOWN}
        families.setdefault(family, {})[_group(run)] = hidden
    found = {}
    for (_, method), groups in families.items():
        variants = list({str(sorted(own.items())): own for own in groups.values()}.values())
        differing = sorted({k for own in variants for k in own if any(o.get(k) != own[k] for o in variants)})
        for group, own in groups.items():
            detail = ", ".join(f"{name}={own[name]}" for name in differing if own.get(name) is not None)
            short = f"{method} ({detail})" if len(differing) <= LABELLED else f"{method} #{variants.index(own) + 1}"
            found[group] = (short if detail or len(differing) > LABELLED else method, detail)
    return found
