"""Means over seeds: runs that differ in their seed only are one line.

An accuracy is mean ± sample standard deviation over seeds, on the public test split. Its standard
error, and whether it is better than guessing, are those of ``workloads.chance``.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedlsg.config.units import Unit, unit_in
from fedlsg.simulations.compare.cells import grouped
from fedlsg.simulations.report.colours import canonical
from fedlsg.simulations.report.words import NOT_PRIVATE
from fedlsg.simulations.storage.results import Result
from fedlsg.simulations.workloads.base.split import Chance, beats_chance, standard_error

PROBE = "linear-probe"
SHORT = {"rank": "r", "sparsity": "p"}
"""Settings that the name of a line has under a letter."""
SAME = 0.01
"""Relative difference of epsilons that count as equal: calibration ends within it of its target."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Runs that differ in their seed only; the numbers are of those that are done."""

    runs: tuple[Result, ...]
    probe: float | None = None
    """Mean accuracy of the private linear probe at the same epsilon target; None for itself."""

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
        """A setting that all its runs share; None if there is none."""
        return (self.done or self.runs)[0].settings.get(name)

    @property
    def varied(self) -> dict[str, Any]:
        """The settings that its comparison varies, with their values here."""
        return dict(self.runs[0].varied)

    @property
    def trust(self) -> str:
        """Whom the epsilon protects against."""
        return str(self.setting("trust") or "client")

    @property
    def unit(self) -> Unit:
        """What the epsilon protects."""
        return unit_in({"unit": self.setting("unit")})

    @property
    def task(self) -> tuple[Any, ...]:
        """What lines need in common to be compared: the evaluated rows of one workload."""
        names = ("workload", "dataset", "subset", "holdout", "public_rows")
        return tuple(map(self.setting, names))

    @property
    def by_loss(self) -> bool:
        """Whether its workload has no accuracy: then scores are losses, the lowest is the best."""
        return bool(self.done) and not self.numbers(lambda run: run.accuracy)

    @property
    def scores(self) -> list[float]:
        """Final accuracies, or losses, of the seeds."""
        by_loss = self.by_loss
        return self.numbers(lambda run: run.summary["loss"] if by_loss else run.accuracy)

    @property
    def scale(self) -> float:
        """From a score to the number that is shown: accuracies in percent, losses as they are."""
        return 1.0 if self.by_loss else 100.0

    @property
    def mean(self) -> float | None:
        return _mean(self.scores)

    @property
    def sd(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.scores) if len(self.done) > 1 else None

    @property
    def height(self) -> float:
        """The mean as it is shown."""
        return self.scale * (self.mean or 0.0)

    @property
    def spread(self) -> float:
        """The standard deviation as it is shown."""
        return self.scale * (self.sd or 0.0)

    @property
    def deficit(self) -> float:
        """Of which the best line has the lowest: the mean loss, or the accuracy below 0."""
        return self.height if self.by_loss else -self.height

    @property
    def chance(self) -> Chance | None:
        """None if nothing is done, or the accuracy of guessing is not on record."""
        return self.done[0].chance if self.done else None

    @property
    def standard_error(self) -> float | None:
        return None if self.chance is None else standard_error(self.scores, self.chance)

    @property
    def beats_chance(self) -> bool | None:
        return None if self.chance is None else beats_chance(self.scores, self.chance)

    @property
    def private(self) -> bool | None:
        """Whether every finished run is private."""
        return all(run.private for run in self.done) if self.done else None

    @property
    def epsilon_target(self) -> float | None:
        return self.runs[0].epsilon_target

    @property
    def epsilon(self) -> float | None:
        """The largest epsilon of its runs; inf if nothing is claimed."""
        return max(self.numbers(lambda run: run.epsilon_max), default=None)

    @property
    def bounded(self) -> bool:
        """Whether its epsilon is finite."""
        return self.epsilon is not None and math.isfinite(self.epsilon)

    @property
    def epsilon_outside(self) -> float | None:
        """As ``epsilon``, against a reader of the weights alone."""
        return max(self.numbers(lambda run: run.epsilon_outside), default=None)

    def numbers(self, of: Callable[[Result], float | None]) -> list[float]:
        """A number of each finished run; none if one of them has none on record."""
        found = [float(value) for run in self.done if (value := of(run)) is not None]
        return found if len(found) == len(self.done) else []

    def mean_of(self, name: str) -> float | None:
        """Mean of a number in summary.json; None where it may not be seen (trust=server)."""
        return _mean(self.numbers(lambda run: run.summary.get(name)))

    @property
    def training_seconds(self) -> float | None:
        """In which clients trained; the rest is a cell's start, accounting and evaluation."""
        return _mean(self.numbers(lambda run: run.summary.get("seconds", {}).get("training")))

    @property
    def transfer(self) -> float | None:
        """Seconds on a link, mean over seeds; None if no link is given."""
        return _mean(self.numbers(lambda run: run.transfer))

    @property
    def uplink(self) -> float | None:
        """Payload bytes of a client in a round."""
        messages = sum(run.messages for run in self.done)
        sent = sum(run.summary.get("uplink_bytes", 0) for run in self.done)
        return sent / messages if messages else None

    @property
    def saved(self) -> float | None:
        """How many times smaller the payloads that are sent are than dense updates."""
        return self.compression("uplink")

    def compression(self, *ways: str) -> float | None:
        """Dense updates over payloads, in bytes of the directions ``uplink`` and ``downlink``."""
        dense, used = (
            sum(run.summary.get(f"{way}_{kind}", 0) for run in self.done for way in ways)
            for kind in ("bytes_dense", "bytes")
        )
        return dense / used if used else None

    @property
    def over_probe(self) -> float | None:
        """Mean accuracy minus that of the private linear probe."""
        return None if self.mean is None or self.probe is None else self.mean - self.probe

    @property
    def name(self) -> str:
        """Label with rank, sparsity and varied settings, for legends."""
        varied = {name: value for name, value in self.varied.items() if name not in SHORT}
        return self._called(self.label, SHORT, varied)

    @property
    def marked(self) -> str:
        """The name; one that is not private says so."""
        return self.name if self.private else f"{self.name}, {NOT_PRIVATE}"

    def family(self, axes: Sequence[str], *, marked: bool = False) -> str:
        """What it shares with the lines that differ in the settings ``axes`` alone."""
        varied = {name: value for name, value in self.varied.items() if name not in axes}
        if self.epsilon_target is not None:
            varied["epsilon"] = self.epsilon_target
        label = f"{self.label}, {NOT_PRIVATE}" if marked and self.private is False else self.label
        return self._called(label, SHORT.keys() - self.varied.keys(), varied)

    def _called(self, label: str, short: Iterable[str], varied: dict[str, Any]) -> str:
        own = {name: self.setting(name) for name in SHORT if name in short}
        words = [
            f"{SHORT[name]} {value_words(value)}"
            for name, value in own.items()
            if value is not None and (name, value) != ("rank", 0)
        ]
        words += [f"{name} {value_words(value)}" for name, value in varied.items()]
        words += [self.unit.level] if self.unit.level and "unit" not in self.varied else []
        return f"{label} ({', '.join(words)})" if words else label


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def lines(results: Iterable[Result]) -> list[Line]:
    """Results by group: epsilon targets ascending, no target last, then the best mean first.

    Unfinished ones are the last.
    """
    groups = grouped(results, lambda run: run.group or (run.name,))
    found = [Line(runs=tuple(runs)) for runs in groups.values()]
    probes: dict[tuple[Any, ...], float] = {}
    for line in found:
        if line.method == PROBE and line.mean is not None and line.private and not line.by_loss:
            probes[_rivals(line)] = max(line.mean, probes.get(_rivals(line), 0.0))
    compared = [
        line
        if line.method == PROBE or line.by_loss
        else replace(line, probe=probes.get(_rivals(line)))
        for line in found
    ]
    return sorted(compared, key=order)


