"""``fedlsg tune``; its options are parsed in ``cli``."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console

from fedlsg import user_code
from simulations import workloads
from simulations.compare.cells.runner import Folder
from simulations.compare.table import unfinished
from simulations.plan.prepare import prepare
from simulations.plan.unit import refuse_client_level
from simulations.report.terminal import print_line, print_note, print_table
from simulations.settings.published import resolve
from simulations.settings.settings import RUN, Settings, from_mapping, values_of
from simulations.tune import output
from simulations.tune.axes import Axis, make_axes
from simulations.tune.notes import command_of_run, difference, edge_notes, shown
from simulations.tune.place import Place, searching
from simulations.tune.privacy import read_trials, statement
from simulations.tune.rows import Rows, rows_of
from simulations.tune.search import edges, search
from simulations.tune.trials import Trials, score
from simulations.tune.tuner import Tuner, UnfinishedError
from simulations.workloads import Options, public_rows
from simulations.workloads.public_data import public_data

FREE = "Choosing costs no privacy: the trials use {rows} alone. They train on one part, and are compared on the rest."
COSTLY = (
    "CHOOSING COSTS PRIVACY: each trial is a release about the same private rows, and accuracies of held-out rows have "
    "no noise. The cost is printed at the end."
)
OWN = {"seed": "--seeds", "run_dir": "--out", "public_rows": "--on"}
"""Settings that the search gives to its trials, and the options that say them."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A search to run. given: the user's settings. delta, epsilon: those of a trial; epsilon None without a target."""

    trials: Trials
    rows: Rows
    given: Mapping[str, Any]
    delta: float
    epsilon: float | None

    @property
    def title(self) -> str:
        names = ", ".join(axis.name for axis in self.trials.axes)
        workload, method = (user_code.shown(str(self.given[name])) for name in ("workload", "method"))
        return f"{workload}, {method}: {names} tuned on {self.rows.name}"


def make_job(
    given: Mapping[str, Any],
    *,
    on: str | None,
    vary: Sequence[str],
    seeds: int,
    trial_rounds: int | None,
    out: str | None,
) -> Job:
    """The search that the options describe; reads the data, and writes nothing.

    Raises ValueError, naming the option and the fix, for what no trial accepts.
    """
    rows = rows_of(on)
    for name, option in OWN.items():
        if name in given:
            raise ValueError(f"{name} is given to the trials by the search: say it as {option}")
    if seeds < 1:
        raise ValueError(f"expected --seeds {seeds} >= 1")
    given = {"workload": RUN["workload"].default, **given}
    shared: dict[str, Any] = {"engine": "local", **rows.settings, **resolve(given)}
    if not rows.private:
        shared = {**as_many_rows(from_mapping(shared)), **shared}
    shared |= {} if trial_rounds is None else {"rounds": RUN["rounds"].parse(trial_rounds)}
    refuse_client_level(from_mapping(shared), "a search, which states what choosing costs,")
    base = prepare(from_mapping(shared))
    shared["method"] = base.settings.method
    axes = make_axes(vary, str(shared["method"]), values_of(base.settings))
    if not axes:
        raise ValueError(f"method {shared['method']} has no setting that is tuned by default: name one with --vary")
    names = "-".join(user_code.short(str(shared[name])) for name in ("workload", "method"))
    folder = Folder(Path(out or f"runs/tune-{names}").expanduser().resolve())
    trials = Trials(folder=folder, axes=axes, given=shared, seeds=seeds)
    return Job(trials=trials, rows=rows, given=given, delta=base.settings.delta, epsilon=base.settings.epsilon)


def as_many_rows(settings: Settings) -> dict[str, int]:
    """The setting that makes public rows stand for as many as the private training split has, a public number.

    Nothing where that split is not at hand. Where it is, its rows are read to refuse public rows that are among them.
    Raises ValueError for those.
    """
    data_dir = None if settings.data_dir is None else Path(settings.data_dir).expanduser().resolve()
    names = {f.name: getattr(settings, f.name) for f in fields(Options) if f.name not in ("train_rows", "holdout")}
    options, name = Options(**names), public_rows.locate(settings.public_rows)
    try:
        private = workloads.load(settings.workload, data_dir=data_dir, options=options)
    except OSError:
        return {}
    if name is not None and name != public_rows.SYNTHETIC:
        public_data(
            name.removeprefix(user_code.DATA), private, data_dir=data_dir, cache_dir=None, options=options,
            setting="public_rows",
        )  # fmt: skip
    return {"train_rows": len(private.train)}


