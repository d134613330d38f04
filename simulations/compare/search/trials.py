"""Run the trials of a search: all methods in turn, so that all are equally far whenever it stops."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulations.compare.cells.places import Ray, share_out
from simulations.compare.cells.progress import GridDisplay
from simulations.compare.cells.runner import Folder, check_same_settings, run_cells
from simulations.compare.search.arm import Arm, Trial, read_trial, score_of
from simulations.compare.search.pickers import Asked, Picker
from simulations.engines.cluster import processors

PATIENCE = 3
"""So many trials of a method that fail, before one is done, end its trials: its settings cannot work."""
GOING = ("interrupted", "not run")
"""States of a trial that a later call continues."""


@dataclass(kw_only=True)
class Runner:
    """``after``: called when trials have ended.

    given_up: why a method got no more trials, by its label.
    """

    folder: Folder
    arms: Sequence[Arm]
    pickers: dict[str, Picker]
    jobs: int | None
    ray: Ray
    budget_seconds: float | None
    new_worker: Callable[[], Any]
    display: GridDisplay
    after: Callable[[], None]
    given_up: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def run(self) -> bool:
        """Whether every method has its trials. Raises ValueError if a trial was started with other settings."""
        check_same_settings(self.folder, [trial.arm.cell(trial.number, trial.params) for trial in self.trials()])
        while batch := self._next():
            self._run(batch)
            told = self._tell(batch)
            self.after()
            if not told:
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
        """The next trials, at most as many as run at a time: those that were interrupted first, then new ones."""
        room = self.jobs or (1 if self.ray is None else processors())
        asked = {arm.label: self.pickers[arm.label].asked() for arm in self._open()}
        waiting = [(arm, one) for arm in self._open() for one in asked[arm.label] if one.outcome is None]
        batch = waiting[:room]
        counts = {label: len(own) for label, own in asked.items()}
        while len(batch) < room:
            left = [arm for arm in self._open() if counts[arm.label] < arm.trials]
            if not left:
                break
            arm = min(left, key=lambda arm: counts[arm.label])
            counts[arm.label] += 1
            batch.append((arm, self.pickers[arm.label].ask()))
        return batch

    def _open(self) -> list[Arm]:
        return [arm for arm in self.arms if arm.space and arm.label not in self.given_up]

    def _run(self, batch: Sequence[tuple[Arm, Asked]]) -> None:
        cells = [arm.cell(asked.number, asked.params) for arm, asked in batch]
        left = self.folder.unfinished(cells)
        if not left:
            return
        spent = time.monotonic() - self.began
        with share_out(left, self.jobs, self.ray) as (shared, at_a_time):
            run_cells(
                shared, self.folder, jobs=at_a_time,
                budget_seconds=None if self.budget_seconds is None else max(self.budget_seconds - spent, 1e-9),
                started=self.display.started, running=self.display.running, ended=self.display.ended,
                new_worker=self.new_worker,
            )  # fmt: skip

    def _tell(self, batch: Sequence[tuple[Arm, Asked]]) -> bool:
        """Tell the outcomes; False if one has none yet, because the time is over or it was interrupted."""
        whole = True
        for arm, asked in batch:
            trial, picker = read_trial(self.folder, arm, asked.number, asked.params), self.pickers[arm.label]
            if trial.result.status in GOING:
                whole = False
            elif trial.result.done:
                picker.tell(asked.number, "done", score_of(trial))
            else:
                picker.tell(asked.number, "diverged" if trial.diverged else "failed")
                self._give_up(arm, trial)
        return whole

    def _give_up(self, arm: Arm, trial: Trial) -> None:
        """End the trials of a method whose first ones all failed with an error."""
        outcomes = [asked.outcome for asked in self.pickers[arm.label].asked()]
        if len(outcomes) >= PATIENCE and set(outcomes) == {"failed"}:
            log = self.folder.log(arm.cell(trial.number, trial.params))
            self.given_up[arm.label] = f"its first {len(outcomes)} trials failed: {trial.result.reason} (a log: {log})"
