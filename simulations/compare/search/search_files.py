"""The files of a search: trials.csv (a row for each trial), search.json, report.html and plots/."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

from fedlsg.simulations.compare.results.comparison_files import write_report
from fedlsg.simulations.compare.results.comparison_table import unfinished
from fedlsg.simulations.compare.results.line_words import shown
from fedlsg.simulations.compare.results.plots import Charts, values_axis
from fedlsg.simulations.compare.search.space import Choices, Dimension, in_order, value_words
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
"""The colour and the marker of each method, by its label."""


class Outcome(NamedTuple):
    """What the trials of a method reached.

    arm: the method.
    trials: all of its trials so far.
    done: the finished ones.
    best: the best of these; None before one is finished.
    """

    arm: Arm
    trials: list[Trial]
    done: list[Trial]
    best: Trial | None

    @property
    def edges(self) -> dict[str, Any]:
        """The settings whose best value is at an edge of its range, and which edge."""
        return {} if self.best is None else self.arm.edges(self.best.params)

    def is_untouched(self, trial: Trial) -> bool:
        """Whether its settings are the values without a search."""
        start = self.arm.start
        return all(name in start and start[name] == v for name, v in trial.params.items())

    @property
    def gain(self) -> str | None:
        """The best trial compared with the values without a search, or with guessing, in words.

        None before a trial is done, and for a method without values of its own for all of them.
        """
        label, best, start = self.arm.label, self.best, self.arm.start
        if best is None or not start.keys() >= best.params.keys():
            return None
        chance = best.result.chance
        if chance and not beats_chance([best.mean], chance):
            return f"{label}: no trial is better than guessing."
        untouched = list(filter(self.is_untouched, self.done))
        if not untouched:
            usual = ", ".join(f"{name} {value_words(start[name])}" for name in best.params)
            return f"{label}: its values without a search ({usual}) are not among the trials."
        if best in untouched:
            return f"{label}: no trial is better than its values without a search."
        first, unit = untouched[0], "" if best.by_loss else " %"
        words = (
            f"{label}: the best trial has {shown(best, best.mean)}{unit}, without a search it is "
            f"{shown(best, first.mean)}{unit}"
        )
        if not chance:
            return f"{words}."
        # the errors of two accuracies on the test rows, as if they were independent
        error = math.hypot(*(standard_error([t.mean], chance) for t in (best, first)))
        return f"{words}; the difference has a standard error of {100 * error:.1f} points."

    @property
    def score(self) -> str | None:
        """Of the best trial, for people."""
        return None if self.best is None else shown(self.best, self.best.mean)


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """A search as far as it got.

    job: the search.
    trials: all trials so far.
    finished: every method has its trials.
    privacy: what choosing costs in privacy, in sentences.
    given_up: why a method got no more trials, by its label.
    epsilon: what choosing costs; 0 on public rows, and before the search ends or stops.
    command: what starts the runs with the best settings; empty before the search is finished.
    made_by: the command of the search.
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
        """What the trials of each method reached, in the order of the job."""
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
        notes = list[str]()
        for outcome in self.outcomes:
            if outcome.best:
                notes += [outcome.gain or "", *outcome.arm.edge_notes(outcome.best.params)]
        untouched = [arm.label for arm in self.job.arms if not arm.space]
        if untouched:
            notes.append(f"{', '.join(untouched)}: no setting to choose, so no trials.")
        return [*notes, *(f"{label}: {why}" for label, why in self.given_up.items()), CHANCE]


def table(state: SearchState) -> Table:
    """The best trial of each method, in the order of the job."""

    def value_column(name: str) -> Column:
        return Column(name, lambda one: one.best and one.best.params.get(name), value_words)

    colours = _looks(state.job.arms)
    columns = [
        Column("method", lambda one: one.arm.label),
        *map(value_column, state.varied),
        Column(_measured(state.trials), lambda one: one.score),
        Column("trials", lambda one: f"{len(one.done)}/{one.arm.trials}"),
        Column("uplink", lambda one: one.best and one.best.uplink, human_bytes, optional=1),
        Column("at the edge", lambda one: one.best and _edge_words(one), left=True),
    ]
    return make_table(
        columns,
        state.outcomes,
        title="The best trial of each method",
        colour=lambda one: colours[one.arm.label][0],
    )


