"""A trace of availability: the times at which each client is there, from a CSV file of the user.

Times are simulated seconds since the start of the run:

    client,from,to
    3,0,120
    3,300,420        client 3 is there in [0, 120) and in [300, 420); a client without a line is
                     always there
"""

import csv
import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

COLUMNS = ["client", "from", "to"]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The times at which clients are there.

    intervals: (from, to) by client, ascending; intervals of one client do not touch.
    digest: SHA-256 of the file, hexadecimal.
    """

    intervals: Mapping[int, tuple[tuple[float, float], ...]]
    digest: str

    def available(self, client: int, now: float) -> bool:
        """Whether a client is there at a time: from <= now < to in one of its intervals."""
        intervals = self.intervals.get(client)
        if intervals is None:
            return True
        started = bisect_right(intervals, (now, math.inf))  # number of intervals with from <= now
        return started > 0 and now < intervals[started - 1][1]

    @cached_property
    def arrivals(self) -> tuple[float, ...]:
        """The times at which a client comes, ascending."""
        starts = {start for intervals in self.intervals.values() for start, _ in intervals}
        return tuple(sorted(starts))


def read_trace(path: Path, clients: int) -> Trace:
    """The trace of a CSV file for clients 0 to ``clients - 1``.

    Intervals of a client that overlap or touch become one. Raises ValueError, naming file and line,
    for anything else.
    """
    try:
        data = path.read_bytes()
        lines = list(csv.reader(data.decode().splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"availability={path}: expected a share such as 0.8, or a trace with the columns "
            f"client,from,to: {error}"
        ) from None
    if not lines or [name.strip() for name in lines[0]] != COLUMNS:
        raise ValueError(
            f"{path}: expected the first line client,from,to, got "
            f"{','.join(lines[0]) if lines else ''!r}"
        )
    by_client: dict[int, list[tuple[float, float]]] = {}
    for number, line in enumerate(lines[1:], 2):
        if line:
            client, start, end = _parse(line, clients, f"{path}, line {number}")
            by_client.setdefault(client, []).append((start, end))
    intervals = {client: _merge(spans) for client, spans in sorted(by_client.items())}
    return Trace(intervals=intervals, digest=hashlib.sha256(data).hexdigest())


def _parse(line: list[str], clients: int, where: str) -> tuple[int, float, float]:
    """(client, from, to) of one line. Raises ValueError, beginning with ``where``."""
    try:
        client, start, end = int(line[0]), float(line[1]), float(line[2])
    except (ValueError, IndexError):
        raise ValueError(
            f"{where}: expected client,from,to as numbers, got {','.join(line)!r}"
        ) from None
    if not 0 <= client < clients:
        raise ValueError(f"{where}: expected a client from 0 to {clients - 1}, got {client}")
    if not 0 <= start < end:
        raise ValueError(
            f"{where}: expected 0 <= from < to in simulated seconds, got {start:g} and {end:g}"
        )
    return client, start, end


def _merge(intervals: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The same times in ascending intervals that do not touch."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            earlier_start, earlier_end = merged.pop()
            start, end = earlier_start, max(end, earlier_end)
        merged.append((start, end))
    return tuple(merged)
