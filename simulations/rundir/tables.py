"""The tables of a run, appended to after each round: bytes.csv, rounds.csv and TensorBoard's events."""

from collections.abc import Mapping
from typing import Any

from fedlsg.accounting import Spread
from simulations.rundir import messages, tensorboard
from simulations.rundir.files.journal import Journal
from simulations.rundir.row import HEADER, Row
from simulations.rundir.rundir import RunDir
from strategies.federation.report import RoundReport


class Tables:
    """The three files, and how far a checkpoint vouches for them.

    A crash between ``append`` and the next checkpoint leaves lines that the checkpoint does not know; ``cut`` removes
    them.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._rounds = Journal(run.rounds, HEADER)
        self._messages = Journal(run.messages, messages.HEADER)
        self._events_size = 0

    def append(self, report: RoundReport, row: Row) -> None:
        """Add a round: its messages, its row, its events, in this order."""
        self.append_messages(report)
        self._rounds.append(row.line)
        self._events_size = tensorboard.append(self._run.path, row)

    def append_messages(self, report: RoundReport) -> None:
        """Add only the messages: the pruning round has no row."""
        self._messages.append(messages.lines_of(report))

    def marks(self) -> dict[str, Any]:
        """What a checkpoint holds of the tables: lengths, and the digests of the two that are read again."""
        return {"rounds": self._rounds.mark(), "messages": self._messages.mark(), "events": self._events_size}

    def cut(self, marks: Mapping[str, Any]) -> None:
        """Go back to a checkpoint's marks. Raises DamagedError where a table differs from what was written."""
        self._rounds.cut(marks["rounds"])
        self._messages.cut(marks["messages"])
        self._events_size = marks["events"]

    def cut_events(self) -> None:
        """Cut TensorBoard's events, too, or write them again from the rows."""
        tensorboard.cut(self._run.path, self._events_size, [Row.parse(row) for row in self._run.read_rounds()])


def row_of(report: RoundReport, *, accuracy: float | None, loss: float | None, spent: Spread) -> Row:
    """The row of a round; accuracy and loss are None in rounds that were not evaluated."""
    return Row(
        round=report.round,
        accuracy=accuracy,
        loss=loss,
        epsilon_max=spent.largest,
        epsilon_median=spent.median,
        uplink_bytes=report.uplink_bytes,
        downlink_bytes=report.downlink_bytes,
        uplink_bytes_wire=report.uplink_bytes_wire,
        downlink_bytes_wire=report.downlink_bytes_wire,
        uplink_messages=report.uplink_messages,
        downlink_messages=report.downlink_messages,
        seconds=round(report.seconds, 4),
        asked=" ".join(map(str, report.asked)),
        answered=" ".join(map(str, report.answered)),
        rejected=" ".join(map(str, sorted(report.rejected))),
        reasons=report.reasons,
    )
