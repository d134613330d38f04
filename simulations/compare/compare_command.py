"""``fedlsg compare`` and ``fedlsg report``; their options are parsed in ``cli``."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console

from fedlsg import strategies, user_code
from fedlsg.simulations import workloads
from fedlsg.simulations.compare.grid.cell_worker import Outcome, Worker
from fedlsg.simulations.compare.grid.cells import Cell, Grid, dropped_lines, grouped
from fedlsg.simulations.compare.grid.grid_file import (
    KINDS,
    as_toml,
    check_cells,
    from_toml,
    numbers,
    read_toml,
    read_varied,
    split_settings,
    words,
)
from fedlsg.simulations.compare.grid.grid_progress import GridDisplay
from fedlsg.simulations.compare.grid.runner import (
    Folder,
    Limits,
    Ray,
    check_same_code,
    check_same_settings,
    one_ray,
    run_cells,
    share_out,
)
from fedlsg.simulations.compare.results.bytes_axis import PLAIN, View
from fedlsg.simulations.compare.results.collect import (
    cell_result,
    code_notes,
    kept_choosing,
    kept_labels,
    read_runs,
    version_notes,
)
from fedlsg.simulations.compare.results.comparison_files import (
    Comparison,
    Output,
    write_page,
    write_tables,
)
from fedlsg.simulations.compare.results.comparison_table import unfinished
from fedlsg.simulations.compare.results.lines import added_labels, check_labels, full_labels, lines
from fedlsg.simulations.compare.results.search_paid import search_paid
from fedlsg.simulations.report.page_of_run.run_page import run_page
from fedlsg.simulations.report.page_of_run.tiles import check_against
from fedlsg.simulations.report.terminals.terminal import (
    print_line,
    print_note,
    print_parts,
    print_whole,
)
from fedlsg.simulations.settings.rule_checker import all_refused, left_out, refusal
from fedlsg.simulations.settings.settings import permit_code
from fedlsg.simulations.storage.atomic_files import write_atomically, writing_to
from fedlsg.simulations.storage.lock import exclusive
from fedlsg.simulations.storage.manifest import accept
from fedlsg.simulations.storage.run_directory import RunDir


def make_grid(
    workload: str | None, axes: Mapping[str, Any], pairs: Mapping[str, Any], file: str | None
) -> Grid:
    """The grid of a file, of options, or of both, where an option replaces what the file says.

    axes: ``methods``, ``epsilons``, ``ranks``, ``sparsities`` as texts, ``seeds`` as a number,
    ``vary`` as a list of texts; None where not said.
    pairs: ``-c`` settings, of one method where the name has a dot.
    Raises ValueError naming the option, or the key of the file.
    """
    base = {} if file is None else read_toml(file, "grid file")
    return grid_of(base, workload, axes, pairs, file or "")


def grid_of(
    base: Mapping[str, Any],
    workload: str | None,
    axes: Mapping[str, Any],
    pairs: Mapping[str, Any],
    file: str = "",
) -> Grid:
    """The grid of the keys of a grid file, with the options of ``make_grid`` in their place.

    base: the keys.
    workload, axes, pairs: see ``make_grid``.
    file: the path of the file, for messages; empty without one.
    """
    listed, settings = base.get("methods", {}), base.get("settings", {})
    tables = [settings, listed, *(listed.values() if isinstance(listed, dict) else ())]
    if not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{file}: expected [settings] and [methods.NAME] as tables")
    if axes.get("methods") == "all":
        names = tuple(strategies.names())
    else:
        names = tuple(words(axes.get("methods"))) or tuple(listed)
    for name in filter(user_code.is_reference, names):
        method = user_code.absolute(name)
        user_code.permit(method)
        strategies.check_name(method)
        listed = {user_code.short(name): {"method": method}} | listed
    names = tuple(map(user_code.short, names))
    common, own = split_settings(pairs, names)
    given: dict[str, Any] = {
        name: numbers(f"--{name}", axes[name], kind)
        for name, kind in KINDS.items()
        if axes.get(name) is not None
    }
    if axes.get("seeds") is not None:
        given["seeds"] = axes["seeds"]
    if workload is not None:
        given["workload"] = user_code.absolute(workload)
    if axes.get("vary"):
        given["vary"] = dict(base.get("vary", {})) | read_varied(axes["vary"])
    methods: dict[str, dict[str, Any]] = {}
    for name in names:
        # options for all methods replace settings of the file for one
        items = listed.get(name, {}).items()
        kept = {key: value for key, value in items if key.replace("-", "_") not in common}
        methods[name] = kept | own[name]
    settings = settings | common
    table = dict(base) | given | {"settings": settings, "methods": methods}
    for part in (table, settings, *methods.values(), *_each(table.get("vary"))):
        permit_code(part)  # the user named the file as well
    grid = from_toml(table)
    workloads.presets(grid.workload)  # refuses an unknown one
    return grid


def _each(varied: object) -> list[dict[str, Any]]:
    """Each value that is varied, as a setting; empty if it is not a table."""
    table = varied if isinstance(varied, Mapping) else {}
    lists = {name: values for name, values in table.items() if isinstance(values, list | tuple)}
    return [{name: value} for name, values in lists.items() for value in values]


def compare_command(
    grid: Grid,
    out: str | None,
    limits: Limits,
    console: Console,
    view: View = PLAIN,
) -> int:
    """Run or resume a grid. Returns the exit status: 1 if a cell failed.

    If it takes more than an hour, a terminal is asked whether to go on. Raises as ``run_grid``.
    """
    _, made = run_grid(grid, out, limits, console, view)
    return int(any(result.status == "failed" for result in made.results))


def folder_of(workload: str, out: str | None) -> Path:
    """The folder of a comparison: ``out``, or the usual one of the workload."""
    return Path(out or f"runs/compare-{user_code.short(workload)}").expanduser().resolve()


def run_grid(
    grid: Grid,
    out: str | None,
    limits: Limits,
    console: Console,
    view: View = PLAIN,
    *,
    new_worker: Callable[[], Any] = Worker,
) -> tuple[Path, Comparison]:
    """Run or resume a grid in the folder ``out``; returns the folder and what is in it now.

    ``new_worker``: as in ``run_cells``. Raises ValueError before anything runs if a cell cannot
    run, or was run in this folder with other settings, or by other code.
    """
    path = folder_of(grid.workload, out)
    given = {**grid.labels, **view.labels}
    check_labels(given, (entry.label for entry in grid.entries))
    grid = replace(grid, labels=added_labels(kept_labels([path]), given))
    grid, refused = accepted(grid)
    dropped = (*left_out(refused), *dropped_lines(grid.dropped()))
    view = replace(
        view, left_out=dropped, notes=grid.notes, labels=grid.labels, choosing=grid.choosing
    )
    for line in view.left_out:
        print_line(line, console, "yellow")
    cells, folder = grid.cells(), Folder(path)
    with console.status("checking the cells"):
        check_cells(folder.unfinished(cells))
    text = tomli_w.dumps(as_toml(published(grid)))
    with one_ray(folder.unfinished(cells)) as ray:
        with writing_to(path):
            path.mkdir(parents=True, exist_ok=True)
            check_same_settings(folder, cells)
            check_same_code(folder, cells)
            write_atomically(path / "grid.toml", text.encode())
        with exclusive(RunDir(path)):
            made = _run(cells, folder, text, limits, ray, console, view, new_worker)
    return path, made


def accepted(grid: Grid) -> tuple[Grid, dict[str, str]]:
    """The grid without methods that are refused in every cell, and the reasons by their labels.

    Raises ValueError, with the reasons, if no method is left.
    """
    cells = grouped(grid.cells(), lambda cell: cell.label)
    refused = {}
    for label, own in cells.items():
        reasons = [refusal(cell.given) for cell in own]
        if None not in reasons:
            refused[label] = str(reasons[-1])
    if len(refused) == len(grid.entries):
        raise all_refused(refused)
    kept = tuple(entry for entry in grid.entries if entry.label not in refused)
    return replace(grid, entries=kept), refused


def _run(
    cells: Sequence[Cell],
    folder: Folder,
    text: str,
    limits: Limits,
    ray: Ray,
    console: Console,
    view: View,
    new_worker: Callable[[], Any],
) -> Comparison:
    """Run the cells, write tables and page while results come in, and show them at the end."""
    workload = user_code.shown(str(cells[0].given["workload"]))
    labels = list(dict.fromkeys(view.labels.get(cell.label, cell.label) for cell in cells))
    what = labels[0] if len(labels) == 1 else f"{len(labels)} methods compared"
    title = f"{workload}: {what}"

    def compared() -> Comparison:
        record = folder.record()
        results = [cell_result(folder, cell, record, view.link) for cell in cells]
        return Comparison(title=title, results=results, command=_command(), grid=text, view=view)

    def ended(cell: Cell, outcome: Outcome) -> None:
        display.ended(cell, outcome)
        output.update()

    before = compared().results
    done = sum(result.done for result in before)
    summaries = [result.summary for result in before]
    print_whole(f"{len(cells)} cells, {done} done before, folder {folder.path}", console)
    output = Output(folder.path, compared)
    display = GridDisplay(
        console,
        folder,
        len(cells),
        done,
        known=[
            float(summary["wall_seconds"]) for summary in summaries if "wall_seconds" in summary
        ],
        limits=limits,
    )
    try:
        with (
            display.progress,
            share_out(folder.unfinished(cells), limits.jobs, ray) as (shared, at_a_time),
        ):
            run_cells(
                shared,
                folder,
                jobs=at_a_time,
                budget=limits.seconds,
                started=display.started,
                running=display.running,
                ended=ended,
                new_worker=new_worker,
            )
    except (KeyboardInterrupt, SystemExit):
        console.print("the same command continues this grid", markup=False)
        raise
    finally:
        finished = output.update(ended=True)
    show(finished, folder.path, console)
    return finished


CELLS_LEFT = "cells are left; the same command continues"
RUNS_LEFT = (
    "runs are not finished; continue with fedlsg resume RUN, or with the compare that started them"
)


def show(made: Comparison, folder: Path, console: Console, more: str = CELLS_LEFT) -> None:
    """The table on the terminal, what is not in it, how to continue (``more``), and the page."""
    results = made.results
    print_parts([*made.methods, *made.bytes], console)
    for sentence in search_paid(made.table):
        print_note(sentence, console, style="bold")
    costs = made.view.choosing is not None and not made.view.choosing.free
    for sentence in made.view.how_chosen:
        print_note(sentence, console, style="bold red" if costs else "dim")
    for note in made.view.notes:
        print_note(note, console, style="yellow")
    for name, text in unfinished(results).items():
        if text != "not run":  # counted below; a large grid has hundreds
            style = "red" if text.startswith("failed") else "yellow"
            print_whole(f"{name}: {text}", console, style)
    left = sum(result.status in ("not run", "interrupted") for result in results)
    if left:
        console.print(f"{left} of {len(results)} {more}", style="yellow")
    print_whole(f"report  {folder / 'report.html'}", console)


def report_command(
    runs: Sequence[str],
    out: str | None,
    console: Console,
    view: View = PLAIN,
    against: str | None = None,
) -> None:
    """Tables, plots and a page from existing runs; of a single run, its own page.

    ``against``: a run without privacy, for the page of a single run. Raises ValueError for a folder
    that is neither a run nor a comparison, for another kind of run in ``against``, and where
    nothing can be written.
    """

    def say(line: str) -> None:
        print_line(line, console, "yellow")

    results = read_runs(map(Path, runs), view.link, say)
    if len(results) > 1:
        if against is not None:
            raise ValueError(
                "--against belongs to the page of one run: several runs are compared with each "
                "other"
            )
        folder = Path(out or f"runs/{datetime.now():%Y%m%d-%H%M%S}-report").expanduser().resolve()
        plain = lines(results)
        view = replace(view, labels=full_labels(view.labels, plain.label))
        check_labels(view.labels, (*plain.label, *plain.name))
        labels = added_labels(kept_labels(map(Path, runs)), view.labels)
        chosen, notes = kept_choosing(map(Path, runs))
        notes = (*notes, *code_notes(results), *version_notes(results))
        view = replace(view, labels=labels, choosing=chosen, notes=notes)
        made = Comparison(
            title=f"{len(results)} runs compared", results=results, command=_command(), view=view
        )
        with writing_to(folder):
            write_tables(folder, made)
            write_page(folder, made)
        show(made, folder, console, RUNS_LEFT)
        return
    other = None
    if against is not None:
        (other,) = read_runs([Path(against)], view.link, say)
        check_against(results[0], other)
    folder = Path(out or runs[0]).expanduser().resolve()
    with writing_to(folder):
        write_atomically(folder / "report.html", run_page(results[0], against=other).encode())
        accept(RunDir(folder), ["report.html"])
    print_whole(f"report  {folder / 'report.html'}", console)


def _command() -> str:
    """This command, as it was typed."""
    return shlex.join(["fedlsg", *sys.argv[1:]])


def published(grid: Grid) -> Grid:
    """The grid without the folders of this machine."""
    folders = ("data_dir", "data_root")
    settings = {name: value for name, value in grid.settings.items() if name not in folders}
    return replace(grid, settings=settings)
