"""The files of a search: trials.csv (a row for each trial), search.json, report.html and plots/."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from fedlsg.simulations.compare.grid.cells import is_number
from fedlsg.simulations.compare.results.comparison_files import write_report
from fedlsg.simulations.compare.results.comparison_table import unfinished
from fedlsg.simulations.compare.results.line_words import shown
from fedlsg.simulations.compare.results.plots import Charts, values_axis
from fedlsg.simulations.compare.search.space import Choices, Dimension, value_words
from fedlsg.simulations.compare.search.space import shown as value_shown
from fedlsg.simulations.compare.search.trials import Arm, Job, Trial, best_of
from fedlsg.simulations.report.drawing.chart import Axis, Chart, Series
from fedlsg.simulations.report.drawing.colours import looks
from fedlsg.simulations.report.pages.facts import made_section
from fedlsg.simulations.report.pages.figure import interactive
from fedlsg.simulations.report.pages.page import (
    Code,
    Page,
    Table,
    Text,
    data_section,
    download,
    facts_if_any,
    facts_of,
    json_text,
    sections,
)
from fedlsg.simulations.report.pages.table import Column, make_table
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.report.words import human_bytes
from fedlsg.simulations.storage.atomic_files import write_atomically
from fedlsg.simulations.storage.results import as_csv
from fedlsg.simulations.workloads.base.split import beats_chance, standard_error

CAPTIONS = {
    "history": "How the best accuracy (or loss) grows with the trials. A hollow mark is one trial; "
    "the line is the best one so far.",
    "settings": "How the accuracy (or loss) depends on each setting. A mark is one trial, in which "
    "the other settings differ, too. Filled: the best trial of a method.",
}
CHANCE = (
    "Each trial has one seed. The best of many trials is in part the luckiest one, so its accuracy "
    "here is too high on average. Compare methods by the runs that follow, with other seeds."
)


Shapes = Mapping[str, tuple[str, str]]
"""Colours and markers of methods."""


class Outcome(NamedTuple):
    """A method, its trials, those that are done, and the best of them."""

    arm: Arm
    trials: list[Trial]
    done: list[Trial]
    best: Trial | None

    @property
    def edges(self) -> dict[str, Any]:
        """The best values that are at an edge, and which one."""
        return {} if self.best is None else self.arm.edges(self.best.params)

    def is_untouched(self, trial: Trial) -> bool:
        """Whether its settings are the values without a search."""
        start = self.arm.start
        return all(name in start and start[name] == v for name, v in trial.params.items())

    @property
    def gain(self) -> str | None:
        """The best trial compared with the values without a search, or with guessing; None before
        a trial is done.
        """
        label, best, start = self.arm.label, self.best, self.arm.start
        if best is None or not start.keys() >= best.params.keys():
            return None
        untouched = list(filter(self.is_untouched, self.done))
        chance = best.result.chance
        if chance and not beats_chance([best.mean], chance):
            return f"{label}: no trial is better than guessing."
        if not untouched:
            usual = ", ".join(f"{name} {value_words(start[name])}" for name in best.params)
            return f"{label}: its values without a search ({usual}) are not among the trials."
        if best in untouched:
            return f"{label}: no trial is better than its values without a search."
        unit = "" if best.by_loss else " %"
        more = (
            f"{label}: the best trial has {shown(best, best.mean)}{unit}, without a search it is "
        )
        more += f"{shown(best, untouched[0].mean)}{unit}"
        if not chance:
            return f"{more}."
        error = math.hypot(*(standard_error([t.mean], chance) for t in (best, untouched[0])))
        return f"{more}; the difference has a standard error of {100 * error:.1f} points."

    @property
    def score(self) -> str | None:
        """Of the best trial, for people."""
        return None if self.best is None else shown(self.best, self.best.mean)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A search as far as it got.

    given_up: why a method got no more trials.
    epsilon: what choosing costs; privacy: the same in sentences.
    command: the runs to start.
    """

    job: Job
    trials: Sequence[Trial]
    finished: bool
    privacy: Sequence[str]
    given_up: Mapping[str, str] = field(default_factory=dict)
    epsilon: float = 0.0
    command: str = ""
    made_by: str = ""

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of each method, in the given order."""
        outcomes = []
        for arm in self.job.arms:
            own = [trial for trial in self.trials if trial.arm.label == arm.label]
            done = [trial for trial in own if trial.result.done]
            outcomes.append(Outcome(arm, own, done, best_of(done)))
        return outcomes

    @property
    def varied(self) -> list[str]:
        """The settings that at least one method varies."""
        return list(self.job.dimensions)

    @property
    def notes(self) -> list[str]:
        """What was gained, edges, methods without trials, and how much luck is in the best."""
        found = list[str]()
        for one in self.outcomes:
            if one.best:
                found += [one.gain or "", *one.arm.edge_notes(one.best.params)]
        untouched = [arm.label for arm in self.job.arms if not arm.space]
        if untouched:
            found.append(f"{', '.join(untouched)}: no setting to choose, so no trials.")
        return [*found, *(f"{label}: {why}" for label, why in self.given_up.items()), CHANCE]


def table(found: Found) -> Table:
    """The best trial of each method, in the given order."""

    def chosen(name: str) -> Column:
        return Column(name, lambda one: one.best and one.best.params.get(name), value_words)

    colours = _looks(found.job.arms)
    columns = [
        Column("method", lambda one: one.arm.label),
        *map(chosen, found.varied),
        Column(_measured(found.trials), lambda one: one.score),
        Column("trials", lambda one: f"{len(one.done)}/{one.arm.trials}"),
        Column("uplink", lambda one: one.best and one.best.uplink, human_bytes, optional=1),
        Column("at the edge", lambda one: one.best and _edge_words(one), left=True),
    ]
    return make_table(
        columns,
        found.outcomes,
        title="The best trial of each method",
        colour=lambda one: colours[one.arm.label][0],
    )


def _edge_words(one: Outcome) -> str:
    return ", ".join(map(" ".join, one.edges.items())) or "none"


def write_tables(folder: Path, found: Found) -> None:
    """trials.csv and search.json: milliseconds."""
    write_atomically(folder / "trials.csv", trials_csv(found).encode())
    whole = {
        "title": found.job.title,
        "rows": found.job.rows.words,
        "finished": found.finished,
        "sampler": found.job.sampler,
        "methods": {one.arm.label: _record(one) for one in found.outcomes},
        "dropped": list(found.job.notices),
        "notes": found.notes,
        "privacy": list(found.privacy),
        "epsilon_of_choosing": str(found.epsilon) if math.isinf(found.epsilon) else found.epsilon,
        "command": found.command,
    }
    write_atomically(folder / "search.json", json_text(whole))


def _record(one: Outcome) -> dict[str, Any]:
    """What search.json says of a method."""
    best = one.best
    return {
        "method": one.arm.given["method"],
        "varied": {dimension.name: dimension.words for dimension in one.arm.space},
        "planned": one.arm.trials,
        "trials": len(one.trials),
        "done": len(one.done),
        "best_trial": best and best.number,
        "best": best and dict(best.params),
        "edges": one.edges,
        "accuracy": best and best.result.accuracy,
        "loss": best and best.result.summary.get("loss"),
        "uplink_bytes_per_client_round": best and best.uplink,
    }


def trials_csv(found: Found) -> str:
    """A row for each trial: its settings, and its run."""
    best = [one.best for one in found.outcomes]
    rows = []
    for trial in found.trials:
        settings = {name: trial.params.get(name) for name in found.varied}
        first = {"trial": trial.number, "label": trial.arm.label, **settings}
        rows.append({**first, **trial.result.as_row(), **first, "best": trial in best})
    return as_csv(rows, otherwise="trial")


def write(folder: Path, found: Found) -> None:
    """All files; the figures take a second or two."""
    write_tables(folder, found)
    made = figures(found)
    write_report(folder, page(found, made), made)


def headline(found: Found) -> str:
    """What the search gained for each method; the best trials where that is not known."""
    gains = [one.gain for one in found.outcomes if one.gain]
    if found.finished and len(gains) == sum(bool(one.arm.space) for one in found.outcomes):
        return " ".join(gains)
    words = []
    for one in found.outcomes:
        if one.best is not None:
            values = _settings(one.best, value_words)
            score = f"loss {one.score}" if one.best.by_loss else f"{one.score} %"
            words.append(f"{one.arm.label} with {values} ({score})")
    if not words:
        return "No trial is finished."
    return f"Best trials{'' if found.finished else ' so far'}: {'; '.join(words)}."


def _settings(trial: Trial, words: Any) -> str:
    return ", ".join(f"{name} {words(value)}" for name, value in trial.params.items())


def page(found: Found, made: Mapping[str, Charts]) -> str:
    """The page of a search with its figures by name."""
    job = found.job
    done = [trial.result for trial in found.trials if trial.result.done]
    left = unfinished(trial.result for trial in found.trials)
    end = "Every method has its trials." if found.finished else "The search is not finished."
    follow = Code(text=found.command, note="The runs with the best settings:")
    varied = {
        arm.label: "; ".join(f"{one.name}: {one.words}" for one in arm.space) or "nothing"
        for arm in job.arms
    }
    lead = f"{len(done)} of {job.planned} trials finished, on {job.rows.words}. {end}"
    said = headline(found)
    notes = [note for note in (*found.notes, *job.notices) if note not in said]
    return render(
        Page(
            kind="fedlsg compare --search",
            title=job.title,
            headline=said,
            lead=lead,
            warnings=tuple(found.privacy[:2]) if job.rows.private else (),
            sections=sections(
                (
                    "The best trial of each method",
                    [replace(table(found), title=""), *(Text(words=note) for note in notes)],
                ),
                ("Figures", [interactive(made[name], CAPTIONS[name], columns=3) for name in made]),
                ("What is varied", [facts_of(varied)]),
                ("What choosing costs in privacy", [Text(words=words) for words in found.privacy]),
                ("Trials that are not finished", facts_if_any(left)),
                made_section(done, Code(text=found.made_by), *([follow] if found.command else [])),
                data_section(
                    download("trials.csv", trials_csv(found).encode(), "a row for each trial")
                ),
            ),
        )
    )


def figures(found: Found) -> dict[str, Charts]:
    """By file name; none before a trial is done."""
    outcomes = [one for one in found.outcomes if one.done]
    if not outcomes:
        return {}
    shapes, y = _looks(found.job.arms), Axis(label=_measured(found.trials))
    settings = (_over(one, outcomes, shapes, y) for one in _dimensions(outcomes))
    return {"history": (history(outcomes, shapes, y),), "settings": tuple(settings)}


def _dimensions(outcomes: Sequence[Outcome]) -> Iterator[Dimension]:
    """The settings that at least one method varies, each with the values of all methods."""
    every = [one for outcome in outcomes for one in outcome.arm.space]
    for name in dict.fromkeys(one.name for one in every):
        same = [one for one in every if one.name == name]
        lists = [one.values for one in same if isinstance(one, Choices)]
        if len(lists) < len(same):
            yield same[0]
            continue
        values = list(dict.fromkeys(value for own in lists for value in own))
        yield Choices(name=name, values=tuple(sorted(values) if _numbers(values) else values))


def _numbers(values: Sequence[Any]) -> bool:
    return all(map(is_number, values))


def history(outcomes: Sequence[Outcome], shapes: Shapes, y: Axis) -> Chart:
    """A mark for each trial, and a line through the best one so far."""
    series = []
    for one in outcomes:
        marks = _marks(one.done, lambda trial: trial.number + 1, shapes, filled=False)
        best = accumulate(one.done, lambda *pair: best_of(pair) or pair[0])
        heights = [trial.height for trial in best]
        series.append(replace(marks, y=heights, marker="", line=True, steps=True, words=()))
        series.append(marks)
    x = Axis(label="trial", whole=True)
    return Chart(title="The best trial so far", x=x, y=y, series=tuple(series), height=360)


def _over(dimension: Dimension, outcomes: Sequence[Outcome], shapes: Shapes, y: Axis) -> Chart:
    """The scores over one setting; filled: the best trial of a method."""
    name, series = dimension.name, []
    x, places = _scale(dimension)

    def place_of(trial: Trial) -> float:
        value = trial.params[name]
        return float(places.get(value, value))

    for one in outcomes:
        if name in one.done[0].params:
            for trials, filled in ((one.done, False), ([one.best or one.done[0]], True)):
                series.append(_marks(trials, place_of, shapes, filled=filled))
    return Chart(title=f"Scores over {name}", x=x, y=y, series=tuple(series), height=360)


def _marks(
    own: Sequence[Trial], place_of: Callable[[Trial], float], shapes: Shapes, *, filled: bool
) -> Series:
    """Trials of a method as marks; their words are their settings."""
    colour, marker = shapes[own[0].arm.label]
    return Series(
        name=own[0].arm.label,
        x=list(map(place_of, own)),
        y=[trial.height for trial in own],
        colour=colour,
        marker=marker,
        filled=filled,
        line=False,
        words=tuple(f"trial {t.number + 1}: {_settings(t, value_shown)}" for t in own),
    )


def _scale(dimension: Dimension) -> tuple[Axis, Mapping[Any, float]]:
    """The axis of a setting, and where the values of a list are."""
    name = dimension.name
    if isinstance(dimension, Choices):
        return values_axis(name, dimension.values, map(value_words, dimension.values))
    if not dimension.log:
        return Axis(label=name, whole=dimension.whole), {}
    return Axis(label=name, log=True, low=dimension.low / 1.1, high=dimension.high * 1.1), {}


def _looks(arms: Sequence[Arm]) -> Shapes:
    return looks([(str(arm.given["method"]), arm.label) for arm in arms])


def _measured(done: Sequence[Trial]) -> str:
    return "loss" if any(trial.by_loss for trial in done) else "accuracy, %"
