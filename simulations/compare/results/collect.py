"""Results of the cells of a grid and of given run directories, with labels that distinguish
them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from warnings import warn

from fedlsg import bounded, user_code
from fedlsg.simulations.compare.grid import choosing
from fedlsg.simulations.compare.grid.cells import Cell, grouped, word
from fedlsg.simulations.compare.grid.choosing import Choosing
from fedlsg.simulations.compare.grid.grid_file import parse_labels
from fedlsg.simulations.compare.grid.runner import CELLS, Ended, Folder
from fedlsg.simulations.compare.results.lines import Labels
from fedlsg.simulations.compare.results.pandas_library import pd
from fedlsg.simulations.planning.earlier_runs.continuity import HARMLESS
from fedlsg.simulations.planning.trust import code_of_run
from fedlsg.simulations.storage.examined import RESULTS, Say, open_run
from fedlsg.simulations.storage.messages.links import Link
from fedlsg.simulations.storage.results import Result, read_run

COLUMN_SETTINGS = frozenset({"rank", "sparsity", "epsilon", "noise_multiplier"})
"""Settings with a column of their own, or that follow from one."""

CODE = "code"
"""What tells runs apart that differ in the code of a user's own alone."""
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
            result = replace(result, code=code_of_run(run))
            place = run.expanduser().resolve()
            grid = _grid_of(place)
            varied = _varied(place, result, grid.get("vary", ())) if cells else ()
            label = _grid_label(place, grid.get("methods", ()))
            result = replace(result, label=label, varied=varied)
            runs[place] = replace(result, group=_group(result))
    if not runs:
        raise ValueError("expected at least one run directory")
    return _labelled(list(runs.values()))


def kept_labels(paths: Iterable[Path]) -> Labels:
    """What the comparisons of these folders, and of these cells of some, call their methods.

    A name that two folders give to different methods, or a method with two names, has none.
    """
    folders = dict.fromkeys(_comparison_of(path.expanduser().resolve()) for path in paths)
    tables = (parse_labels(_tables_of(one).get("labels", {})) for one in folders)
    pairs = {pair for table in tables for pair in table.items()}
    keys, names = ([pair[at] for pair in pairs] for at in (0, 1))
    return {key: name for key, name in pairs if keys.count(key) == names.count(name) == 1}


def kept_choosing(paths: Iterable[Path]) -> tuple[Choosing | None, tuple[str, ...]]:
    """The search that chose the settings of these runs, and the notes of their comparisons.

    Of several comparisons, what choosing cost is among the notes: it belongs to some lines alone.
    """
    folders = list(dict.fromkeys(_comparison_of(path.expanduser().resolve()) for path in paths))
    files = list(map(_read_grid, folders))
    found = [choosing.from_table(one["choosing"]) for one in files if "choosing" in one]
    said = [str(note) for one in files for note in one.get("notes", ())]
    if len(folders) == len(found) == 1:
        return found[0], tuple(said)
    return None, (*said, *(words for one in found for words in one.words))


def code_notes(runs: Iterable[Result]) -> list[str]:
    """A sentence for each method whose runs on one workload were made by different code."""
    families = grouped(runs, lambda run: (str(run.settings.get("workload")), run.method))
    said = []
    for (workload, method), own in families.items():
        codes = dict.fromkeys(run.code for run in own if run.code)
        if len(codes) > 1:
            said.append(
                f"Runs of {user_code.short(method)} on {user_code.short(workload)} were made by "
                f"{len(codes)} versions of your own code ({', '.join(codes)}): each version is a "
                "line of its own, and nothing is averaged over both."
            )
    return said


def _labelled(runs: list[Result]) -> list[Result]:
    """The runs with labels that distinguish them."""
    facts = [(run.settings.get("workload"), run.method, run.label, run.group) for run in runs]
    table = pd.DataFrame(facts, columns=["workload", "method", "label", "group"])
    table["settings"] = list(map(_hidden, runs))
    meanings = (table.method + table.settings.map(str)).groupby([table.workload, table.label])
    clear = table.label.ne("") & meanings.transform("nunique").eq(1)
    labelled = list(runs)
    families = table.groupby(["workload", "method"], sort=False, dropna=False)
    for (workload, method), own in families:
        one_each = len(own[["group", "label"]].drop_duplicates()) == own.group.nunique()
        settings = pd.DataFrame(list(own.settings), own.index, dtype=object)
        texts = settings.where(settings.notna(), None).map(str)
        differing = sorted(texts.columns[texts.nunique() > 1])
        for at in own.index:
            given = settings.loc[at, differing].dropna()
            detail = ", ".join(f"{name}={value}" for name, value in given.items())
            called = user_code.short(str(method))
            if one_each and clear[own.index].all():
                label = own.label[at]
            elif len(differing) > LABELLED:
                number = texts.groupby(differing, sort=False).ngroup()[at] + 1
                label = f"{called} #{number}"
            else:
                label = f"{called} ({detail})" if detail else called
            label = f"{workload} {label}" if table.workload.nunique() > 1 else label
            labelled[at] = replace(runs[at], label=label, detail=detail)
    return labelled


def _grid_label(cell: Path, methods: Iterable[str]) -> str:
    """What a run is called in its grid; empty if there is none."""
    return max((name for name in methods if cell.name.startswith(f"{name}-")), key=len, default="")


def _varied(cell: Path, result: Result, names: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    """The settings that a grid varies for a cell, which its name has, and their values."""
    values = [(name, result.settings[name]) for name in names if name in result.settings]
    return tuple(one for one in values if f"-{word(*one)}-" in f"{cell.name}-")


def _comparison_of(path: Path) -> Path:
    """The folder of the comparison that a cell is of; any other folder is its own."""
    return path.parent.parent if path.parent.name == CELLS else path


def _grid_of(cell: Path) -> dict[str, Any]:
    """The tables of grid.toml of a cell's comparison; empty for other run directories."""
    return _tables_of(cell.parent.parent) if cell.parent.name == CELLS else {}


def _tables_of(folder: Path) -> dict[str, Any]:
    """The tables of grid.toml in a folder."""
    return {key: value for key, value in _read_grid(folder).items() if isinstance(value, dict)}


def _read_grid(folder: Path) -> dict[str, Any]:
    """The keys of grid.toml in a folder; none where it cannot be read.

    No method that it names is loaded.
    """
    try:
        return bounded.read_toml(folder / "grid.toml")
    except (OSError, ValueError):
        return {}


def _group(run: Result) -> tuple[Any, ...]:
    return tuple(sorted((name, str(value)) for name, value in _binding(run).items()))


def _binding(run: Result) -> dict[str, Any]:
    """The settings that decide the outcome of a run, and the code of a user's own.

    Except its seed, those that follow from others and unused ones.
    """
    follows = {"seed"}
    if run.settings.get("epsilon") is not None:
        follows.add("noise_multiplier")
    if run.settings.get("local_steps", 1) == 1:
        follows.add("local_learning_rate")
    unused = HARMLESS | follows
    code = {CODE: run.code} if run.code else {}
    return code | {name: value for name, value in run.settings.items() if name not in unused}


def _hidden(run: Result) -> dict[str, Any]:
    """The binding settings that have no column, in the order of their names."""
    shown = COLUMN_SETTINGS | {name for name, _ in run.varied}
    return {name: value for name, value in sorted(_binding(run).items()) if name not in shown}
