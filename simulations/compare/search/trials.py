"""Methods of a search and their trials, which run in turn.

All methods are equally far whenever a search stops.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedlsg import user_code
from fedlsg.simulations.compare.grid.cell_worker import Worker
from fedlsg.simulations.compare.grid.cells import Cell, Grid, word
from fedlsg.simulations.compare.grid.grid_progress import GridDisplay
from fedlsg.simulations.compare.grid.runner import (
    Folder,
    Limits,
    Ray,
    check_same_code,
    check_same_settings,
    run_cells,
    share_out,
)
from fedlsg.simulations.compare.results.collect import cell_result
from fedlsg.simulations.compare.results.lines import more_is_better
from fedlsg.simulations.compare.search.cost_of_choosing import Rows
from fedlsg.simulations.compare.search.pickers import Asked, Picker
from fedlsg.simulations.compare.search.space import Dimension, Side, tunable, value_words
from fedlsg.simulations.engines.cluster import processors
from fedlsg.simulations.storage.results import Result

FIRST_SEED = 100
"""The seed of all trials. Seeds of a comparison start at 0, so settings are not chosen on them."""
REFUSED_AXES = {
    "epsilons": ("--epsilons", "give one epsilon"),
    "ranks": ("--ranks", "search rank"),
    "sparsities": ("--sparsities", "search sparsity"),
    "vary": ("--vary", "give its values to --search"),
}
"""Axes of a grid that a search refuses, apart from a single epsilon: their option, and the fix."""
MAX_FAILED_TRIALS = 3
"""So many first trials of a method that fail end its trials: its settings cannot work."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A method of a search.

    label: of the method; names its trials.
    given: settings of all its trials.
    kept: settings that the rule for runs without tuning chose; a searched rate switches it off.
    epsilon: the target; None without one.
    space: the settings that are varied, with their ranges; empty for a method without trials.
    start: the values of its settings without a search.
    trials: how many it gets.
    """

    label: str
    given: Mapping[str, Any]
    kept: Mapping[str, Any]
    epsilon: float | None
    space: tuple[Dimension, ...]
    start: Mapping[str, Any]
    trials: int

    def cell(self, number: int, params: Mapping[str, Any]) -> Cell:
        """Trial ``number`` as a run."""
        name = f"{self.label}-trial{number:03d}"
        given = {**self.kept, **self.given, **params, "seed": FIRST_SEED}
        return Cell(name=name, label=name, given=given)

    def checked(self, points: Sequence[Mapping[str, Any]] = ()) -> list[Cell]:
        """Runs to check before the first trial: the start, and ``points``.

        Without points, it is the ends of each setting's range.
        """
        ends = [{setting.name: value} for setting in self.space for value in setting.ends]
        cells = []
        for params in [{}, *(points or ends)]:
            name = "-".join([self.label, *(word(*pair) for pair in params.items())])
            cells.append(replace(self.cell(0, params), name=name))
        return cells

    def edges(self, params: Mapping[str, Any]) -> dict[str, Side]:
        """The settings whose value is at an edge of its range, and which edge."""
        sides = {}
        for setting in self.space:
            side = setting.side(params[setting.name]) if setting.name in params else None
            if side is not None:
                sides[setting.name] = side
        return sides

    def edge_notes(self, params: Mapping[str, Any]) -> list[str]:
        """A sentence for each value at an edge, unless the setting takes no value beyond it."""
        declared = tunable(str(self.given["method"]))
        notes = []
        for name, side in self.edges(params).items():
            value, limits = params[name], declared[name].setting
            if side == "lowest":
                limit, end, beyond = limits.at_least, "lower", "lower"
            else:
                limit, end, beyond = limits.at_most, "upper", "higher"
            if value == limit:
                where = f"the {side} that the setting takes."
            else:
                where = (
                    f"at the {end} end of its range. A {beyond} one may be better: give a wider "
                    "range, and another --out."
                )
            best = f"The best {name} of {self.label}, {value_words(value)}"
            notes.append(f"{best}, is at the edge: it is {where}")
        return notes


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial that was asked for, and its run so far.

    arm: its method.
    number: among the trials of this method, from 0.
    params: the values of the varied settings.
    result: of its run, finished or not.
    """

    arm: Arm
    number: int
    params: Mapping[str, Any]
    result: Result

    @property
    def by_loss(self) -> bool:
        """Whether the trial is done, and its workload has no accuracy."""
        return self.result.done and self.result.accuracy is None

    @property
    def mean(self) -> float:
        """The accuracy of a finished trial, in 0..1, or its loss."""
        return float(self.result.summary["loss" if self.by_loss else "accuracy"])

    @property
    def score(self) -> float:
        """The accuracy of a finished trial, or minus its loss: higher is better."""
        return self.mean if more_is_better(self.by_loss) else -self.mean

    @property
    def height(self) -> float:
        """The accuracy of a finished trial in percent, or its loss."""
        return self.mean if self.by_loss else 100 * self.mean

    @property
    def uplink(self) -> float | None:
        """Payload bytes of a client in a round; None before one is sent."""
        sent, messages = self.result.summary.get("uplink_bytes", 0), self.result.messages
        return sent / messages if messages else None

    @property
    def diverged(self) -> bool:
        """Whether the trial has a summary, and it says that the run diverged."""
        return bool(self.result.summary.get("diverged"))


