"""The tables of a run: bytes.csv, rounds.csv and TensorBoard's events, which grow in each round."""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

from fedlsg import bounded
from fedlsg.accounting import Spread
from fedlsg.simulations.storage.declared import AT_SERVER, Released
from fedlsg.simulations.storage.journal import Journal, Marks
from fedlsg.simulations.storage.messages.byte_lines import LINES_HEADER, lines_of
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.tensorboard_events import append_events, cut_events
from fedlsg.strategies.protocol.round_report import RoundReport


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Columns of rounds.csv in runs with a simulated clock.

    simulated_clock: seconds from the run's start to the round's end.
    dropped: clients that left before they trained, space-separated.
    late: clients whose reply came too late, space-separated.
    """

    simulated_clock: float
    dropped: str
    late: str

    @classmethod
    def of(cls, report: RoundReport) -> "Simulated | None":
        """The columns of a round; None without a clock."""
        if report.simulated_clock is None:
            return None
        return cls(
            simulated_clock=round(report.simulated_clock, 6),
            dropped=" ".join(map(str, report.dropped)),
            late=" ".join(map(str, report.late)),
        )


@dataclass(frozen=True, kw_only=True)
class Times:
    """Columns of rounds.csv: the parts of the server's time for a round.

    training_seconds: waiting for the clients, which train, until the last reply.
    communication_seconds: making and checking messages, which is the rest of ``seconds``.
    accounting_seconds: writing ledgers and computing epsilon.
    evaluation_seconds: the test split.
    """

    training_seconds: float
    communication_seconds: float
    accounting_seconds: float
    evaluation_seconds: float


SIMULATED = tuple(field.name for field in fields(Simulated))
"""Columns of runs with a simulated clock."""
TIMES = tuple(field.name for field in fields(Times))
"""Columns with the parts of the server's time."""
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
"""Columns of numbers by TensorBoard's tag."""
CLIENT_LISTS = ("asked", "answered", "rejected", "dropped", "late")
"""Columns with lists of clients; TensorBoard gets the length of a list."""
Metrics = Mapping[str, float | None]
"""The workload's own metrics by name; None in rounds that were not evaluated."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One round, as a line of rounds.csv.

    round: its number.
    accuracy, loss: on the test split; None in rounds that were not evaluated.
    epsilon_max, epsilon_median: over the clients, up to this round.
    uplink_bytes, downlink_bytes: of packed payloads.
    uplink_bytes_wire, downlink_bytes_wire: of whole messages.
    uplink_messages, downlink_messages: their number.
    seconds: time of the round.
    asked: the clients that were selected, space-separated.
    answered: those that replied.
    rejected: those whose payload was rejected.
    reasons: why, one line each, cut to a bounded length.
    simulated: columns of the simulated clock; None without one.
    times: columns of the server's time; None in tables of format 1.
    metrics: a column for each of the workload's own metrics, at the end.
    only: the columns that may be seen (``Released.rows``), None for all; others are not written,
        and 0 or empty here.
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
    times: Times | None = None
    metrics: Metrics = field(default_factory=dict)
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
        declared = (*FIELDS, *SIMULATED, *TIMES)
        metric_texts = {name: text for name, text in row.items() if name not in declared}
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
        """Whether the row has the columns that tell who took part, how many, and for how long."""
        return self.only is None

    @property
    def columns(self) -> dict[str, Any]:
        """The row by column, in the order of rounds.csv."""
        values = {
            name: getattr(self, name) for name in FIELDS if self.only is None or name in self.only
        }
        for part in (self.times, self.simulated):
            if part is not None:
                values |= vars(part)
        return {**values, **self.metrics}

    @property
    def numbers(self) -> dict[str, float]:
        """The measured numbers of the round by column; for a list of clients, its length."""
        numbers = {}
        for name, value in self.columns.items():
            if name in CLIENT_LISTS:
                numbers[name] = float(len(value.split()))
            elif name not in ("round", "reasons") and value is not None:
                numbers[name] = float(value)
        return numbers

    @property
    def line(self) -> str:
        """The row as a line of rounds.csv."""
        return _csv_line(self.columns.values())

    @property
    def scalars(self) -> dict[str, float]:
        """The measured, finite numbers of the round by TensorBoard's tag."""
        return scalars_of(self.columns)


