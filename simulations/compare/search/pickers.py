"""Pickers choose what each method tries next: ask for settings, tell what they reached.

Ranges have one Optuna study for each method, in one journal file. Each trial has a sampler of its
own, seeded by the name of the method and the number of the trial. So an interrupted search
continues as one without an interruption. A grid of lists needs no Optuna. Only this file imports
Optuna.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedlsg.owner_only import open_file
from fedlsg.simulations.compare.search.space import Choices, Dimension
from fedlsg.simulations.storage.atomic_files import write_atomically

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage

SAMPLERS = ("tpe", "random", "grid")
STUDIES = "studies.log"
"""The journal of all studies of a folder; Optuna's own tools read it."""
SPACE = "space"
"""Attribute of a study: its ranges in words, so that a call with other ranges is refused."""

Outcome = Literal["done", "diverged", "failed"]
STATES: Mapping[str, Outcome] = {"COMPLETE": "done", "PRUNED": "diverged", "FAIL": "failed"}
"""States of Optuna in words. A run that diverged is reported as pruned: the sampler then avoids
settings like it.
"""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A trial: its number in its study, its settings, and its outcome, which is None at first."""

    number: int
    params: Mapping[str, Any]
    outcome: Outcome | None


def check_installed() -> None:
    """Raise ValueError, with the command that installs it and what works without, if Optuna is
    missing.
    """
    try:
        import_module("optuna")
    except ImportError as error:
        raise ValueError(
            f"--search needs Optuna: pip install 'fedlsg[study]' ({error}); without it, --sampler "
            "grid tries all combinations of lists such as learning_rate=0.1,0.4,1.6"
        ) from None


def open_storage(folder: Path) -> "BaseStorage":
    """The journal of a folder; it is made if there is none.

    A last line that a crash left incomplete is cut. Call it under the folder's lock.
    Raises ValueError for a journal that is damaged otherwise.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = folder / STUDIES
    if file.exists():
        content = file.read_bytes()
        complete_lines = content[: content.rfind(b"\n") + 1]
        if complete_lines != content:
            write_atomically(file, complete_lines)
    else:
        os.close(open_file(file, os.O_WRONLY | os.O_CREAT))  # Optuna would make it for everybody
    try:
        return optuna.storages.JournalStorage(JournalFileBackend(str(file)))
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"{file} is damaged ({error}): restore it from a copy, or choose another --out"
        ) from None


class GridPicker:
    """Tries all ``points`` of one method, in order; ``outcomes``: of the trials that have begun."""

    def __init__(
        self, points: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome | None] = ()
    ) -> None:
        self.points, self._outcomes = points, list(outcomes)

    def asked(self) -> list[Asked]:
        """All trials so far, in order."""
        return [
            Asked(number=number, params=self.points[number], outcome=outcome)
            for number, outcome in enumerate(self._outcomes)
        ]

    def ask(self) -> Asked:
        """The next combination. Raises IndexError after the last one."""
        self._outcomes.append(None)
        return self.asked()[-1]

    def tell(self, number: int, outcome: Outcome, score: float = 0.0) -> None:
        """Note the outcome of a trial that was asked for."""
        self._outcomes[number] = outcome


def grid_points(space: Sequence[Dimension], start: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the listed values.

    start: settings without a search. If they set every searched setting to a combination that is
        not listed, that combination is the first point.
    Raises ValueError, naming the setting, for a range.
    """
    lists = []
    for setting in space:
        if not isinstance(setting, Choices):
            raise ValueError(
                f"--sampler grid tries lists, got the range {setting.name}={setting.words}: give "
                f"{setting.name}=A,B,C, or take --sampler tpe or random"
            )
        lists.append(setting.values)
    names = [setting.name for setting in space]
    points = [dict(zip(names, values, strict=True)) for values in product(*lists)]
    untouched = {name: start[name] for name in names if start.get(name) is not None}
    if len(untouched) == len(names) and untouched not in points:
        return [untouched, *points]
    return points


class MethodStudy:
    """The study of one method: a sampler chooses its next settings.

    name: the label of the method.
    space: what is varied.
    start: settings of the first trial, as far as they are in the ranges.
    sampler: "tpe" or "random".
    Raises ValueError if the folder has a study of the same method with other ranges.
    """

    def __init__(
        self,
        storage: "BaseStorage",
        name: str,
        space: Sequence[Dimension],
        start: Mapping[str, Any],
        sampler: str = "tpe",
    ) -> None:
        import optuna

        self.name, self.kind = name, sampler
        self._distributions = {dimension.name: distribution(dimension) for dimension in space}
        self._study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize",
            load_if_exists=True,
            sampler=self._sampler(0),
        )
        now = {
            dimension.name: f"{type(dimension).__name__} {dimension.words}" for dimension in space
        }
        before = self._study.user_attrs.get(SPACE)
        if before is None:
            first = {
                one.name: start[one.name]
                for one in space
                if one.name in start and one.holds(start[one.name])
            }
            if first and not self._study.trials:
                self._study.enqueue_trial(first)
            self._study.set_user_attr(SPACE, now)
        elif before != now:
            names = sorted(
                key for key in before.keys() | now.keys() if before.get(key) != now.get(key)
            )
            raise ValueError(
                f"the folder holds a search of {name} with other ranges of {', '.join(names)}: "
                "give the same ranges, or another --out"
            )

    def asked(self) -> list[Asked]:
        """All trials so far, in order, without those whose settings a crash cut off."""
        return [
            Asked(
                number=trial.number, params=dict(trial.params), outcome=STATES.get(trial.state.name)
            )
            for trial in self._study.get_trials(deepcopy=False)
            if trial.params.keys() == self._distributions.keys()
        ]

    def ask(self) -> Asked:
        """A new trial, with settings that the sampler chose from the reported outcomes."""
        self._study.sampler = self._sampler(len(self._study.get_trials(deepcopy=False)))
        trial = self._study.ask(self._distributions)
        return Asked(number=trial.number, params=dict(trial.params), outcome=None)

    def tell(self, number: int, outcome: Outcome, score: float = 0.0) -> None:
        """Tell the study how a trial ended; ``score``: of a finished one, higher is better."""
        from optuna.trial import TrialState

        if outcome == "done":
            self._study.tell(number, score)
        else:
            self._study.tell(
                number, state=TrialState.PRUNED if outcome == "diverged" else TrialState.FAIL
            )

    def _sampler(self, number: int) -> Any:
        """The sampler of trial ``number``: its seed is a hash of the method's name and it."""
        from optuna.samplers import RandomSampler, TPESampler

        digest = hashlib.sha256(f"{self.name} {number}".encode()).digest()
        kind = RandomSampler if self.kind == "random" else TPESampler
        return kind(seed=int.from_bytes(digest[:4]))


Picker = MethodStudy | GridPicker


def distribution(dimension: Dimension) -> "BaseDistribution":
    """The distribution that Optuna draws a setting from."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, Choices):
        return CategoricalDistribution(dimension.values)
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)