def read_trial(folder: Folder, arm: Arm, number: int, params: Mapping[str, Any]) -> Trial:
    """A trial as it is on disk."""
    result = cell_result(folder, arm.cell(number, params), folder.record())
    return Trial(arm=arm, number=number, params=params, result=result)


def bases(grid: Grid) -> dict[str, dict[str, Any]]:
    """The settings that each method of a grid has in all its trials, by label.

    Raises ValueError, naming the option, for axes that a search does not have.
    """
    for name, (option, fix) in REFUSED_AXES.items():
        allowed = 1 if name == "epsilons" else 0
        if len(getattr(grid, name)) > allowed:
            raise ValueError(
                f"{option} is an axis of a grid, and --search chooses by trials: {fix}"
            )
    first = replace(grid, seeds=(0,)).cells()
    return {
        cell.label: {name: value for name, value in cell.given.items() if name != "seed"}
        for cell in first
    }


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The finished trial with the best score, the earliest of equals; None without any."""
    done = [trial for trial in trials if trial.result.done]
    return max(done, key=lambda trial: (trial.score, -trial.number), default=None)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A search to run.

    grid: the comparison whose settings are chosen.
    arms: its methods.
    rows: what the trials train on.
    sampler: "tpe", "random" or "grid".
    delta: the smallest delta of a method's trials.
    folder: of the search.
    notices: lines about methods and settings that are left out.
    seeds: how many seeds the runs that follow have.
    """

    grid: Grid
    arms: tuple[Arm, ...]
    rows: Rows
    sampler: str
    delta: float
    folder: Folder
    notices: tuple[str, ...]
    seeds: int = 3

    @property
    def dimensions(self) -> dict[str, Dimension]:
        """The settings that at least one method varies, by name."""
        return {setting.name: setting for arm in self.arms for setting in arm.space}

    @property
    def planned(self) -> int:
        """The trials of all methods."""
        return sum(arm.trials for arm in self.arms)

    @property
    def title(self) -> str:
        """The search in one line, for people."""
        names = ", ".join(self.dimensions)
        workload = user_code.shown(self.grid.workload)
        labels = [arm.label for arm in self.arms]
        whose = labels[0] if len(labels) == 1 else f"{len(labels)} methods"
        return f"{workload}: {names} of {whose} chosen by trials"


