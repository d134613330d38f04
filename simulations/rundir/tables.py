"""The tables of a run, appended to after each round: bytes.csv, rounds.csv and TensorBoard's events.

bytes.csv has one line a message, at the three levels of ``Sent``, in the order in which the server counted them: a
round's announcements, then its replies. Round 0 is the pruning round, if there is one. The lines of a round add up to
its row of rounds.csv, all lines to summary.json.

A checkpoint keeps the ``mark`` of both: length and digest. Bytes after the mark were written by a process that ended
before its next checkpoint, and are cut. Bytes before it must have the digest of the mark.
"""

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from fedlsg.accounting import Spread
from fedlsg.owner_only import open_file
from simulations.rundir import tensorboard
from simulations.rundir.files.atomic import naming
from simulations.rundir.files.sealed import DamagedError
from simulations.rundir.released import AT_SERVER, EVERYTHING, Released
from simulations.rundir.rundir import RunDir
from simulations.rundir.simulated import SIMULATED, TIMES, Simulated, Times
from strategies.federation.report import Direction, RoundReport

CHUNK = 2**20
DIRECTIONS: dict[str, Direction] = {"down": "down", "up": "up"}
BYTES = ("uplink_bytes", "downlink_bytes", "uplink_bytes_wire", "downlink_bytes_wire")
"""Columns of rounds.csv that the lines of bytes.csv add up to."""
SUMS = (*BYTES, "uplink_messages", "downlink_messages")
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
COUNTED = ("asked", "answered", "rejected", "dropped", "late")
"""Columns with lists of clients, which are counted for TensorBoard."""
NO_METRICS: Mapping[str, float | None] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of rounds.csv. Client lists are space-separated; reasons are one line each, cut to a bounded length.

    ``only``: the columns that may be seen, see ``released``; the others are not written, and 0 or empty here.
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
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """The workload's own metrics: a column each, at the end; None in rounds that were not evaluated."""
    only: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        report: RoundReport,
        *,
        accuracy: float | None,
        loss: float | None,
        spent: Spread,
        metrics: Mapping[str, float | None] = NO_METRICS,
        released: Released = EVERYTHING,
        times: Times | None = None,
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
        own = {name: text for name, text in row.items() if name not in (*FIELDS, *SIMULATED, *TIMES)}
        metrics = {name: float(text) if text else None for name, text in own.items()}
        simulated = Simulated(**_parsed(Simulated, SIMULATED, row)) if SIMULATED[0] in row else None
        times = Times(**_parsed(Times, TIMES, row)) if TIMES[0] in row else None
        only = AT_SERVER.rows if frozenset(row).difference(own, SIMULATED, TIMES) == AT_SERVER.rows else None
        names = [name for name in FIELDS if only is None or name in only]
        return cls(**_parsed(cls, names, row), simulated=simulated, times=times, metrics=metrics, only=only)

    @property
    def counted(self) -> bool:
        """Whether the row has what tells who, or how many, took part, and for how long."""
        return self.only is None

    @property
    def columns(self) -> dict[str, Any]:
        """The row by column, as rounds.csv and callbacks have it."""
        more = [vars(one) for one in (self.times, self.simulated) if one is not None]
        own = {name: getattr(self, name) for name in FIELDS if self.only is None or name in self.only}
        return {**own, **{name: value for one in more for name, value in one.items()}, **self.metrics}

    @property
    def numbers(self) -> dict[str, float]:
        """Its numbers by column, without those that were not measured; lists of clients as their lengths."""
        lists = {name: len(text.split()) for name, text in self.columns.items() if name in COUNTED}
        found = {name: value for name, value in self.columns.items() if name not in ("round", "reasons")} | lists
        return {name: float(value) for name, value in found.items() if value is not None}

    @property
    def line(self) -> str:
        """The row as a line of rounds.csv."""
        return _csv_line(self.columns.values())

    @property
    def scalars(self) -> dict[str, float]:
        """Its numbers by TensorBoard's tag; without those that were not measured or are infinite (no privacy)."""
        return scalars_of(self.columns)