def tune_command(job: Job, console: Console, *, jobs: int | None = None, budget_minutes: float | None = None) -> int:
    """Run or continue a search; returns the exit status: 1 where no point could be measured.

    Raises ValueError before anything runs if a trial in the folder was run with other settings.
    """
    start = job.trials.cells([tuple(axis.start for axis in job.trials.axes)])
    with searching(job.trials.folder.path, start, jobs=jobs, budget_minutes=budget_minutes) as place:
        return _search(job, console, jobs, place)


def _search(job: Job, console: Console, jobs: int | None, place: Place) -> int:
    announce(job, console)
    tuner = Tuner(
        trials=job.trials, console=console, state=lambda: describe(job, tuner), jobs=jobs, ray=place.ray,
        budget_seconds=inf if place.budget_seconds is None else place.budget_seconds,
        delta=job.delta if job.rows.private else None, new_worker=place.new_worker,
    )  # fmt: skip
    finished = False
    try:
        search(job.trials.axes, tuner.measure)
        finished = True
    except UnfinishedError:
        console.print("the search is not finished; the same command continues it", style="yellow")
    except (KeyboardInterrupt, SystemExit):
        console.print("the same command continues this search", markup=False)
        raise
    finally:
        found = describe(job, tuner, finished=finished, ended=True)
        if tuner.points:
            output.write(job.trials.folder.path, found)
            conclude(found, job.trials.folder.path, console)
    return int(found.best is None)


def announce(job: Job, console: Console) -> None:
    """What is about to be tried, on which rows, and whether that costs privacy."""
    console.print(f"{job.title}, folder {job.trials.folder.path}", markup=False, highlight=False, soft_wrap=True)
    for axis in job.trials.axes:
        print_line(f"  {axis.name}: {_values(axis)}", console)
    if job.rows.private:
        print_line(COSTLY, console, "bold red")
    else:
        print_note(FREE.format(rows=job.rows.words), console)


def _values(axis: Axis) -> str:
    if axis.listed:
        return ", ".join(map(shown, axis.values))
    low, start, high = (shown(axis.values[at]) for at in (0, axis.start, -1))
    return f"from {start}, doubled and halved until the best is bracketed, {low} to {high} at most"


def describe(job: Job, tuner: Tuner, *, finished: bool = False, ended: bool = False) -> output.Search:
    """The search so far. ``ended``: it ends or stops here, so say what choosing has cost."""
    trials, points = job.trials, tuner.points
    lines = trials.lines(points)
    scored = {point: score(line) for point, line in lines.items()}
    best = max(scored, key=lambda point: scored[point], default=None)
    if best is not None and scored[best] == -inf:
        best = None
    sides = edges(trials.axes, best) if finished and best is not None else {}
    notes = [] if best is None else [*edge_notes(trials.axes, best, sides), difference(lines, best, trials.axes)]
    privacy = [COSTLY if job.rows.private else FREE.format(rows=job.rows.words)]
    if job.rows.private and ended:
        charged = read_trials(trials.folder.path / "cells")
        privacy = statement(charged, delta=job.delta, final_epsilon=job.epsilon)
    return output.Search(
        title=job.title,
        rows=job.rows.words,
        axes=trials.axes,
        lines=lines,
        best=best,
        edges=sides,
        finished=finished,
        privacy=privacy,
        costs=job.rows.private,
        notes=[note for note in notes if note],
        command="" if best is None else command_of_run(job.given, trials.settings(best)),
        made_by=shlex.join(["fedlsg", *sys.argv[1:]]),
    )


def conclude(found: output.Search, folder: Path, console: Console) -> None:
    """The table, edges, what did not finish, what choosing cost, the page, and the command to run."""
    print_table(output.table(found), console)
    for note in found.notes:
        print_note(note, console, style="yellow" if "at the edge" in note else "dim")
    for name, text in unfinished(list(found.lines.values())).items():
        if text != "not run":
            console.print(f"{name}: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
    for words in found.privacy:
        print_note(words, console, style="bold red" if found.costs else "dim")
    console.print(f"report  {folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    if found.command:
        words = "run it:" if found.finished else "best so far:"
        console.print(f"{words}  {found.command}", markup=False, highlight=False, soft_wrap=True)
