"""The files of a search: trials.csv (a row for each trial), search.json, best.toml (a grid), report.html and plots/."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulations.compare.lines import measured, shown
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
    Row,
    Section,
    Table,
    Text,
    data_section,
    download,
    facts_of,
    json_text,
    render,
)
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


def write_tables(folder: Path, found: Found) -> None:
    """trials.csv and search.json: milliseconds."""
    write_atomically(folder / "trials.csv", trials_csv(found).encode())
    whole = {
        "title": found.title,
        "rows": found.rows,
        "finished": found.finished,
        "sampler": found.sampler,
        "methods": {arm.label: _record(found, arm) for arm in found.arms},
        "dropped": list(found.dropped),
        "notes": found.notes,
        "privacy": list(found.privacy),
        "command": found.command,
    }
    write_atomically(folder / "search.json", json_text(whole))


def trials_csv(found: Found) -> str:
    """A row for each trial: its settings, and its run."""
    names = list(dict.fromkeys(one.name for arm in found.arms for one in arm.space))
    best = {arm.label: found.best(arm) for arm in found.arms}
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


def _record(found: Found, arm: Arm) -> dict[str, Any]:
    best, own = found.best(arm), found.own(arm)
    line = None if best is None else best.line
    return {
        "method": arm.given["method"],
        "varied": {one.name: one.words for one in arm.space},
        "planned": arm.trials,
        "trials": len(own),
        "done": sum(trial.result.done for trial in own),
        "best_trial": None if best is None else best.number,
        "best": None if best is None else dict(best.params),
        "edges": {} if best is None else arm.edges(best.params),
        "accuracy": None if line is None or line.by_loss else line.mean,
        "loss": None if line is None else line.mean_of("loss"),
        "uplink_bytes_per_client_round": None if line is None else line.uplink,
    }


def write(folder: Path, found: Found) -> None:
    """All files; the figures take a second or two."""
    write_tables(folder, found)
    write_atomically(folder / "report.html", page(found).encode())
    for name, figure in figures(found.arms, found.trials).items():
        write_atomically(folder / "plots" / f"{name}.png", png(figure))


def table(found: Found) -> Table:
    """The best trial of each method, in the given order."""
    names = list(dict.fromkeys(one.name for arm in found.arms for one in arm.space))
    colours = looks([(str(arm.given["method"]), arm.label) for arm in found.arms])
    rows = []
    for arm in found.arms:
        best, own = found.best(arm), found.own(arm)
        line = None if best is None else best.line
        done = sum(trial.result.done for trial in own)
        edges = {} if best is None else arm.edges(best.params)
        cells = (
            arm.label,
            *("--" if best is None or name not in best.params else _value(best.params[name]) for name in names),
            "--" if line is None or line.mean is None else shown(line, line.mean),
            f"{done}/{arm.trials}",
            "--" if line is None or line.uplink is None else human_bytes(line.uplink),
            ", ".join(f"{name} {side}" for name, side in edges.items()) or ("--" if best is None else "none"),
        )
        rows.append(Row(cells=cells, colour=colours[arm.label][0]))
    lines = [trial.line for trial in found.trials]
    score = measured(lines).replace("test ", "")
    columns = ("method", *names, score, "trials", "uplink", "at the edge")
    return Table(
        columns=columns, rows=tuple(rows), left=(0, len(columns) - 1), optional=(columns.index("uplink"),),
        title="The best trial of each method",
    )  # fmt: skip


def headline(found: Found) -> str:
    """The best trial of each method."""
    words = []
    for arm in found.arms:
        best = found.best(arm)
        if best is not None and best.line.mean is not None:
            values = ", ".join(f"{name} {_value(value)}" for name, value in best.params.items())
            score = (
                f"loss {shown(best.line, best.line.mean)}"
                if best.line.by_loss
                else f"{shown(best.line, best.line.mean)} %"
            )
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
            sections=(
                Section(parts=(table(found), *(Text(words=note) for note in (*found.notes, *found.dropped)))),
                *([Section(title="Figures", parts=tuple(drawn))] if drawn else []),
                Section(title="What is varied", parts=(facts_of(space),)),
                Section(title="What choosing costs in privacy", parts=tuple(Text(words=w) for w in found.privacy)),
                *([Section(title="Trials that are not finished", parts=(facts_of(left),))] if left else []),
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
