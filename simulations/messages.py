"""bytes.csv: one line a message, at three levels (strategies/sent.py), beside the sums in rounds.csv.

Lines come in the order in which the server counted them: a round's announcements, then its replies. Round 0 is the
pruning round, where there is one. The lines of a round add up to its row of rounds.csv, all lines to summary.json.
"""

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from simulations.disk_space import naming
from simulations.outbox import write_atomically
from simulations.row import Row
from strategies.report import RoundReport
from strategies.sent import Direction


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
ALL = -1
DIRECTIONS: dict[str, Direction] = {"down": "down", "up": "up"}


def append(path: Path, report: RoundReport) -> None:
    """Add the messages of a round in one write."""
    lines = "".join(
        f"{report.round},{client},{direction},{values},{payload},{wire}\n"
        for client, direction, values, payload, wire in report.sent
    )
    with naming(path), path.open("a", newline="") as file:
        file.write(lines if file.tell() else HEADER + lines)


def read(path: Path) -> Iterator[Line]:
    """The whole lines of a bytes.csv, one after the other; a last one that a crash tore is left out.

    Raises ValueError, naming the file, for one that is none of ours.
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


def cut(path: Path, rows: Iterable[Row], totals: Mapping[str, int], *, pruning: int, last: int) -> None:
    """Keep the lines that the checkpoint holds: ``pruning`` of round 0 (or ALL), and of rounds 1 to ``last``.

    Raises ValueError where the lines of a round do not add up to its one of ``rows``, or all of them to ``totals``.
    """
    kept = io.StringIO(newline="")
    kept.write(HEADER)
    writer = csv.writer(kept, lineterminator="\n")
    sums: dict[int, dict[str, int]] = {}
    of_round_0 = itertools.count()
    for line in read(path) if path.exists() else ():
        if 1 <= line.round <= last or (line.round == 0 and (pruning == ALL or next(of_round_0) < pruning)):
            writer.writerow([getattr(line, name) for name in COLUMNS])
            for round in (line.round, ALL):
                own = sums.setdefault(round, dict.fromkeys(SUMS, 0))
                own[f"{line.direction}link_bytes"] += line.payload_bytes
                own[f"{line.direction}link_bytes_wire"] += line.wire_bytes
    wanted = {row.round: {name: getattr(row, name) for name in SUMS} for row in rows}
    wanted[ALL] = {name: totals[name] for name in SUMS}
    for round, known in wanted.items():
        if sums.get(round, dict.fromkeys(SUMS, 0)) != known:
            which = "it does not add up to the checkpoint" if round == ALL else f"round {round} does not add up"
            raise ValueError(f"{path} is damaged: {which}; restore it from a copy")
    write_atomically(path, kept.getvalue().encode())
