"""Means over seeds: one line for each setting, as CSV, Markdown, and on the terminal.

An accuracy is mean ± sample standard deviation over seeds, on the public test split; its standard error, and the mark
of one that does not beat chance, are those of simulations/workloads/chance.py.
"""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulations.report.terminal import human_bytes
from simulations.rundir.results import Result
from simulations.workloads.chance import STANDARD_ERRORS, Chance, beats_chance, standard_error

PROBE = "linear-probe"
CHANCE_MARK = "†"
CHANCE_NOTE = f"{CHANCE_MARK} does not beat chance by {STANDARD_ERRORS:g} standard errors"


@dataclass(frozen=True, kw_only=True)
class Line:
    """Runs that differ in their seed only; the numbers are of those that are done."""

    runs: tuple[Result, ...]
    probe: float | None = None
    """Mean accuracy of the private linear probe at the same epsilon target."""

    @property
    def label(self) -> str:
        return self.runs[0].label

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def done(self) -> tuple[Result, ...]:
        return tuple(run for run in self.runs if run.done)

    def setting(self, name: str) -> Any:
        """A setting that all its runs share; None where it has none."""
        return (self.done or self.runs)[0].settings.get(name)

    @property
    def accuracies(self) -> list[float]:
        return [run.accuracy for run in self.done if run.accuracy is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.accuracies) if self.done else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.accuracies) if len(self.done) > 1 else None

    @property
    def chance(self) -> Chance | None:
        return self.done[0].chance if self.done else None

    @property
    def standard_error(self) -> float | None:
        return None if self.chance is None else standard_error(self.accuracies, self.chance)

    @property
    def beats_chance(self) -> bool | None:
        """None where nothing is done, or its chance is not on record."""
        return None if self.chance is None else beats_chance(self.accuracies, self.chance)

    @property
    def private(self) -> bool | None:
        """Whether every finished run says so."""
        return all(run.private for run in self.done) if self.done else None

    @property
    def epsilon_target(self) -> float | None:
        return self.runs[0].epsilon_target

    @property
    def epsilon(self) -> float | None:
        """The largest of its runs' epsilons; inf where nothing is claimed."""
        return max((run.epsilon_max for run in self.done if run.epsilon_max is not None), default=None)

    @property
    def uplink(self) -> float | None:
        """Payload bytes of a client in a round."""
        messages = sum(run.messages for run in self.done)
        return sum(run.summary["uplink_bytes"] for run in self.done) / messages if messages else None

    def mean_of(self, name: str) -> float | None:
        """Mean over finished seeds of a number in summary.json."""
        return statistics.fmean(run.summary[name] for run in self.done) if self.done else None

    @property
    def total_uplink(self) -> float | None:
        """Payload bytes of a whole run, mean over seeds."""
        return self.mean_of("uplink_bytes")

    @property
    def total_downlink(self) -> float | None:
        """As ``total_uplink``, the other way."""
        return self.mean_of("downlink_bytes")

    @property
    def transfer(self) -> float | None:
        """Seconds on a link, mean over seeds; None where no link was asked for."""
        seconds = [run.transfer for run in self.done if run.transfer is not None]
        return statistics.fmean(seconds) if seconds and len(seconds) == len(self.done) else None

    @property
    def saved(self) -> float | None:
        """Dense bytes over sent bytes."""
        up = sum(run.summary["uplink_bytes"] for run in self.done)
        return sum(run.summary["uplink_bytes_dense"] for run in self.done) / up if up else None

    @property
    def seconds(self) -> float | None:
        return self.mean_of("wall_seconds")

    @property
    def over_probe(self) -> float | None:
        """Mean accuracy over the private linear probe's."""
        return None if self.mean is None or self.probe is None or self.method == PROBE else self.mean - self.probe

    @property
    def name(self) -> str:
        """Label with rank and sparsity, for legends."""
        own = [f"r {self.setting('rank')}"] if self.setting("rank") else []
        own += [f"p {self.setting('sparsity'):g}"] if self.setting("sparsity") is not None else []
        return f"{self.label} ({', '.join(own)})" if own else self.label


def lines(results: Iterable[Result]) -> list[Line]:
    """Results by group: epsilon targets ascending, no target last, the best mean first, unfinished ones last."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(result.group or (result.name,), []).append(result)
    found = [Line(runs=tuple(runs)) for runs in groups.values()]
    probes: dict[tuple[Any, ...], float] = {}
    for line in found:
        if line.method == PROBE and line.mean is not None and line.private:
            probes[_task(line)] = max(line.mean, probes.get(_task(line), 0.0))
    found = [Line(runs=line.runs, probe=probes.get(_task(line))) for line in found]
    return sorted(found, key=_order)


def _task(line: Line) -> tuple[Any, ...]:
    """Lines whose accuracies may be set against each other: of one workload's evaluated rows, at one epsilon target."""
    return (*(line.setting(name) for name in ("workload", "dataset", "subset", "holdout")), line.epsilon_target)


def _order(line: Line) -> tuple[Any, ...]:
    target = math.inf if line.epsilon_target is None else line.epsilon_target
    return (target, line.mean is None, -(line.mean or 0.0), line.name)


