"""Results of a grid's cells, and of given run directories, with labels that distinguish them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from warnings import warn

from fedlsg import bounded, user_code
from fedlsg.simulations.compare.grid import choosing
from fedlsg.simulations.compare.grid.cells import Cell, grouped, word
from fedlsg.simulations.compare.grid.choosing import Choosing
from fedlsg.simulations.compare.grid.grid_file import parse_labels
from fedlsg.simulations.compare.grid.runner import CELLS, Ended, Folder
from fedlsg.simulations.compare.grid.same_contents import ROWS, deciding
from fedlsg.simulations.compare.results.lines import Labels
from fedlsg.simulations.compare.results.pandas_library import pd
from fedlsg.simulations.planning.earlier_runs.continuity import HARMLESS
from fedlsg.simulations.planning.trust import code_of_run
from fedlsg.simulations.report.words import counted
from fedlsg.simulations.storage.examined import RESULTS, Say, open_run
from fedlsg.simulations.storage.messages.links import Link
from fedlsg.simulations.storage.results import Result, read_run
from fedlsg.simulations.storage.run_directory import RunDir

COLUMN_SETTINGS = frozenset({"rank", "sparsity", "epsilon", "noise_multiplier"})
"""Settings with a column of their own, or that follow from one."""

CODE = "code"
"""The name, next to settings, of the code of a user's own."""
MAX_LABELLED = 2
"""The most settings that a label names."""


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
    """The results of run directories; the folder of a comparison stands for all of its runs.

    Runs that differ in their seed only form a group. Groups keep the labels of their grids, if each
    has one and none is ambiguous. Otherwise a label names the settings that differ, or a number if
    they are many; ``detail`` names all of them.
    Raises ValueError for a folder that is neither, and without any run.
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
            runs[place] = replace(result, label=label, varied=varied)
    if not runs:
        raise ValueError("expected at least one run directory")
    versions = _versions({place: result.settings for place, result in runs.items()})
    results = [replace(run, versions=versions[place]) for place, run in runs.items()]
    return _labelled([replace(run, group=_group(run)) for run in results])


def kept_labels(paths: Iterable[Path]) -> Labels:
    """The names of methods in the comparisons of these folders, or of these cells, by their labels.

    A name that folders give to different methods is left out, and so is a method with two names.
    """
    folders = dict.fromkeys(_comparison_of(path.expanduser().resolve()) for path in paths)
    pairs: set[tuple[str, str]] = set()
    for folder in folders:
        pairs |= parse_labels(_tables_of(folder).get("labels", {})).items()
    keys = [key for key, _ in pairs]
    names = [name for _, name in pairs]
    return {key: name for key, name in pairs if keys.count(key) == names.count(name) == 1}


def kept_choosing(paths: Iterable[Path]) -> tuple[Choosing | None, tuple[str, ...]]:
    """The search that chose the settings of these runs, and the notes of their comparisons.

    For several comparisons there is no search: the costs of choosing belong to some lines alone,
    and are among the notes.
    """
    folders = dict.fromkeys(_comparison_of(path.expanduser().resolve()) for path in paths)
    searches, notes = list[Choosing](), list[str]()
    for table in map(_read_grid, folders):
        notes += map(str, table.get("notes", ()))
        if "choosing" in table:
            searches.append(choosing.from_table(table["choosing"]))
    if len(folders) == len(searches) == 1:
        return searches[0], tuple(notes)
    return None, (*notes, *chain.from_iterable(search.words for search in searches))


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


def version_notes(runs: Iterable[Result]) -> list[str]:
    """A sentence for each of the contents that differ between runs of equal settings."""
    runs = list(runs)
    return [
        f"The {name.replace('_', ' ')} of {run_words} differ, though their settings are the same: "
        "each version is a line of its own, and nothing is averaged over several. "
        + ("Lines of different versions are not compared with each other." * (name in ROWS))
        for name in dict.fromkeys(chain.from_iterable(run.versions for run in runs))
        for run_words in [counted(sum(name in run.versions for run in runs), "run")]
    ]


def _versions(settings: Mapping[Path, Mapping[str, Any]]) -> dict[Path, dict[str, str]]:
    """Of each run the number of its version of each of its contents, from 1.

    Contents are left out if all runs of the same settings, as far as these decide it, agree in it.
    The digests themselves are secret, and no page has them.
    settings: of the runs, by folder.
    """
    digests: dict[tuple[Any, ...], list[str]] = {}
    entries = [
        (place, name, digest, (name, *deciding(name, own)))
        for place, own in settings.items()
        for name, digest in RunDir(place).read_contents().items()
    ]
    for _, _, digest, alike in entries:
        known = digests.setdefault(alike, [])
        if digest not in known:
            known.append(digest)
    versions: dict[Path, dict[str, str]] = {place: {} for place in settings}
    for place, name, digest, alike in entries:
        if len(digests[alike]) > 1:
            versions[place][name] = f"version {digests[alike].index(digest) + 1}"
    return versions


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
        for row in own.index:
            given = settings.loc[row, differing].dropna()
            detail = ", ".join(f"{name}={value}" for name, value in given.items())
            label = user_code.short(str(method))
            if one_each and clear[own.index].all():
                label = own.label[row]
            elif len(differing) > MAX_LABELLED:
                number = texts.groupby(differing, sort=False).ngroup()[row] + 1
                label = f"{label} #{number}"
            elif detail:
                label = f"{label} ({detail})"
            if table.workload.nunique() > 1:
                label = f"{workload} {label}"
            labelled[row] = replace(runs[row], label=label, detail=detail)
    return labelled


def _grid_label(cell: Path, methods: Iterable[str]) -> str:
    """The label of a cell: the longest method with which the cell's name begins; else empty."""
    return max((name for name in methods if cell.name.startswith(f"{name}-")), key=len, default="")


