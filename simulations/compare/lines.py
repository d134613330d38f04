"""Means over seeds: runs that differ in their seed only are one line.

An accuracy is mean ± sample standard deviation over seeds, on the public test split. Its standard error, and whether
it is better than guessing, are those of ``workloads.chance``.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedlsg.setting.units import Unit, unit_in
from simulations.rundir.results import Result
from simulations.workloads.base.split import Chance, beats_chance, standard_error

PROBE = "linear-probe"


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
    def unit(self) -> str:
        """The name of what the epsilon protects."""
        return self.of_unit.name

    @property
    def of_unit(self) -> Unit:
        """What the epsilon protects."""
        return unit_in({"unit": self.setting("unit")})

    @property
    def task(self) -> tuple[Any, ...]:
        """What lines need in common to be compared: the evaluated rows of one workload."""
        return tuple(self.setting(name) for name in ("workload", "dataset", "subset", "holdout", "public_rows"))

    @property
    def accuracies(self) -> list[float]:
        return [run.accuracy for run in self.done if run.accuracy is not None]

    @property
    def by_loss(self) -> bool:
        """Whether the workload has no accuracy: then scores are losses, and the lowest is the best."""
        return bool(self.done) and not self.accuracies

    @property
    def scores(self) -> list[float]:
        """Final accuracies, or losses, of the seeds."""
        return [float(run.summary["loss"]) for run in self.done] if self.by_loss else self.accuracies

    @property
    def scale(self) -> float:
        """From a score to the number that is shown: accuracies in percent, losses as they are."""
        return 1.0 if self.by_loss else 100.0

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.scores) if self.done else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.scores) if len(self.done) > 1 else None

    @property
    def chance(self) -> Chance | None:
        return self.done[0].chance if self.done else None

    @property
    def standard_error(self) -> float | None:
        return None if self.chance is None else standard_error(self.accuracies, self.chance)

    @property
    def beats_chance(self) -> bool | None:
        """None if nothing is done, or the accuracy of guessing is not on record."""
        return None if self.chance is None else beats_chance(self.accuracies, self.chance)

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
        return max((run.epsilon_max for run in self.done if run.epsilon_max is not None), default=None)

    def _of_all(self, of: Callable[[Result], float | None]) -> list[float]:
        """A number of each finished run; none if one has none on record."""
        found = [value for run in self.done if (value := of(run)) is not None]
        return found if len(found) == len(self.done) else []

    @property
    def epsilon_outside(self) -> float | None:
        """The largest epsilon of its runs against a reader of the weights alone; None if a run has none on record."""
        return max(self._of_all(lambda run: run.epsilon_outside), default=None)

    @property
    def rho(self) -> float | None:
        """Norm of a step's noise over the clip norm, mean over seeds; None if a run has none on record."""
        return _mean(self._of_all(lambda run: run.summary.get("rho")))

    @property
    def uplink(self) -> float | None:
        """Payload bytes of a client in a round."""
        messages = sum(run.messages for run in self.done)
        return sum(run.summary.get("uplink_bytes", 0) for run in self.done) / messages if messages else None

    def mean_of(self, name: str) -> float | None:
        """Mean over finished seeds of a number in summary.json; None where it may not be seen (trust=server)."""
        return _mean([run.summary[name] for run in self.done if name in run.summary])

    @property
    def total_uplink(self) -> float | None:
        """Payload bytes of a whole run, mean over seeds."""
        return self.mean_of("uplink_bytes")

    @property
    def total_downlink(self) -> float | None:
        """As ``total_uplink``, to the clients."""
        return self.mean_of("downlink_bytes")

    @property
    def transfer(self) -> float | None:
        """Seconds on a link, mean over seeds; None if no link is given."""
        return _mean(self._of_all(lambda run: run.transfer))

    @property
    def saved(self) -> float | None:
        """How many times smaller the payloads are than dense updates."""
        up = sum(run.summary.get("uplink_bytes", 0) for run in self.done)
        return sum(run.summary["uplink_bytes_dense"] for run in self.done) / up if up else None

    @property
    def seconds(self) -> float | None:
        return self.mean_of("wall_seconds")

    @property
    def training_seconds(self) -> float | None:
        """Seconds in which clients trained, mean over seeds; the rest is a cell's start, accounting and evaluation."""
        return _mean(self._of_all(lambda run: run.summary.get("seconds", {}).get("training")))

    @property
    def over_probe(self) -> float | None:
        """Mean accuracy minus that of the private linear probe."""
        if self.mean is None or self.probe is None or self.method == PROBE or self.by_loss:
            return None
        return self.mean - self.probe

    @property
    def name(self) -> str:
        """Label with rank, sparsity and varied settings, for legends."""
        own = [f"r {self.setting('rank')}"] if self.setting("rank") else []
        own += [f"p {self.setting('sparsity'):g}"] if self.setting("sparsity") is not None else []
        others = {name: value for name, value in self.varied.items() if name not in ("rank", "sparsity")}
        own += [f"{name} {value_words(value)}" for name, value in others.items()]
        own += [self.of_unit.level] if self.of_unit.level and "unit" not in self.varied else []
        return f"{self.label} ({', '.join(own)})" if own else self.label


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def lines(results: Iterable[Result]) -> list[Line]:
    """Results by group: epsilon targets ascending, no target last, the best mean first, unfinished ones last."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(result.group or (result.name,), []).append(result)
    found = [Line(runs=tuple(runs)) for runs in groups.values()]
    probes: dict[tuple[Any, ...], float] = {}
    for line in found:
        if line.method == PROBE and line.mean is not None and line.private and not line.by_loss:
            target = (line.task, line.unit, line.epsilon_target)
            probes[target] = max(line.mean, probes.get(target, 0.0))
    found = [Line(runs=line.runs, probe=probes.get((line.task, line.unit, line.epsilon_target))) for line in found]
    return sorted(found, key=order)


def order(line: Line) -> tuple[Any, ...]:
    """The place of a line in a table."""
    target = math.inf if line.epsilon_target is None else line.epsilon_target
    score = line.mean or 0.0
    return (target, line.mean is None, score if line.by_loss else -score, line.name)


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


def is_number(value: Any) -> bool:
    """Whether a varied value is a number: True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