def as_record(line: Line) -> dict[str, Any]:
    """The line of table.csv; None where there is nothing to say."""
    names = ("workload", "model", "rank", "sparsity", "delta")
    settings = {name: line.setting(name) for name in names}
    return {
        "label": line.label,
        "method": line.method,
        **settings,
        "epsilon_target": line.epsilon_target,
        "epsilon_max": line.epsilon,
        "private": line.private,
        "n": len(line.done),
        "planned": len(line.runs),
        "accuracy_mean": line.mean,
        "accuracy_sd": line.sd,
        "standard_error": line.standard_error,
        "chance": None if line.chance is None else line.chance.level,
        "beats_chance": line.beats_chance,
        "over_linear_probe": line.over_probe,
        "uplink_bytes_per_client_round": line.uplink,
        "saved_ratio": line.saved,
        "uplink_bytes_total": line.total_uplink,
        "downlink_bytes_total": line.total_downlink,
        "transfer_seconds": line.transfer,
        "wall_seconds": line.seconds,
    }


def table_csv(table: Sequence[Line]) -> str:
    """The aggregated table, shares in 0..1."""
    records = [as_record(line) for line in table]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(records[0]) if records else ["label"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


COLUMNS = {
    "method": "method", "rank": "r", "sparsity": "p", "epsilon": "epsilon", "accuracy": "accuracy, %", "error": "s.e.",
    "n": "n", "probe": "over probe", "uplink": "uplink", "saved": "saved", "transfer": "transfer, s",
    "seconds": "seconds",
}  # fmt: skip


def shown(table: Sequence[Line]) -> list[dict[str, str]]:
    """The cells that a reader sees, by the keys of COLUMNS; columns that say nothing are left out everywhere."""
    cells = [_cells(line) for line in table]
    empty = {key for key in ("rank", "sparsity", "probe", "transfer") if all(row[key] in ("", "--") for row in cells)}
    return [{key: value for key, value in row.items() if key not in empty} for row in cells]


def _cells(line: Line) -> dict[str, str]:
    mark = f" {CHANCE_MARK}" if line.beats_chance is False else ""
    sd = "" if line.sd is None else f" ± {100 * line.sd:.1f}"
    done, planned = len(line.done), len(line.runs)
    return {
        "method": line.label,
        "rank": _number(line.setting("rank") or None, "d"),
        "sparsity": _number(line.setting("sparsity"), "g"),
        "epsilon": _epsilon(line),
        "accuracy": "--" if line.mean is None else f"{100 * line.mean:.1f}{sd}{mark}",
        "error": _number(line.standard_error, ".1f", 100),
        "n": str(done) if done == planned else f"{done}/{planned}",
        "probe": _number(line.over_probe, "+.1f", 100),
        "uplink": "--" if line.uplink is None else human_bytes(line.uplink),
        "saved": "--" if line.saved is None else f"{line.saved:.1f}x",
        "transfer": _number(line.transfer, ".3g"),
        "seconds": _number(line.seconds, ".0f"),
    }


def _epsilon(line: Line) -> str:
    if line.private is None:
        return "--" if line.epsilon_target is None else f"({line.epsilon_target:g})"
    return f"{line.epsilon:.3f}" if line.private else "not private"


def _number(value: float | None, form: str, scale: float = 1) -> str:
    return "--" if value is None else format(value * scale if scale != 1 else value, form)


def notes(table: Sequence[Line]) -> list[str]:
    """What the columns mean, as far as it is not plain, and the marks that occur."""
    kinds = {run.held_out for line in table for run in line.runs}
    splits = [] if kinds == {True} else ["the public test split"]
    splits += ["held-out training rows, which no epsilon covers"] if True in kinds else []
    split = " or ".join(splits)
    found = [
        f"accuracy: mean ± standard deviation over n seeds on {split}; s.e.: its standard error, in "
        "points; uplink: payload of a client in a round; saved: dense bytes over sent bytes"
    ]
    links = dict.fromkeys(run.link for line in table if line.transfer is not None for run in line.runs if run.link)
    found += [f"transfer: seconds that a run's messages would take on {link}" for link in links]
    if any(line.over_probe is not None for line in table):
        found.append("over probe: points above the private linear probe at the same epsilon")
    if any(line.beats_chance is False for line in table):
        levels = sorted({line.chance.level for line in table if line.chance is not None})
        found.append(f"{CHANCE_NOTE} ({', '.join(f'{100 * level:.1f} %' for level in levels)})")
    return found


def table_markdown(table: Sequence[Line]) -> str:
    """A Markdown table, its notes, and what did not finish."""
    rows = shown(table)
    keys = list(rows[0]) if rows else list(COLUMNS)
    parts = ["| " + " | ".join(COLUMNS[key] for key in keys) + " |", "|" + "---|" * len(keys)]
    parts += ["| " + " | ".join(_plain(row[key]) for key in keys) + " |" for row in rows]
    parts += ["", *(f"{note}." for note in notes(table))]
    details = {**variants(table), **unfinished(table)}
    parts += ["", *(f"- `{name}`: {_plain(text)}" for name, text in details.items())] if details else []
    return "\n".join(parts) + "\n"


def variants(table: Sequence[Line]) -> Mapping[str, str]:
    """What numbered labels stand for."""
    details = {line.label: line.runs[0].detail for line in table}
    return {label: detail for label, detail in details.items() if detail and detail not in label}


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def unfinished(table: Sequence[Line]) -> Mapping[str, str]:
    """Why a run is not in the means, by its name."""
    runs = [run for line in table for run in line.runs]
    return {
        run.name: f"{run.status}: {run.reason}"
        if run.reason
        else run.status + (f" after {len(run.rows)} rounds" if run.rows else "")
        for run in runs
        if not run.done
    }