def _rivals(line: Line) -> tuple[Any, ...]:
    """What a line shares with the probe that it is compared with."""
    return line.task, line.unit.name, line.epsilon_target


def order(line: Line) -> tuple[Any, ...]:
    """The place of a line in a table."""
    target = math.inf if line.epsilon_target is None else line.epsilon_target
    return (target, line.mean is None, line.deficit, line.name)


def in_legend_order(table: Iterable[Line]) -> list[Line]:
    """Lines in the order of every legend: by method, then by name, the smallest epsilon first."""
    return sorted(table, key=lambda line: (canonical(line.method), line.name, order(line)))


def shown(line: Line, value: float) -> str:
    """A score for people: percent with one decimal, or a loss."""
    return f"{value:.4g}" if line.by_loss else f"{line.scale * value:.1f}"


def score_words(line: Line) -> str:
    """The mean of a finished line, with its standard deviation over seeds."""
    assert line.mean is not None
    return shown(line, line.mean) + ("" if line.sd is None else f" ± {shown(line, line.sd)}")


def measured(table: Iterable[Line]) -> str:
    """What the scores of these lines are, for axes and columns."""
    return "test loss" if any(line.by_loss for line in table) else "test accuracy, %"


def value_words(value: Any) -> str:
    """A varied value for people."""
    return f"{value:g}" if isinstance(value, float) else str(value)