def _varied(cell: Path, result: Result, names: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    """The settings that a grid varies for a cell, which its name has, and their values."""
    pairs = ((name, result.settings[name]) for name in names if name in result.settings)
    return tuple(pair for pair in pairs if f"-{word(*pair)}-" in f"{cell.name}-")


def _comparison_of(path: Path) -> Path:
    """The folder of the comparison of a cell; for any other folder, the folder itself."""
    return path.parent.parent if path.parent.name == CELLS else path


def _grid_of(cell: Path) -> dict[str, Any]:
    """The tables of grid.toml of a cell's comparison; empty for other run directories."""
    return _tables_of(cell.parent.parent) if cell.parent.name == CELLS else {}


def _tables_of(folder: Path) -> dict[str, Any]:
    """The tables of grid.toml in a folder."""
    return {key: value for key, value in _read_grid(folder).items() if isinstance(value, dict)}


def _read_grid(folder: Path) -> dict[str, Any]:
    """The keys of grid.toml in a folder, without loading a method; empty if it cannot be read."""
    try:
        return bounded.read_toml(folder / "grid.toml")
    except (OSError, ValueError):
        return {}


def _group(run: Result) -> tuple[Any, ...]:
    """What runs of one group have in common: all binding settings."""
    return tuple(sorted((name, str(value)) for name, value in _binding(run).items()))


def _binding(run: Result) -> dict[str, Any]:
    """The settings that decide the outcome of a run, the code of a user's own, and versions of
    contents.

    The seed, settings that follow from others, and unused ones are left out.
    """
    follows = {"seed"}
    if run.settings.get("epsilon") is not None:
        follows.add("noise_multiplier")
    if run.settings.get("local_steps", 1) == 1:
        follows.add("local_learning_rate")
    unused = HARMLESS | follows
    code = {CODE: run.code} if run.code else {}
    return {**code, **run.versions} | {
        name: value for name, value in run.settings.items() if name not in unused
    }


def _hidden(run: Result) -> dict[str, Any]:
    """The binding settings that have no column, in the order of their names."""
    shown = COLUMN_SETTINGS | {name for name, _ in run.varied}
    return {name: value for name, value in sorted(_binding(run).items()) if name not in shown}
