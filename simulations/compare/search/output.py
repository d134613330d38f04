"""The files of a search: trials.csv (a row for each trial), search.json, best.toml (a grid), report.html and plots/."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from simulations.compare.lines import is_number, measured, shown
from simulations.compare.output import write_report
from simulations.compare.search.space import Choices, Dimension, value_words
from simulations.compare.search.space import shown as value_shown
from simulations.compare.search.trials import Arm, Job, Trial, best_of, score_of
from simulations.compare.table import unfinished
from simulations.report.chart import Axis, Chart, Series, spaced
from simulations.report.colours import looks
from simulations.report.facts import made_section
from simulations.report.figure import interactive
from simulations.report.page import Code, Page, Table, Text, data_section, download, facts_of, json_text, sections
from simulations.report.table import Column, make_table, records
from simulations.report.template import render
from simulations.report.words import human_bytes
from simulations.rundir.files import write_atomically
from simulations.rundir.results import as_csv

CAPTIONS = {
    "history": "How the best accuracy (or loss) grows with the trials. A hollow mark is one trial; the line is the "
    "best one so far.",
    "settings": "How the accuracy (or loss) depends on each setting. A mark is one trial, in which the other settings "
    "differ, too. Filled: the best trial of a method.",
}
SENT = "uplink_bytes_per_client_round"
CHANCE = (
    "Each trial has one seed. The best of many trials is in part the luckiest one, so its accuracy here is too high on "
    "average. Compare methods by the runs that follow, with other seeds."
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A search as far as it got.

    given_up: why a method got no more trials. privacy: what choosing costs, in sentences. command: the runs to start.
    """

    job: Job
    trials: Sequence[Trial]
    finished: bool
    privacy: Sequence[str]
    given_up: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    made_by: str = ""

    @property
    def outcomes(self) -> "list[Outcome]":
        """What became of each method, in the given order."""
        return [self.outcome(arm) for arm in self.job.arms]

    def outcome(self, arm: Arm) -> "Outcome":
        """What became of a method."""
        own = [trial for trial in self.trials if trial.arm.label == arm.label]
        best = best_of(own)
        edges = {} if best is None else arm.edges(best.params)
        return Outcome(arm, own, sum(trial.result.done for trial in own), best, edges)

    @property
    def varied(self) -> list[str]:
        """The settings that at least one method varies."""
        return list(dict.fromkeys(one.name for arm in self.job.arms for one in arm.space))

    @property
    def notes(self) -> list[str]:
        """Edges, methods without trials, and how much luck is in the best."""
        edges = [words for one in self.outcomes if one.best for words in one.arm.edge_notes(one.best.params)]
        untouched = [arm.label for arm in self.job.arms if not arm.space]
        none = [f"{', '.join(untouched)}: no setting to choose, so no trials."] if untouched else []
        return [*edges, *none, *(f"{label}: {why}" for label, why in self.given_up.items()), CHANCE]


class Outcome(NamedTuple):
    """A method, its trials, how many are done, the best of them, and which of its values are at an edge."""

    arm: Arm
    trials: list[Trial]
    done: int
    best: Trial | None
    edges: Mapping[str, Any]


def columns_of(found: Found) -> list[Column]:
    """Every fact of an outcome: in the table under its heading, in search.json under its key."""
    score = _measured(found.trials)

    def chosen(name: str, one: Outcome) -> Any:
        return one.best and one.best.params.get(name)

    return [
        Column("method", lambda one: one.arm.label),
        Column("", lambda one: one.arm.given["method"], key="method"),
        Column("", lambda one: {range.name: range.words for range in one.arm.space}, key="varied"),
        Column("", lambda one: one.arm.trials, key="planned"),
        Column("", lambda one: len(one.trials), key="trials"),
        Column("", lambda one: one.done, key="done"),
        Column("", lambda one: one.best and one.best.number, key="best_trial"),
        Column("", lambda one: one.best and dict(one.best.params), key="best"),
        Column("", lambda one: one.edges, key="edges"),
        *(Column(name, partial(chosen, name), value_words) for name in found.varied),
        Column(score, lambda one: one.best and shown(one.best.line, one.best.line.mean)),
        Column("", lambda one: one.best and (None if one.best.line.by_loss else one.best.line.mean), key="accuracy"),
        Column("", lambda one: one.best and one.best.line.mean_of("loss"), key="loss"),
        Column("trials", lambda one: f"{one.done}/{one.arm.trials}"),
        Column("uplink", lambda one: one.best and one.best.line.uplink, human_bytes, SENT, optional=1),
        Column(
            "at the edge", lambda one: one.best and (", ".join(map(" ".join, one.edges.items())) or "none"), left=True
        ),
    ]


