"""One method of a search: what its trials share, what it varies, and its trials as cells of a grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulations.compare.cells.grid import Cell, Grid, word
from simulations.compare.cells.runner import Folder
from simulations.compare.collect import cell_result
from simulations.compare.lines import Line
from simulations.compare.search.space import Dimension, Side
from simulations.rundir.results import Result

FIRST_SEED = 100
"""Trials have a seed of their own: those of a comparison, from 0, then see settings that were not chosen on them."""
ALONE = {
    "epsilons": ("--epsilons", "give one epsilon"),
    "ranks": ("--ranks", "search rank"),
    "sparsities": ("--sparsities", "search sparsity"),
    "vary": ("--vary", "give its values to --search"),
}
"""Axes of a grid that a search has no use for, apart from one epsilon, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A method under its label. given: settings of all its trials. epsilon: the target, None without one.

    trials: how many it gets.
    start: the values that its settings have if nobody says anything.
    """

    label: str
    given: Mapping[str, Any]
    epsilon: float | None
    space: tuple[Dimension, ...]
    start: Mapping[str, Any]
    trials: int

    def cell(self, number: int, params: Mapping[str, Any]) -> Cell:
        """Trial ``number`` as a run."""
        name = f"{self.label}-trial{number:03d}"
        given = {**self.given, **params, "seed": FIRST_SEED}
        return Cell(
            name=name, label=name, method=given["method"], seed=FIRST_SEED, epsilon=None, rank=None, sparsity=None,
            given=given,
        )  # fmt: skip

    def checked(self, points: Sequence[Mapping[str, Any]] = ()) -> list[Cell]:
        """What to check before the first trial: the start, and ``points``, or the ends of each setting's range."""
        tried = [{}, *(points or ({one.name: value} for one in self.space for value in one.ends))]
        return [
            replace(self.cell(0, own), name="-".join([self.label, *(word(*pair) for pair in own.items())]))
            for own in tried
        ]

    def edges(self, params: Mapping[str, Any]) -> dict[str, Side]:
        """The settings whose value is at an edge of its range."""
        sides = {one.name: one.side(params[one.name]) for one in self.space if one.name in params}
        return {name: side for name, side in sides.items() if side is not None}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial that was asked for, and its run so far."""

    arm: Arm
    number: int
    params: Mapping[str, Any]
    result: Result

    @property
    def line(self) -> Line:
        return Line(runs=(self.result,))

    @property
    def diverged(self) -> bool:
        """Whether it has a summary that says so."""
        return bool(self.result.summary.get("diverged"))


def read_trial(folder: Folder, arm: Arm, number: int, params: Mapping[str, Any]) -> Trial:
    """A trial as it is on disk."""
    result = cell_result(folder, arm.cell(number, params), folder.record())
    return Trial(arm=arm, number=number, params=params, result=result)


def bases(grid: Grid) -> dict[str, dict[str, Any]]:
    """The settings that each method of a grid has in all its trials, by label.

    Raises ValueError, naming the option, for axes that a search does not have.
    """
    for name, (option, fix) in ALONE.items():
        if len(getattr(grid, name)) > (name == "epsilons"):
            raise ValueError(f"{option} is an axis of a grid, and --search chooses by trials: {fix}")
    first = replace(grid, seeds=(0,)).cells()
    return {cell.label: {name: value for name, value in cell.given.items() if name != "seed"} for cell in first}


def best_of(trials: list[Trial]) -> Trial | None:
    """The finished trial with the highest accuracy, or the lowest loss; the earliest of equals; None without any."""
    done = [trial for trial in trials if trial.line.mean is not None]
    return max(done, key=lambda trial: (score_of(trial), -trial.number), default=None)


def score_of(trial: Trial) -> float:
    """Accuracy, or the loss with its sign changed: higher is better."""
    mean = trial.line.mean
    assert mean is not None, "of finished trials only"
    return -mean if trial.line.by_loss else mean
