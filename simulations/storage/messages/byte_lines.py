"""bytes.csv: one line for each message, at the three levels of ``Sent``.

Lines are in the order in which the server counted the messages: a round's announcements, then its
replies. Round 0 is the pruning round, if there is one. The lines of a round add up to its row of
rounds.csv, all lines to summary.json.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from fedlsg.bounded import whole
from fedlsg.strategies.protocol.round_report import Direction, RoundReport

DIRECTIONS: dict[str, Direction] = {"down": "down", "up": "up"}
"""Turns a text into the Literal; another text is a KeyError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One message, as a line of bytes.csv.

    round: 0 for the pruning round.
    client: its number.
    direction: "down" to the client, "up" to the server.
    values_bytes, payload_bytes, wire_bytes: the three levels of ``Sent``.
    """

    round: int
    client: int
    direction: Direction
    values_bytes: int
    payload_bytes: int
    wire_bytes: int


LINES_HEADER = ",".join(field.name for field in fields(Line)) + "\n"
"""The first line of bytes.csv."""


def lines_of(report: RoundReport) -> str:
    """The text that a round adds to bytes.csv, in the order of ``Line``."""
    return "".join(
        f"{report.round},{client},{direction},{values},{payload},{wire}\n"
        for client, direction, values, payload, wire in report.sent
    )


def read_lines(path: Path) -> Iterator[Line]:
    """The complete lines of a bytes.csv, without a last line that a crash left incomplete.

    Raises ValueError, naming the file, for another kind of file.
    """
    damaged = f"{path} is damaged, or of another version: restore it from a copy"
    with path.open(newline="", encoding="ascii", errors="replace") as file:
        first = file.readline(2 * len(LINES_HEADER))
        if first != LINES_HEADER:
            if not LINES_HEADER.startswith(first):
                raise ValueError(damaged)
            return  # empty, or a header that a crash left incomplete
        for text in file:
            if not text.endswith("\n"):
                return
            try:
                round, client, direction, values, payload, wire = text.rstrip("\r\n").split(",")
                yield Line(
                    round=whole(round),
                    client=whole(client),
                    direction=DIRECTIONS[direction],
                    values_bytes=whole(values),
                    payload_bytes=whole(payload),
                    wire_bytes=whole(wire),
                )
            except (KeyError, ValueError):
                raise ValueError(damaged) from None


def rounds_by_client(lines: Iterable[Line]) -> dict[int, int]:
    """In how many training rounds each client sent values; clients that sent none are left out."""
    sent = {
        (line.client, line.round)
        for line in lines
        if line.round and line.direction == "up" and line.values_bytes > 0
    }
    return dict(sorted(Counter(client for client, _ in sent).items()))
