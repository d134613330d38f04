"""The files of a search: trials.csv (a row for each trial), search.json, best.toml (a grid), report.html and plots/."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

from simulations.compare.lines import Line, measured, shown
from simulations.compare.search.plots import figures
from simulations.compare.search.space import shown as value_shown
from simulations.compare.search.space import tunable
from simulations.compare.search.trials import Arm, Trial, best_of
from simulations.compare.table import unfinished
from simulations.report.facts import made_section
from simulations.report.figure import drawing, looks, png
from simulations.report.page import (
    Code,
    Page,
    Table,
    Text,
    data_section,
    download,
    facts_of,
    json_text,
    render,
    sections,
)
from simulations.report.table import Column, make_table, records
from simulations.report.words import human_bytes
from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.results import as_csv

CAPTIONS = {
    "history": "How the best accuracy (or loss) grows with the trials. A hollow mark is one trial; the line is the "
    "best one so far.",
    "settings": "How the accuracy (or loss) depends on each setting. A mark is one trial, in which the other settings "
    "differ, too. Filled: the best trial of a method.",
}
CHANCE = (
    "Each trial has one seed. The best of many trials is in part the luckiest one, so its accuracy here is too high on "
    "average. Compare methods by the runs that follow, with other seeds."
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A search as far as it got.

    rows: what the trials are compared on. dropped: settings that methods lack, in sentences.
    given_up: why a method got no more trials. privacy: what choosing costs, in sentences. command: the runs to start.
    """

    title: str
    rows: str
    arms: Sequence[Arm]
    trials: Sequence[Trial]
    sampler: str
    finished: bool
    costs: bool
    privacy: Sequence[str]
    dropped: Sequence[str] = ()
    given_up: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    made_by: str = ""

    def own(self, arm: Arm) -> list[Trial]:
        """The trials of a method."""
        return [trial for trial in self.trials if trial.arm.label == arm.label]

    def best(self, arm: Arm) -> Trial | None:
        """The best trial of a method; None before one is done."""
        return best_of(self.own(arm))

    @property
    def varied(self) -> list[str]:
        """The settings that at least one method varies."""
        return list(dict.fromkeys(one.name for arm in self.arms for one in arm.space))

    @property
    def notes(self) -> list[str]:
        """Edges, methods without trials, and how much luck is in the best."""
        edges = [words for arm in self.arms for words in edge_notes(arm, self.best(arm))]
        untouched = [arm.label for arm in self.arms if not arm.space]
        none = [f"{', '.join(untouched)}: no setting to choose, so no trials."] if untouched else []
        return [*edges, *none, *(f"{label}: {why}" for label, why in self.given_up.items()), CHANCE]


def edge_notes(arm: Arm, best: Trial | None) -> list[str]:
    """A sentence for each best value at an edge of its range, unless the setting takes no value beyond it."""
    found = []
    known = tunable(str(arm.given["method"]))
    for name, side in ({} if best is None else arm.edges(best.params)).items():
        assert best is not None
        end, beyond = ("lower", "lower") if side == "lowest" else ("upper", "higher")
        words = f"The best {name} of {arm.label}, {_value(best.params[name])}, is at the edge: it is "
        limits = known[name].setting
        if best.params[name] == (limits.at_least if side == "lowest" else limits.at_most):
            found.append(f"{words}the {side} that the setting takes.")
        else:
            found.append(
                f"{words}at the {end} end of its range. A {beyond} one may be better: give a wider range, and another "
                "--out."
            )
    return found


