"""``fedlsg compare --search``: trials choose the settings of each method, which are then compared.

space             ranges and lists of values
pickers           what is tried next: TPE, random, grid
trials            methods and their trials, in turn
cost_of_choosing  rows of the trials, and the epsilon of choosing by them
search_files      files, figures and page
"""

import math
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import tomli_w
from rich.console import Console

from fedlsg import user_code
from fedlsg.config.choices import choose
from fedlsg.owner_only import make_parents
from fedlsg.simulations.compare.compare_command import accepted, compare_command, published
from fedlsg.simulations.compare.grid.cells import UNTOUCHED, Cell, Entry, Grid, dropped_lines
from fedlsg.simulations.compare.grid.choosing import Choosing
from fedlsg.simulations.compare.grid.grid_file import as_toml, check_cells
from fedlsg.simulations.compare.grid.grid_progress import GridDisplay
from fedlsg.simulations.compare.grid.runner import Folder, Limits, Ray, one_ray
from fedlsg.simulations.compare.results.bytes_axis import View
from fedlsg.simulations.compare.results.comparison_table import unfinished
from fedlsg.simulations.compare.results.lines import added_labels, check_labels
from fedlsg.simulations.compare.search import search_files
from fedlsg.simulations.compare.search.cost_of_choosing import (
    Rows,
    as_many_rows,
    epsilon_of,
    keep_charges,
    read_trials,
    rows_of,
    statement,
)
from fedlsg.simulations.compare.search.pickers import (
    SAMPLERS,
    STUDIES,
    GridPicker,
    MethodStudy,
    Picker,
    check_installed,
    grid_points,
    open_storage,
)
from fedlsg.simulations.compare.search.space import (
    Choices,
    Dimension,
    in_numbers,
    kept_of_rule,
    make_spaces,
    read_spec,
)
from fedlsg.simulations.compare.search.trials import Arm, Job, Runner, bases
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.report.terminals.terminal import (
    print_line,
    print_note,
    print_table,
    print_whole,
)
from fedlsg.simulations.report.words import epsilon_words
from fedlsg.simulations.settings.rule_checker import left_out, refuse_other_units
from fedlsg.simulations.settings.settings import from_mapping, values_of
from fedlsg.simulations.storage.atomic_files import write_atomically, writing_to
from fedlsg.simulations.storage.lock import exclusive
from fedlsg.simulations.storage.run_directory import RunDir

TRIALS = 20
"""Trials of a method, unless ``--trials`` or a grid says otherwise."""
BEST, FINAL = "best.toml", "final"
"""The grid of the runs with the best settings, and their folder in that of the search."""


def make_job(
    grid: Grid,
    search: Sequence[str],
    *,
    sampler: str | None = None,
    trials: int | None = None,
    on: str | None,
    out: str | None,
) -> Job:
    """The search that the options describe; reads the data, and writes nothing.

    Raises ValueError, naming the option and the fix, for what no trial accepts.
    """
    rows = rows_of(on)
    if sampler is not None:
        sampler = choose("sampler", sampler, dict(zip(SAMPLERS, SAMPLERS, strict=True)))
    _check_options(grid, sampler, trials)
    grid, refused = accepted(grid)
    shared = {label: {**rows.settings, **settings} for label, settings in bases(grid).items()}
    owns = {label: _with_rows(given, rows) for label, given in shared.items()}
    starts = {label: prepare(from_mapping(own)).settings for label, own in owns.items()}
    values = {label: values_of(start) for label, start in starts.items()}
    spaces, dropped = make_spaces(in_numbers(read_spec(search), values), grid.entries, shared)
    path = Path(out or f"runs/search-{user_code.short(grid.workload)}").expanduser().resolve()
    if sampler is None:
        tries_all = trials is None and not (path / STUDIES).exists() and are_few(spaces.values())
        sampler = "grid" if tries_all else "tpe"
    if sampler != "grid":
        check_installed()
    arms: list[Arm] = []
    cells: list[Cell] = []
    for label, space in spaces.items():
        settings, start = starts[label], values[label]
        points = grid_points(space, start) if sampler == "grid" else []
        if sampler != "grid":
            space = tuple(dimension.including(start.get(dimension.name)) for dimension in space)
        arm = Arm(
            label=label,
            given=owns[label],
            kept=kept_of_rule(settings, space),
            epsilon=settings.epsilon,
            space=space,
            start=start,
            trials=(len(points) or trials or TRIALS) if space else 0,
        )
        arms.append(arm)
        cells += arm.checked(points)
    check_cells(cells)
    return Job(
        grid=grid,
        arms=tuple(arms),
        rows=rows,
        sampler=sampler,
        delta=min(start.delta for start in starts.values()),
        folder=Folder(path),
        notices=(*left_out(refused), *dropped_lines(dropped)),
    )