def table(found: Found) -> Table:
    """The best trial of each method, in the given order."""
    colours = _shapes(found.job.arms)
    return make_table(
        columns_of(found), found.outcomes, title="The best trial of each method",
        colour=lambda one: colours[one.arm.label][0],
    )  # fmt: skip


def write_tables(folder: Path, found: Found) -> None:
    """trials.csv and search.json: milliseconds."""
    write_atomically(folder / "trials.csv", trials_csv(found).encode())
    whole = {
        "title": found.job.title,
        "rows": found.job.rows.words,
        "finished": found.finished,
        "sampler": found.job.sampler,
        "methods": {one.arm.label: records(columns_of(found), [one])[0] for one in found.outcomes},
        "dropped": list(found.job.notices),
        "notes": found.notes,
        "privacy": list(found.privacy),
        "command": found.command,
    }
    write_atomically(folder / "search.json", json_text(whole))


def trials_csv(found: Found) -> str:
    """A row for each trial: its settings, and its run."""
    names, best = found.varied, {one.arm.label: one.best for one in found.outcomes}
    return as_csv(
        [
            {
                "trial": trial.number,
                "label": trial.arm.label,
                **{name: trial.params.get(name) for name in names},
                **{key: value for key, value in trial.result.as_row().items() if key not in (*names, "label")},
                "best": (found_best := best[trial.arm.label]) is not None and found_best.number == trial.number,
            }
            for trial in found.trials
        ],
        otherwise="trial",
    )


def write(folder: Path, found: Found) -> None:
    """All files; the figures take a second or two."""
    write_tables(folder, found)
    made = figures(found.job.arms, found.trials)
    write_report(folder, page(found, made), made)


def headline(found: Found) -> str:
    """The best trial of each method."""
    words = []
    for one in found.outcomes:
        arm, best = one.arm, one.best
        if best is not None and best.line.mean is not None:
            values = ", ".join(f"{name} {value_words(value)}" for name, value in best.params.items())
            score = shown(best.line, best.line.mean)
            score = f"loss {score}" if best.line.by_loss else f"{score} %"
            words.append(f"{arm.label} with {values} ({score})")
    if not words:
        return "No trial is finished."
    return f"{'Best trials' if found.finished else 'Best trials so far'}: {'; '.join(words)}."


def page(found: Found, made: Mapping[str, Sequence[Chart]]) -> str:
    """The page of a search with its figures by name."""
    job = found.job
    done = [trial.result for trial in found.trials if trial.result.done]
    drawn = [interactive(charts, CAPTIONS[name], columns=3) for name, charts in made.items()]
    left = unfinished([trial.line for trial in found.trials])
    end = "Every method has its trials." if found.finished else "The search is not finished."
    space = {arm.label: "; ".join(f"{one.name}: {one.words}" for one in arm.space) or "nothing" for arm in job.arms}
    return render(
        Page(
            kind="fedlsg compare --search",
            title=job.title,
            headline=headline(found),
            lead=f"{len(done)} of {sum(arm.trials for arm in job.arms)} trials finished, on {job.rows.words}. {end}",
            warnings=tuple(found.privacy[:2]) if job.rows.private else (),
            sections=sections(
                ("", [table(found), *(Text(words=note) for note in (*found.notes, *job.notices))]),
                ("Figures", drawn),
                ("What is varied", [facts_of(space)]),
                ("What choosing costs in privacy", [Text(words=words) for words in found.privacy]),
                ("Trials that are not finished", [facts_of(left)] if left else []),
                made_section(
                    done,
                    Code(text=found.made_by),
                    *([Code(text=found.command, note="The runs with the best settings:")] if found.command else []),
                ),
                data_section(download("trials.csv", trials_csv(found).encode(), "a row for each trial")),
            ),
        )
    )


