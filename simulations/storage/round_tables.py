"""The tables of a run, appended to after each round: bytes.csv, rounds.csv and TensorBoard's
events.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

from fedlsg import bounded
from fedlsg.accounting import Spread
from fedlsg.simulations.storage.declared import AT_SERVER, Released
from fedlsg.simulations.storage.journal import (
    LINES_HEADER,
    Journal,
    Marks,
    append_events,
    cut_events,
    lines_of,
)
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.protocol.round_report import RoundReport


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What rounds.csv says more of a run with a simulated clock: seconds since the run's start, at
    the round's end, and the clients that left before they trained or came late, space-separated.
    """

    simulated_clock: float
    dropped: str
    late: str

    @classmethod
    def of(cls, report: RoundReport) -> "Simulated | None":
        """Those of a round; None without a clock."""
        if report.simulated_clock is None:
            return None
        dropped, late = (" ".join(map(str, who)) for who in (report.dropped, report.late))
        return cls(simulated_clock=round(report.simulated_clock, 6), dropped=dropped, late=late)


@dataclass(frozen=True, kw_only=True)
class Times:
    """Where the server's time of a round went.

    ``training_seconds``: until the last reply was there, in which clients train.
    ``communication_seconds``: making and checking messages, which is the rest of ``seconds``.
    ``accounting_seconds``: ledgers and epsilon.
    ``evaluation_seconds``: the test split.
    """

    training_seconds: float
    communication_seconds: float
    accounting_seconds: float
    evaluation_seconds: float


SIMULATED = tuple(field.name for field in fields(Simulated))
"""Columns of runs with a simulated clock."""
TIMES = tuple(field.name for field in fields(Times))
"""Columns of where the server's time went."""
BYTE_COLUMNS = ("uplink_bytes", "downlink_bytes", "uplink_bytes_wire", "downlink_bytes_wire")
"""Columns of rounds.csv that the lines of bytes.csv add up to."""
SUMS = (*BYTE_COLUMNS, "uplink_messages", "downlink_messages")
"""Columns of rounds.csv that add up over rounds."""
TAGS = {
    "test/accuracy": "accuracy",
    "test/loss": "loss",
    "epsilon/max": "epsilon_max",
    "epsilon/median": "epsilon_median",
    "bytes/uplink": "uplink_bytes",
    "bytes/downlink": "downlink_bytes",
    "seconds": "seconds",
    "simulated_clock": "simulated_clock",
}
"""TensorBoard's tags of numbers."""
CLIENT_LISTS = ("asked", "answered", "rejected", "dropped", "late")
"""Columns with lists of clients, which are counted for TensorBoard."""
Metrics = Mapping[str, float | None]
"""The workload's own metrics by name; None in rounds that were not evaluated."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of rounds.csv. Client lists are space-separated; reasons are one line each, cut to a
    bounded length.

    ``only``: the columns that may be seen (``Released.rows``); the others are not written, and 0 or
    empty here.
    """

    round: int
    accuracy: float | None
    loss: float | None
    epsilon_max: float
    epsilon_median: float
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_bytes_wire: int = 0
    downlink_bytes_wire: int = 0
    uplink_messages: int = 0
    downlink_messages: int = 0
    seconds: float = 0.0
    asked: str = ""
    answered: str = ""
    rejected: str = ""
    reasons: str = ""
    simulated: Simulated | None = None
    """Columns of runs with a simulated clock, after the others."""
    times: Times | None = None
    """Columns of where the time went, before those of the clock."""
    metrics: Metrics = field(default_factory=dict)
    """The workload's own metrics: a column each, at the end; None in rounds that were not
    evaluated.
    """
    only: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        report: RoundReport,
        *,
        accuracy: float | None,
        loss: float | None,
        spent: Spread,
        metrics: Metrics,
        released: Released,
        times: Times,
    ) -> "Row":
        """The row of a round; accuracy and loss are None in rounds that were not evaluated."""
        counts: dict[str, Any] = {
            **{name: getattr(report, name) for name in SUMS},
            "seconds": round(report.seconds, 4),
            "asked": " ".join(map(str, report.asked)),
            "answered": " ".join(map(str, report.answered)),
            "rejected": " ".join(map(str, sorted(report.rejected))),
            "reasons": report.reasons,
            "simulated": Simulated.of(report),
            "times": times,
        }
        return cls(
            round=report.round,
            accuracy=accuracy,
            loss=loss,
            epsilon_max=spent.largest,
            epsilon_median=spent.median,
            metrics=metrics,
            only=released.rows,
            **(counts if released.counted else {}),
        )

    @classmethod
    def parse(cls, row: Mapping[str, str]) -> "Row":
        """A row of rounds.csv as it was written; raises KeyError or ValueError for another file."""
        known = (*FIELDS, *SIMULATED, *TIMES)
        metric_texts = {name: text for name, text in row.items() if name not in known}
        metrics = {name: float(text) if text else None for name, text in metric_texts.items()}
        simulated = Simulated(**_parsed(Simulated, SIMULATED, row)) if SIMULATED[0] in row else None
        times = Times(**_parsed(Times, TIMES, row)) if TIMES[0] in row else None
        only = _released_columns(row)
        names = [name for name in FIELDS if only is None or name in only]
        return cls(
            **_parsed(cls, names, row), simulated=simulated, times=times, metrics=metrics, only=only
        )

    @property
    def shows_participation(self) -> bool:
        """Whether the row has the columns that say who, or how many, took part, and for how
        long.
        """
        return self.only is None

    @property
    def columns(self) -> dict[str, Any]:
        """The row by column, as rounds.csv and callbacks have it."""
        more = [vars(part) for part in (self.times, self.simulated) if part is not None]
        values = {
            name: getattr(self, name) for name in FIELDS if self.only is None or name in self.only
        }
        return {
            **values,
            **{name: value for part in more for name, value in part.items()},
            **self.metrics,
        }

    @property
    def numbers(self) -> dict[str, float]:
        """Its numbers by column, without those that were not measured; lists of clients as their
        lengths.
        """
        lists = {
            name: len(text.split()) for name, text in self.columns.items() if name in CLIENT_LISTS
        }
        values = {
            name: value for name, value in self.columns.items() if name not in ("round", "reasons")
        } | lists
        return {name: float(value) for name, value in values.items() if value is not None}

    @property
    def line(self) -> str:
        """The row as a line of rounds.csv."""
        return _csv_line(self.columns.values())

    @property
    def scalars(self) -> dict[str, float]:
        """Its numbers by TensorBoard's tag; without those that were not measured or are infinite
        (no privacy).
        """
        return scalars_of(self.columns)


