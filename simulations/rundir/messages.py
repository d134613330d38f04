"""bytes.csv: one line a message, at the three levels of ``Sent``; rounds.csv has the sums.

Lines have the order in which the server counted them: a round's announcements, then its replies. Round 0 is the pruning
round, if there is one. The lines of a round add up to its row of rounds.csv, all lines to summary.json.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from strategies.federation.report import Direction, RoundReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of bytes.csv."""

    round: int
    client: int
    direction: Direction
    values_bytes: int
    payload_bytes: int
    wire_bytes: int


COLUMNS = tuple(field.name for field in fields(Line))
HEADER = ",".join(COLUMNS) + "\n"
SUMS = ("uplink_bytes", "downlink_bytes", "uplink_bytes_wire", "downlink_bytes_wire")
"""Columns of rounds.csv that the lines of a round add up to."""
DIRECTIONS: dict[str, Direction] = {"down": "down", "up": "up"}


def lines_of(report: RoundReport) -> str:
    """The lines of a round's messages."""
    return "".join(
        f"{report.round},{client},{direction},{values},{payload},{wire}\n"
        for client, direction, values, payload, wire in report.sent
    )


def read(path: Path) -> Iterator[Line]:
    """The complete lines of a bytes.csv; without a last one that a crash left incomplete.

    Raises ValueError, naming the file, for another kind of file.
    """
    damaged = f"{path} is damaged, or of another version: restore it from a copy"
    with path.open(newline="") as file:
        first = file.readline()
        if first != HEADER:
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