def columns_of(found: Found) -> list[Column]:
    """Every fact of a method: in the table under its heading, in search.json under its key."""
    best = {arm.label: found.best(arm) for arm in found.arms}
    lines = {label: None if trial is None else trial.line for label, trial in best.items()}

    def of_best(value: Callable[[Trial], Any], otherwise: Any = None) -> Callable[[Arm], Any]:
        return lambda arm: otherwise if (trial := best[arm.label]) is None else value(trial)

    def of_line(value: Callable[[Line], Any]) -> Callable[[Arm], Any]:
        return lambda arm: None if (line := lines[arm.label]) is None else value(line)

    def done(arm: Arm) -> int:
        return sum(trial.result.done for trial in found.own(arm))

    def edges(arm: Arm) -> str:
        none = "--" if best[arm.label] is None else "none"
        return ", ".join(f"{name} {side}" for name, side in sides(arm).items()) or none

    sides = of_best(lambda trial: trial.arm.edges(trial.params), {})
    score = measured([trial.line for trial in found.trials]).replace("test ", "")
    return [
        Column("method", attrgetter("label")),
        Column("", lambda arm: arm.given["method"], key="method"),
        Column("", lambda arm: {one.name: one.words for one in arm.space}, key="varied"),
        Column("", attrgetter("trials"), key="planned"),
        Column("", lambda arm: len(found.own(arm)), key="trials"),
        Column("", done, key="done"),
        Column("", of_best(attrgetter("number")), key="best_trial"),
        Column("", of_best(lambda trial: dict(trial.params)), key="best"),
        Column("", sides, key="edges"),
        *(Column(name, of_best(partial(_param, name)), _value) for name in found.varied),
        Column(score, of_line(lambda line: None if line.mean is None else shown(line, line.mean))),
        Column("", of_line(lambda line: None if line.by_loss else line.mean), key="accuracy"),
        Column("", of_line(methodcaller("mean_of", "loss")), key="loss"),
        Column("trials", done, words=lambda arm: f"{done(arm)}/{arm.trials}"),
        Column("uplink", of_line(attrgetter("uplink")), human_bytes, "uplink_bytes_per_client_round", optional=1),
        Column("at the edge", edges, left=True),
    ]


def _param(name: str, trial: Trial) -> Any:
    return trial.params.get(name)


def table(found: Found) -> Table:
    """The best trial of each method, in the given order."""
    colours = looks([(str(arm.given["method"]), arm.label) for arm in found.arms])
    return make_table(
        columns_of(found), found.arms, title="The best trial of each method", colour=lambda arm: colours[arm.label][0]
    )


def write_tables(folder: Path, found: Found) -> None:
    """trials.csv and search.json: milliseconds."""
    write_atomically(folder / "trials.csv", trials_csv(found).encode())
    whole = {
        "title": found.title,
        "rows": found.rows,
        "finished": found.finished,
        "sampler": found.sampler,
        "methods": dict(zip((arm.label for arm in found.arms), records(columns_of(found), found.arms), strict=True)),
        "dropped": list(found.dropped),
        "notes": found.notes,
        "privacy": list(found.privacy),
        "command": found.command,
    }
    write_atomically(folder / "search.json", json_text(whole))


def trials_csv(found: Found) -> str:
    """A row for each trial: its settings, and its run."""
    names, best = found.varied, {arm.label: found.best(arm) for arm in found.arms}
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
    write_atomically(folder / "report.html", page(found).encode())
    for name, figure in figures(found.arms, found.trials).items():
        write_atomically(folder / "plots" / f"{name}.png", png(figure))


def headline(found: Found) -> str:
    """The best trial of each method."""
    words = []
    for arm in found.arms:
        best = found.best(arm)
        if best is not None and best.line.mean is not None:
            values = ", ".join(f"{name} {_value(value)}" for name, value in best.params.items())
            score = shown(best.line, best.line.mean)
            score = f"loss {score}" if best.line.by_loss else f"{score} %"
            words.append(f"{arm.label} with {values} ({score})")
    if not words:
        return "No trial is finished."
    return f"{'Best trials' if found.finished else 'Best trials so far'}: {'; '.join(words)}."


def page(found: Found) -> str:
    """The page of a search."""
    done = [trial.result for trial in found.trials if trial.result.done]
    drawn = [drawing(figure, CAPTIONS[name]) for name, figure in figures(found.arms, found.trials).items()]
    left = unfinished([trial.line for trial in found.trials])
    end = "Every method has its trials." if found.finished else "The search is not finished."
    space = {arm.label: "; ".join(f"{one.name}: {one.words}" for one in arm.space) or "nothing" for arm in found.arms}
    return render(
        Page(
            kind="fedlsg compare --search",
            title=found.title,
            headline=headline(found),
            lead=f"{len(done)} of {sum(arm.trials for arm in found.arms)} trials finished, on {found.rows}. {end}",
            warnings=tuple(found.privacy[:2]) if found.costs else (),
            sections=sections(
                ("", [table(found), *(Text(words=note) for note in (*found.notes, *found.dropped))]),
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


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value_shown(value)