FIELDS = tuple(
    field.name
    for field in fields(Row)
    if field.name not in ("simulated", "times", "metrics", "only")
)
"""Columns of every rounds.csv of which everything may be seen."""


def scalars_of(columns: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row's columns by TensorBoard's tag, see ``Row.scalars``."""
    known = {*FIELDS, *SIMULATED, *TIMES}
    values = {
        **{tag: columns[name] for tag, name in TAGS.items() if name in columns},
        **{
            f"clients/{name}": len(columns[name].split())
            for name in CLIENT_LISTS
            if name in columns
        },
        **{f"test/{name}": value for name, value in columns.items() if name not in known},
    }
    return {
        tag: float(value)
        for tag, value in values.items()
        if value is not None and math.isfinite(value)
    }


class Tables:
    """The three files. Lines that a crash left after the last checkpoint are removed by ``cut``."""

    def __init__(
        self,
        run: RunDir,
        metrics: Iterable[str],
        *,
        simulated_clock: bool,
        released: Released,
    ) -> None:
        """The tables of a run, which may exist already.

        metrics: names of the workload's own metrics.
        simulated_clock: whether the run has one, and rounds.csv its columns.
        released: the columns that may be seen.
        """
        self._run = run
        self._writes_wall_time = released.counted
        more = list(metrics)
        if released.counted:
            more = [*TIMES, *(SIMULATED if simulated_clock else ()), *more]
        self._rounds = Journal(run.rounds, rows_header(more, released))
        # a table of format 1 goes on without the times
        self._has_time_columns = TIMES[0] in run.columns_of_rounds([*FIELDS, *more])
        self._messages = Journal(run.messages, LINES_HEADER)
        self._events_size = 0

    def append(self, report: RoundReport, row: Row) -> None:
        """Add a round: its messages, its row, its events, in this order."""
        self.append_messages(report)
        self._rounds.append((row if self._has_time_columns else replace(row, times=None)).line)
        self._events_size = append_events(
            self._run.path, row.round, row.scalars, wall_time=self._writes_wall_time
        )

    def append_messages(self, report: RoundReport) -> None:
        """Add only the messages: the pruning round has no row. Without messages that may be seen
        there is no file.
        """
        if lines := lines_of(report):
            self._messages.append(lines)

    def marks(self) -> Marks:
        """What a checkpoint holds of the tables: lengths, and the digests of the two that are read
        again.
        """
        return {
            "rounds": self._rounds.mark(),
            "messages": self._messages.mark(),
            "events": self._events_size,
        }

    def cut(self, marks: Marks) -> None:
        """Go back to a checkpoint's marks. Raises DamagedError where a table differs from what was
        written.
        """
        self._rounds.cut(marks["rounds"])
        self._messages.cut(marks["messages"])
        self._events_size = marks["events"]

    def cut_events(self) -> None:
        """Cut TensorBoard's events, too, or write them again from the rows."""
        rows = [Row.parse(row) for row in self._run.read_rounds()]
        rounds = [(row.round, row.scalars) for row in rows]
        cut_events(self._run.path, self._events_size, rounds, wall_time=self._writes_wall_time)


def _released_columns(row: Mapping[str, str]) -> frozenset[str] | None:
    """The columns that may be seen; None if all may. A file under trust=server has exactly these,
    and no other file has.
    """
    written = frozenset(FIELDS).intersection(row)
    return AT_SERVER.rows if written == AT_SERVER.rows else None


def _parsed(of: type, names: Iterable[str], row: Mapping[str, str]) -> dict[str, Any]:
    """The columns of a row in the types of the fields that they are."""
    kinds = get_type_hints(of)
    return {name: _parse(kinds[name], row[name]) for name in names}


def _parse(kind: Any, text: str) -> Any:
    if kind == float | None:
        return float(text) if text else None
    return bounded.whole(text) if kind is int else kind(text)


def _csv_line(values: Iterable[object]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(values)
    return text.getvalue()


def rows_header(more: Iterable[str], released: Released) -> str:
    """The first line of rounds.csv; ``more``: columns that not every run has."""
    return _csv_line(
        [*(name for name in FIELDS if released.rows is None or name in released.rows), *more]
    )