@dataclass(kw_only=True)
class Runner:
    """Runs the trials of all methods, and tells the pickers what they reached.

    folder: of the search.
    arms: the methods that have trials.
    pickers: what chooses the next settings, by the label of a method.
    limits: of all trials together.
    ray: the Ray of all trials; None without one.
    kept: processes that stay for the next trials, see ``run_cells``. A start takes seconds, and
        noise that a process has calibrated is not calibrated again. On Ray it is None: an idle
        process would keep Ray workers that others wait for.
    display: what a user sees meanwhile.
    after: is called when trials have ended.
    given_up: why a method got no more trials, by its label.
    began: the monotonic clock at the start.
    """

    folder: Folder
    arms: Sequence[Arm]
    pickers: dict[str, Picker]
    limits: Limits
    ray: Ray
    kept: list[Any] | None
    display: GridDisplay
    after: Callable[[], None]
    given_up: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def run(self) -> bool:
        """Run the trials; True if every method has all of them at the end.

        Raises ValueError if a trial was started with other settings, or by other code.
        """
        cells = [trial.arm.cell(trial.number, trial.params) for trial in self.trials()]
        check_same_settings(self.folder, cells)
        check_same_code(self.folder, cells)
        while batch := self._next():
            self._run(batch)
            all_ended = self._tell(batch)
            self.after()
            if not all_ended:
                return False
        return True

    def trials(self) -> list[Trial]:
        """All trials that were asked for, method by method."""
        return [
            read_trial(self.folder, arm, asked.number, asked.params)
            for arm in self.arms
            for asked in self.pickers[arm.label].asked()
        ]

    def _next(self) -> list[tuple[Arm, Asked]]:
        """The next trials, at most as many as run at a time: interrupted ones, then new ones."""
        room = self.limits.jobs or (1 if self.ray is None else processors())
        arms = [arm for arm in self.arms if arm.label not in self.given_up]
        batch: list[tuple[Arm, Asked]] = []
        counts = {}
        for arm in arms:
            asked = self.pickers[arm.label].asked()
            counts[arm.label] = len(asked)
            batch += [(arm, trial) for trial in asked if trial.outcome is None]
        batch = batch[:room]
        while len(batch) < room:
            left = [arm for arm in arms if counts[arm.label] < arm.trials]
            if not left:
                break
            arm = min(left, key=lambda arm: counts[arm.label])
            batch.append((arm, self.pickers[arm.label].ask()))
            counts[arm.label] += 1
        return batch

    def _run(self, batch: Sequence[tuple[Arm, Asked]]) -> None:
        """Run the trials that are not done, within the time that is left."""
        cells = [arm.cell(asked.number, asked.params) for arm, asked in batch]
        left = self.folder.unfinished(cells)
        if not left:
            return
        spent = time.monotonic() - self.began
        with share_out(left, self.limits.jobs, self.ray) as (shared, at_a_time):
            run_cells(
                shared,
                self.folder,
                jobs=at_a_time,
                budget=max(self.limits.seconds - spent, 1e-9),
                started=self.display.started,
                running=self.display.running,
                ended=self.display.ended,
                new_worker=Worker,
                kept=self.kept,
            )

    def _tell(self, batch: Sequence[tuple[Arm, Asked]]) -> bool:
        """Tell the outcomes to the pickers; False if a trial has not ended.

        Then the time is over, or it was interrupted.
        """
        all_ended = True
        for arm, asked in batch:
            trial = read_trial(self.folder, arm, asked.number, asked.params)
            picker = self.pickers[arm.label]
            if trial.result.done:
                picker.tell(asked.number, "done", trial.score)
            elif trial.result.status == "failed":
                picker.tell(asked.number, "diverged" if trial.diverged else "failed")
                self._give_up(arm, trial)
            else:
                all_ended = False
        return all_ended

    def _give_up(self, arm: Arm, trial: Trial) -> None:
        """End the trials of a method if all of its first ones failed with an error."""
        outcomes = [asked.outcome for asked in self.pickers[arm.label].asked()]
        if len(outcomes) >= MAX_FAILED_TRIALS and set(outcomes) == {"failed"}:
            log = self.folder.log(arm.cell(trial.number, trial.params))
            self.given_up[arm.label] = (
                f"its first {len(outcomes)} trials failed: {trial.result.reason} (a log: {log})"
            )