def _check_options(grid: Grid, sampler: str | None, trials: int | None) -> None:
    """Raise ValueError, naming the option and the fix, for options that exclude each other."""
    if trials is not None and trials < 1:
        raise ValueError(f"expected --trials {trials} >= 1")
    if sampler == "grid" and trials is not None:
        raise ValueError("--sampler grid tries every combination: leave --trials out")
    if any("public_rows" in own for own in (grid.settings, *(e.settings for e in grid.entries))):
        raise ValueError("public_rows is given to the trials by the search: say it as --on")


def _with_rows(given: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """The settings of a method's trials, on as many public rows as the private split has.

    Raises ValueError for units whose choosing costs are not stated.
    """
    settings = from_mapping(given)
    refuse_other_units(settings, "a search, which states what choosing costs,")
    return {**({} if rows.private else as_many_rows(settings)), **given}


def are_few(spaces: Iterable[Sequence[Dimension]]) -> bool:
    """Whether each method has only lists, with at most TRIALS combinations.

    Then each combination is tried once. A sampler would try some again, and the best of equals is
    the luckiest; on private rows each trial costs epsilon.
    """
    return all(
        all(isinstance(dimension, Choices) for dimension in space)
        and math.prod(len(dimension.ends) for dimension in space) <= TRIALS
        for space in spaces
    )


def search_and_runs(
    job: Job,
    console: Console,
    limits: Limits,
    *,
    runs: bool,
    view: View,
) -> int:
    """Run the search, and then the comparison with the best settings, in the folder FINAL.

    The comparison runs if the search is finished and ``runs`` is True. The budget of ``limits`` is
    for both. Returns the exit status.
    """
    began = time.monotonic()
    check_labels(view.labels, (entry.label for entry in job.grid.entries))
    labels = added_labels(job.grid.labels, view.labels)
    seeds = len(job.grid.seeds) if runs else job.seeds
    job = replace(job, grid=replace(job.grid, labels=labels), seeds=seeds)
    status, best = search_command(job, console, limits)
    if best is None or not runs:
        return status
    print_line("these runs follow now", console)
    if limits.budget_minutes is not None:
        left = limits.budget_minutes - (time.monotonic() - began) / 60
        # a budget is above 0: with this one the tables are written and no run is started
        limits = replace(limits, budget_minutes=max(left, 1e-6))
    return status or compare_command(best, str(job.folder.path / FINAL), limits, console, view)


def search_command(job: Job, console: Console, limits: Limits) -> tuple[int, Grid | None]:
    """Run or continue a search: (exit status, the grid with the best settings).

    The status is 1 if a method has no finished trial. The grid is None before the search is
    finished. Raises ValueError before anything runs if the folder holds a search of other ranges or
    trials with other settings.
    """
    kept: list[Any] = []
    with one_ray([arm.cell(0, {}) for arm in job.arms]) as ray:
        with writing_to(job.folder.path):  # no epsilon covers accuracies of held-out rows
            make_parents(job.folder.path, private=job.rows.private)
        with exclusive(RunDir(job.folder.path)):
            try:
                return _run(job, console, limits, ray, kept)
            finally:
                for worker in kept:
                    worker.close()


def _run(
    job: Job,
    console: Console,
    limits: Limits,
    ray: Ray,
    kept: list[Any],
) -> tuple[int, Grid | None]:
    """Announce and run the trials, and write the files of the search however they end."""
    announce(job, console)
    if job.rows.private:
        keep_charges(job.folder.path)  # also of trials whose process was killed
    varied = [arm for arm in job.arms if arm.space]
    pickers = pickers_of(job, varied)
    asked = chain.from_iterable(picker.asked() for picker in pickers.values())
    done = sum(trial.outcome is not None for trial in asked)
    display = GridDisplay(
        console,
        job.folder,
        job.planned,
        done,
        what="all trials",
        limits=limits,
    )
    runner = Runner(
        folder=job.folder,
        arms=varied,
        pickers=pickers,
        limits=limits,
        ray=ray,
        kept=kept if ray is None else None,
        display=display,
        after=lambda: _after(job, runner, console),
    )
    finished = False
    try:
        with display.progress:
            finished = runner.run()
        if not finished:
            console.print(
                "the search is not finished; the same command continues it", style="yellow"
            )
    except (KeyboardInterrupt, SystemExit):
        console.print("the same command continues this search", markup=False)
        raise
    finally:
        state = describe(job, runner, finished=finished, ended=True)
        if state.trials:
            search_files.write(job.folder.path, state)
            conclude(state, job.folder.path, console)
    best = best_grid(job, state) if finished else None
    if best is not None:
        text = tomli_w.dumps(as_toml(published(best)))
        write_atomically(job.folder.path / BEST, text.encode())
    failed = any(outcome.best is None for outcome in state.outcomes if outcome.arm.space)
    return int(failed), best


def pickers_of(job: Job, varied: Sequence[Arm]) -> dict[str, Picker]:
    """What chooses the next settings of each method, by label, with the trials that the folder has.

    Trials of a grid that are not done are tried again.
    """
    if job.sampler != "grid":
        storage = open_storage(job.folder.path)
        return {
            arm.label: MethodStudy(storage, arm.label, arm.space, arm.start, job.sampler)
            for arm in varied
        }
    record = job.folder.record()
    pickers: dict[str, Picker] = {}
    for arm in varied:
        # the name of a cell does not depend on its settings
        cells = [arm.cell(number, {}) for number in range(arm.trials)]
        begun = [cell for cell in cells if cell.name in record]
        outcomes: list[Literal["done"] | None] = [
            "done" if job.folder.status(cell, record).status == "done" else None for cell in begun
        ]
        pickers[arm.label] = GridPicker(grid_points(arm.space, arm.start), outcomes)
    return pickers


def announce(job: Job, console: Console) -> None:
    """What is about to be tried, on which rows, and whether that costs privacy."""
    print_whole(f"{job.title}, folder {job.folder.path}", console)
    for arm in job.arms:
        space = "; ".join(f"{dimension.name} {dimension.words}" for dimension in arm.space)
        print_line(f"  {arm.label}: {space or 'nothing to choose, no trials'}", console)
    for line in job.notices:
        print_line(line, console, "yellow")
    print_line(f"{job.planned} trials, compared on {job.rows.words}", console)
    if job.rows.private:
        print_line(job.rows.cost, console, "bold red")
    else:
        print_note(job.rows.cost, console)


def _after(job: Job, runner: Runner, console: Console) -> None:
    """Write the tables; after the first trial, say what choosing will cost in privacy."""
    state = describe(job, runner)
    if job.rows.private:
        keep_charges(job.folder.path)
    search_files.write_tables(job.folder.path, state)
    if job.rows.private and len(state.trials) == 1:
        first = read_trials(job.folder.path / "cells")[:1]
        expected = epsilon_of(first * job.planned, delta=job.delta)
        print_note(
            f"the epsilon of choosing by {job.planned} trials like this one: "
            f"{epsilon_words(expected)} at delta {job.delta:g}",
            console,
        )


def describe(
    job: Job, runner: Runner, *, finished: bool = False, ended: bool = False
) -> search_files.SearchState:
    """The search so far.

    finished: every method has its trials.
    ended: the search ends or stops here, so what choosing has cost is added.
    """
    follow = ["fedlsg", "compare", "--grid", str(job.folder.path / BEST), "--seeds", str(job.seeds)]
    state = search_files.SearchState(
        job=job,
        trials=runner.trials(),
        finished=finished,
        privacy=[job.rows.cost],
        given_up=runner.given_up,
        command=shlex.join([*follow, "--out", str(job.folder.path / FINAL)]) if finished else "",
        made_by=shlex.join(["fedlsg", *sys.argv[1:]]),
    )
    if not job.rows.private or not ended:
        return state
    charged = read_trials(keep_charges(job.folder.path))
    spent = epsilon_of(charged, delta=job.delta)
    runs = [arm.epsilon for arm, _ in final_entries(state) if arm.epsilon is not None] * job.seeds
    privacy = statement(len(charged), spent, delta=job.delta, runs=runs)
    return replace(state, epsilon=spent, privacy=privacy)


def conclude(state: search_files.SearchState, folder: Path, console: Console) -> None:
    """Print the table, notes, what did not finish, what choosing cost, and what to do next."""
    print_table(search_files.table(state), console)
    for note in state.notes:
        print_note(note, console, style="yellow" if "at the edge" in note else "dim")
    for name, text in unfinished(trial.result for trial in state.trials).items():
        print_whole(f"{name}: {text}", console, "red")
    for words in state.privacy:
        print_note(words, console, style="bold red" if state.job.rows.private else "dim")
    print_whole(f"report  {folder / 'report.html'}", console)
    if state.command:
        print_whole(f"runs with the best settings  {state.command}", console)


def final_entries(state: search_files.SearchState) -> list[tuple[Arm, Entry]]:
    """What runs after the search: each method with its best settings, and without a search.

    A method whose best settings are those without a search runs once. So does one without a setting
    to choose. A method without a finished trial does not run.
    """
    entries = []
    for outcome, entry in zip(state.outcomes, state.job.grid.entries, strict=True):
        arm, best = outcome.arm, outcome.best
        if not arm.space:
            entries.append((arm, entry))
        if best is None:
            continue
        chosen = {**arm.kept, **entry.settings, **best.params}
        entries.append((arm, replace(entry, settings=chosen)))
        if not outcome.is_untouched(best):
            entries.append((arm, replace(entry, label=f"{entry.label}{UNTOUCHED}")))
    return entries


def best_grid(job: Job, state: search_files.SearchState) -> Grid | None:
    """The comparison that follows the search, on all training rows; None if no method can run.

    Its ``choosing`` says how the settings were chosen, and what that cost.
    """
    entries = tuple(entry for _, entry in final_entries(state))
    if not entries:
        return None
    settings = {name: value for name, value in job.grid.settings.items() if name != "holdout"}
    labels = [entry.label for entry in entries]
    untouched, names = dict[str, str](), dict[str, str]()
    for outcome in state.outcomes:
        if outcome.best is None:
            continue
        label = outcome.arm.label
        twin = f"{label}{UNTOUCHED}"
        untouched[label] = twin if twin in labels else label
        if twin in labels and label in job.grid.labels:
            names[twin] = f"{job.grid.labels[label]}, untouched"
    choosing = Choosing(
        epsilon=state.epsilon,
        delta=job.delta if job.rows.private else 0.0,
        trials=len(state.trials),
        rows=job.rows.words,
        untouched=untouched,
    )
    return replace(
        job.grid,
        entries=entries,
        settings=settings,
        labels=names | dict(job.grid.labels),
        choosing=choosing,
    )