def scalars_of(columns: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row's columns by TensorBoard's tag, see ``Row.scalars``."""
    known = {*FIELDS, *SIMULATED, *TIMES}
    values = {
        **{tag: columns[name] for tag, name in TAGS.items() if name in columns},
        **{f"clients/{name}": len(columns[name].split()) for name in COUNTED if name in columns},
        **{f"test/{name}": value for name, value in columns.items() if name not in known},
    }
    return {tag: float(value) for tag, value in values.items() if value is not None and math.isfinite(value)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of bytes.csv."""

    round: int
    client: int
    direction: Direction
    values_bytes: int
    payload_bytes: int
    wire_bytes: int


def lines_of(report: RoundReport) -> str:
    """The lines of a round's messages."""
    return "".join(
        f"{report.round},{client},{direction},{values},{payload},{wire}\n"
        for client, direction, values, payload, wire in report.sent
    )


def read_lines(path: Path) -> Iterator[Line]:
    """The complete lines of a bytes.csv; without a last one that a crash left incomplete.

    Raises ValueError, naming the file, for another kind of file.
    """
    damaged = f"{path} is damaged, or of another version: restore it from a copy"
    with path.open(newline="") as file:
        first = file.readline()
        if first != LINES_HEADER:
            if first.endswith("\n"):
                raise ValueError(damaged)
            return
        for text in file:
            if not text.endswith("\n"):
                return
            try:
                round, client, direction, values, payload, wire = text.rstrip("\r\n").split(",")
                yield Line(
                    round=int(round), client=int(client), direction=DIRECTIONS[direction], values_bytes=int(values),
                    payload_bytes=int(payload), wire_bytes=int(wire),
                )  # fmt: skip
            except (KeyError, ValueError):
                raise ValueError(damaged) from None


class Journal:
    """A file that only grows, a header and then lines; and the digest of every byte that the run has written to it."""

    def __init__(self, path: Path, header: str) -> None:
        self.path, self.header = path, header
        self.size, self._sha = 0, hashlib.sha256()

    def append(self, text: str) -> None:
        """Add text in one write; the first text after the header."""
        data = (text if self.size else self.header + text).encode()
        with naming(self.path), open(self.path, "ab" if self.size else "wb", opener=open_file) as file:
            file.write(data)
        self._sha.update(data)
        self.size += len(data)

    def mark(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"bytes": self.size, "sha256": self._sha.hexdigest()}

    def cut(self, mark: Mapping[str, Any]) -> None:
        """Go back to a mark. Raises DamagedError if the file differs up to there."""
        sha = verify(self.path, mark)
        if mark["bytes"]:
            os.truncate(self.path, mark["bytes"])
        else:
            self.path.unlink(missing_ok=True)
        self.size, self._sha = mark["bytes"], sha


def verify(path: Path, mark: Mapping[str, Any]) -> "hashlib._Hash":
    """The digest's state at a mark. Raises DamagedError if the file differs up to there."""
    sha, left = hashlib.sha256(), int(mark["bytes"])
    if left:
        try:
            with path.open("rb") as file:
                while left and (data := file.read(min(CHUNK, left))):
                    sha.update(data)
                    left -= len(data)
        except FileNotFoundError:
            pass
    if left or sha.hexdigest() != mark["sha256"]:
        why = "it lacks rounds that the checkpoint holds" if left else "it is not what was written"
        raise DamagedError(f"{path} is damaged: {why}; restore it from a copy, or start a new run")
    return sha


class Tables:
    """The three files. Lines that a crash left after the last checkpoint are removed by ``cut``."""

    def __init__(
        self, run: RunDir, metrics: Iterable[str] = (), *, timed: bool = False, released: Released = EVERYTHING
    ) -> None:
        self._run, self._timed = run, released.counted
        more = [*((*TIMES, *(SIMULATED if timed else ())) if released.counted else ()), *metrics]
        self._rounds = Journal(run.rounds, rows_header(more, released))
        self._messages = Journal(run.messages, LINES_HEADER)
        self._events_size = 0
        self._has_times = released.counted

    def append(self, report: RoundReport, row: Row) -> None:
        """Add a round: its messages, its row, its events, in this order."""
        self.append_messages(report)
        self._rounds.append((row if self._has_times else replace(row, times=None)).line)
        self._events_size = tensorboard.append(self._run.path, row.round, row.scalars, timed=self._timed)

    def append_messages(self, report: RoundReport) -> None:
        """Add only the messages: the pruning round has no row. Without messages that may be seen there is no file."""
        if lines := lines_of(report):
            self._messages.append(lines)

    def marks(self) -> dict[str, Any]:
        """What a checkpoint holds of the tables: lengths, and the digests of the two that are read again."""
        return {"rounds": self._rounds.mark(), "messages": self._messages.mark(), "events": self._events_size}

    def cut(self, marks: Mapping[str, Any]) -> None:
        """Go back to a checkpoint's marks. Raises DamagedError where a table differs from what was written."""
        self._rounds.cut(marks["rounds"])
        if self._rounds.size:  # a file of an earlier version stays as it began
            with self._run.rounds.open(newline="") as file:
                self._has_times = TIMES[0] in file.readline()
        self._messages.cut(marks["messages"])
        self._events_size = marks["events"]

    def cut_events(self) -> None:
        """Cut TensorBoard's events, too, or write them again from the rows."""
        rows = [Row.parse(row) for row in self._run.read_rounds()]
        rounds = [(row.round, row.scalars) for row in rows]
        tensorboard.cut(self._run.path, self._events_size, rounds, timed=self._timed)


def _parsed(of: type, names: Iterable[str], row: Mapping[str, str]) -> dict[str, Any]:
    """The columns of a row in the types of the fields that they are."""
    kinds = get_type_hints(of)
    return {name: _parse(kinds[name], row[name]) for name in names}


def _parse(kind: Any, text: str) -> Any:
    if kind == float | None:
        return float(text) if text else None
    return kind(text)


def _csv_line(values: Iterable[object]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(values)
    return text.getvalue()


def rows_header(more: Iterable[str] = (), released: Released = EVERYTHING) -> str:
    """The first line of rounds.csv; ``more``: columns that not every run has."""
    return _csv_line([*(name for name in FIELDS if released.rows is None or name in released.rows), *more])


FIELDS = tuple(field.name for field in fields(Row) if field.name not in ("simulated", "times", "metrics", "only"))
"""Columns of every rounds.csv of which everything may be seen."""
LINES_HEADER = ",".join(field.name for field in fields(Line)) + "\n"