def figures(arms: Sequence[Arm], trials: Sequence[Trial]) -> dict[str, tuple[Chart, ...]]:
    """By file name; none before a trial is done."""
    done = [trial for trial in trials if trial.line.mean is not None]
    return {"history": history(arms, done), "settings": by_setting(arms, done)} if done else {}


def history(arms: Sequence[Arm], done: Sequence[Trial]) -> tuple[Chart, ...]:
    """A mark for each trial, and a line through the best one so far."""
    shapes, series = _shapes(arms), []
    for arm in arms:
        own = [trial for trial in done if trial.arm.label == arm.label]
        if not own:
            continue
        colour, marker = shapes[arm.label]
        numbers = [trial.number + 1 for trial in own]
        best = [_height(max(own[: k + 1], key=score_of)) for k in range(len(own))]
        series.append(Series(name=arm.label, x=numbers, y=best, colour=colour, steps=True))
        series.append(_marks(arm.label, numbers, own, (colour, marker), filled=False))
    x = Axis(label="trial", whole=True)
    return (Chart(title="The best so far", x=x, y=Axis(label=_measured(done)), series=tuple(series), height=360),)


def by_setting(arms: Sequence[Arm], done: Sequence[Trial]) -> tuple[Chart, ...]:
    """A chart for each setting; filled: the best trial of a method."""
    dimensions = {one.name: one for arm in arms for one in arm.space}
    return tuple(_over(dimension, arms, done) for dimension in dimensions.values())


def _over(dimension: Dimension, arms: Sequence[Arm], done: Sequence[Trial]) -> Chart:
    name, shapes, series = dimension.name, _shapes(arms), []
    listed = dimension.values if isinstance(dimension, Choices) else ()
    words = not all(map(is_number, listed))
    for arm in arms:
        own = [t for t in done if t.arm.label == arm.label and name in t.params]
        best = best_of(own)
        for some, filled in ((own, False), ([] if best is None else [best], True)):
            values = [trial.params[name] for trial in some]
            places = [float(listed.index(v)) for v in values] if words else [*map(float, values)]
            series.append(_marks(arm.label, places, some, shapes[arm.label], filled=filled))
    return Chart(
        title=name, x=_scale(dimension, words), y=Axis(label=_measured(done)), series=tuple(series), height=320
    )


def _marks(name: str, places: Sequence[float], own: Sequence[Trial], look: tuple[str, str], *, filled: bool) -> Series:
    """Trials as marks; their words are their settings."""
    words = tuple(
        f"trial {t.number + 1}: " + ", ".join(f"{key} {value_shown(value)}" for key, value in t.params.items())
        for t in own
    )
    return Series(
        name=name, x=places, y=[_height(trial) for trial in own], colour=look[0], marker=look[1], filled=filled,
        line=False, words=words,
    )  # fmt: skip


def _scale(dimension: Dimension, words: bool) -> Axis:
    if not isinstance(dimension, Choices):
        if not dimension.log:
            return Axis(label=dimension.name, whole=dimension.whole)
        return Axis(label=dimension.name, log=True, low=dimension.low / 1.1, high=dimension.high * 1.1)
    if words:
        ticks = [(float(at), str(value)) for at, value in enumerate(dimension.values)]
        return Axis(label=dimension.name, ticks=tuple(ticks))
    log = all(value > 0 for value in dimension.values)
    ticks = [(float(value), f"{value:g}") for value in sorted(dimension.values)]
    return Axis(label=dimension.name, log=log, ticks=spaced(ticks, log=log))


def _shapes(arms: Sequence[Arm]) -> dict[str, tuple[str, str]]:
    return looks([(str(arm.given["method"]), arm.label) for arm in arms])


def _height(trial: Trial) -> float:
    assert trial.line.mean is not None
    return trial.line.scale * trial.line.mean


def _measured(done: Sequence[Trial]) -> str:
    return measured([trial.line for trial in done]).replace("test ", "")