FIELDS = tuple(
    field.name
    for field in fields(Row)
    if field.name not in ("simulated", "times", "metrics", "only")
)
"""Columns of every rounds.csv without restrictions (``Released.rows``)."""


def scalars_of(columns: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row's columns by TensorBoard's tag.

    Left out are numbers that were not measured, and an infinite epsilon (no privacy).
    """
    declared = {*FIELDS, *SIMULATED, *TIMES}
    values = {
        **{tag: columns[name] for tag, name in TAGS.items() if name in columns},
        **{
            f"clients/{name}": len(columns[name].split())
            for name in CLIENT_LISTS
            if name in columns
        },
        **{f"test/{name}": value for name, value in columns.items() if name not in declared},
    }
    return {
        tag: float(value)
        for tag, value in values.items()
        if value is not None and math.isfinite(value)
    }


class Tables:
    """The three tables of one run. ``cut`` removes what a crash left after the last checkpoint."""

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
        simulated_clock: whether the run has one, so that rounds.csv has its columns.
        released: the columns that may be seen.
        """
        self._run = run
        self._writes_wall_time = released.counted
        more = list(metrics)
        if released.counted:
            more = [*TIMES, *(SIMULATED if simulated_clock else ()), *more]
        self._rounds = Journal(run.rounds, rows_header(more, released))
        # a resumed run of format 1 continues its table, which has no times
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
        """Add only the messages, for the pruning round, which has no row; nothing without any."""
        if lines := lines_of(report):
            self._messages.append(lines)

    def marks(self) -> Marks:
        """The marks for a checkpoint: of two journals, and the length of the events."""
        return {
            "rounds": self._rounds.mark(),
            "messages": self._messages.mark(),
            "events": self._events_size,
        }

    def cut(self, marks: Marks) -> None:
        """Go back to a checkpoint's marks; ``cut_events`` must follow.

        Raises DamagedError if rounds.csv or bytes.csv differs from what was written.
        """
        self._rounds.cut(marks["rounds"])
        self._messages.cut(marks["messages"])
        self._events_size = marks["events"]

    def cut_events(self) -> None:
        """Cut TensorBoard's events to the mark, or write them again from the rows."""
        rows = [Row.parse(row) for row in self._run.read_rounds()]
        rounds = [(row.round, row.scalars) for row in rows]
        cut_events(self._run.path, self._events_size, rounds, wall_time=self._writes_wall_time)


def _released_columns(row: Mapping[str, str]) -> frozenset[str] | None:
    """``only`` of a row: a table of trust=server is recognised by having exactly its columns."""
    written = frozenset(FIELDS).intersection(row)
    return AT_SERVER.rows if written == AT_SERVER.rows else None


def _parsed(fields_of: type, names: Iterable[str], row: Mapping[str, str]) -> dict[str, Any]:
    """These columns of a row, in the types that the class declares for its fields."""
    types = get_type_hints(fields_of)
    return {name: _parse(types[name], row[name]) for name in names}


def _parse(field_type: Any, text: str) -> Any:
    if field_type == float | None:
        return float(text) if text else None
    return bounded.whole(text) if field_type is int else field_type(text)


def _csv_line(values: Iterable[object]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(values)
    return text.getvalue()


def rows_header(more: Iterable[str], released: Released) -> str:
    """The first line of rounds.csv; ``more``: columns that not every run has."""
    columns = [name for name in FIELDS if released.rows is None or name in released.rows]
    return _csv_line([*columns, *more])