def _edge_words(outcome: Outcome) -> str:
    """Pairs such as "learning_rate highest", with commas."""
    return ", ".join(map(" ".join, outcome.edges.items())) or "none"


def write_tables(folder: Path, state: SearchState) -> None:
    """Write trials.csv and search.json, which takes milliseconds."""
    write_atomically(folder / "trials.csv", trials_csv(state).encode())
    whole = {
        "title": state.job.title,
        "rows": state.job.rows.words,
        "finished": state.finished,
        "sampler": state.job.sampler,
        "methods": {one.arm.label: _record(one) for one in state.outcomes},
        "dropped": list(state.job.notices),
        "notes": state.notes,
        "privacy": list(state.privacy),
        "epsilon_of_choosing": str(state.epsilon) if math.isinf(state.epsilon) else state.epsilon,
        "command": state.command,
    }
    write_atomically(folder / "search.json", json_text(whole))


def _record(one: Outcome) -> dict[str, Any]:
    """What search.json says about a method."""
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


def trials_csv(state: SearchState) -> str:
    """A row for each trial: its settings, and its run."""
    best = [one.best for one in state.outcomes]
    rows = []
    for trial in state.trials:
        settings = {name: trial.params.get(name) for name in state.varied}
        first = {"trial": trial.number, "label": trial.arm.label, **settings}
        # first for the order of columns, last because a run has other values under these names
        rows.append({**first, **trial.result.as_row(), **first, "best": trial in best})
    return as_csv(rows, otherwise="trial")


def write(folder: Path, state: SearchState) -> None:
    """Write all files; the figures take a second or two."""
    write_tables(folder, state)
    made = figures(state)
    write_report(folder, page(state, made), made)


def headline(state: SearchState) -> str:
    """What the search gained for each method, or the best trials if that is not known."""
    gains = [one.gain for one in state.outcomes if one.gain]
    if state.finished and len(gains) == sum(bool(one.arm.space) for one in state.outcomes):
        return " ".join(gains)
    words = []
    for one in state.outcomes:
        if one.best is not None:
            values = _settings(one.best, value_words)
            score = f"loss {one.score}" if one.best.by_loss else f"{one.score} %"
            words.append(f"{one.arm.label} with {values} ({score})")
    if not words:
        return "No trial is finished."
    return f"Best trials{'' if state.finished else ' so far'}: {'; '.join(words)}."


def _settings(trial: Trial, words: Callable[[Any], str]) -> str:
    """The settings of a trial with commas; ``words`` writes a value."""
    return ", ".join(f"{name} {words(value)}" for name, value in trial.params.items())


def page(state: SearchState, made: Mapping[str, Charts]) -> str:
    """The page of a search with its figures by name."""
    job = state.job
    done = [trial.result for trial in state.trials if trial.result.done]
    left = unfinished(trial.result for trial in state.trials)
    end = "Every method has its trials." if state.finished else "The search is not finished."
    follow = Code(text=state.command, note="The runs with the best settings:")
    varied = {
        arm.label: "; ".join(f"{one.name}: {one.words}" for one in arm.space) or "nothing"
        for arm in job.arms
    }
    lead = f"{len(done)} of {job.planned} trials finished, on {job.rows.words}. {end}"
    first = headline(state)
    notes = [note for note in (*state.notes, *job.notices) if note not in first]
    return render(
        Page(
            kind="fedlsg compare --search",
            title=job.title,
            headline=first,
            lead=lead,
            warnings=tuple(state.privacy[:2]) if job.rows.private else (),
            sections=sections(
                (
                    "The best trial of each method",
                    [replace(table(state), title=""), *(Text(words=note) for note in notes)],
                ),
                ("Figures", [interactive(made[name], CAPTIONS[name], columns=3) for name in made]),
                ("What is varied", [facts_of(varied)]),
                ("What choosing costs in privacy", [Text(words=words) for words in state.privacy]),
                ("Trials that are not finished", facts_if_any(left)),
                made_section(done, Code(text=state.made_by), *([follow] if state.command else [])),
                data_section(
                    download("trials.csv", trials_csv(state).encode(), "a row for each trial")
                ),
            ),
        )
    )


def figures(state: SearchState) -> dict[str, Charts]:
    """The figures of a search by file name; none before a trial is done."""
    outcomes = [one for one in state.outcomes if one.done]
    if not outcomes:
        return {}
    shapes = _looks(state.job.arms)
    y = Axis(label=_measured(state.trials))
    settings = (_over(one, outcomes, shapes, y) for one in _dimensions(outcomes))
    return {"history": (history(outcomes, shapes, y),), "settings": tuple(settings)}


def _dimensions(outcomes: Sequence[Outcome]) -> Iterator[Dimension]:
    """The settings that at least one method varies.

    Lists of several methods are joined. Of a setting with a range, the first method's is taken.
    """
    every = [one for outcome in outcomes for one in outcome.arm.space]
    for name in dict.fromkeys(one.name for one in every):
        same = [one for one in every if one.name == name]
        lists = [one.values for one in same if isinstance(one, Choices)]
        if len(lists) < len(same):
            yield same[0]
            continue
        yield Choices(name=name, values=in_order(list(dict.fromkeys(chain(*lists)))))


def history(outcomes: Sequence[Outcome], shapes: Shapes, y: Axis) -> Chart:
    """A mark for each trial, and a line through the best one so far."""
    series = []
    for outcome in outcomes:
        marks = _marks(outcome.done, lambda trial: trial.number + 1, shapes, filled=False)
        best_so_far = accumulate(outcome.done, lambda *pair: best_of(pair) or pair[0])
        heights = [trial.height for trial in best_so_far]
        series.append(replace(marks, y=heights, marker="", line=True, steps=True, words=()))
        series.append(marks)
    x = Axis(label="trial", whole=True)
    return Chart(title="The best trial so far", x=x, y=y, series=tuple(series), height=360)


def _over(dimension: Dimension, outcomes: Sequence[Outcome], shapes: Shapes, y: Axis) -> Chart:
    """The scores over one setting; the best trial of a method is filled."""
    name = dimension.name
    x, places = _scale(dimension)
    series = []

    def place_of(trial: Trial) -> float:
        value = trial.params[name]
        return float(places.get(value, value))

    for outcome in outcomes:
        if name in outcome.done[0].params:
            best = [outcome.best or outcome.done[0]]
            series.append(_marks(outcome.done, place_of, shapes, filled=False))
            series.append(_marks(best, place_of, shapes, filled=True))
    return Chart(title=f"Scores over {name}", x=x, y=y, series=tuple(series), height=360)


def _marks(
    trials: Sequence[Trial], place_of: Callable[[Trial], float], shapes: Shapes, *, filled: bool
) -> Series:
    """Trials of one method as marks; their words are their settings."""
    label = trials[0].arm.label
    colour, marker = shapes[label]
    return Series(
        name=label,
        x=list(map(place_of, trials)),
        y=[trial.height for trial in trials],
        colour=colour,
        marker=marker,
        filled=filled,
        line=False,
        words=tuple(f"trial {t.number + 1}: {_settings(t, value_shown)}" for t in trials),
    )


def _scale(dimension: Dimension) -> tuple[Axis, Mapping[Any, float]]:
    """The axis of a setting, and the places of the values of a list; numbers are at themselves."""
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
