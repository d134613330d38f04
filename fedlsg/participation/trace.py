"""A trace of availability: when each client can be selected, in simulated seconds since the start of the run.

client,from,to
3,0,120
3,300,420            client 3 is there in [0, 120) and in [300, 420); a client without a line is always there
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
    """``intervals``: from and to by client, ascending and apart; ``digest``: SHA-256 of the file, hexadecimal."""

    intervals: Mapping[int, tuple[tuple[float, float], ...]]
    digest: str

    def available(self, client: int, now: float) -> bool:
        """Whether a client is there at a time: from <= now < to of one of its intervals."""
        own = self.intervals.get(client)
        if own is None:
            return True
        place = bisect_right(own, (now, math.inf))
        return place > 0 and now < own[place - 1][1]

    @cached_property
    def arrivals(self) -> tuple[float, ...]:
        """The times at which a client comes, ascending."""
        return tuple(sorted({start for own in self.intervals.values() for start, _ in own}))


def read_trace(path: Path, clients: int) -> Trace:
    """The trace of a CSV file for clients 0 to ``clients - 1``. Intervals of a client that overlap become one.

    Raises ValueError, naming file and line, for anything else.
    """
    try:
        data = path.read_bytes()
        lines = list(csv.reader(data.decode().splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = f"availability={path}: expected a share such as 0.8, or a trace with the columns client,from,to: {error}"
        raise ValueError(why) from None
    if not lines or [name.strip() for name in lines[0]] != COLUMNS:
        raise ValueError(f"{path}: expected the first line client,from,to, got {','.join(lines[0]) if lines else ''!r}")
    found: dict[int, list[tuple[float, float]]] = {}
    for number, line in enumerate(lines[1:], 2):
        if line:
            client, start, end = _parse(line, clients, f"{path}, line {number}")
            found.setdefault(client, []).append((start, end))
    intervals = {client: _merge(own) for client, own in sorted(found.items())}
    return Trace(intervals=intervals, digest=hashlib.sha256(data).hexdigest())


def _parse(line: list[str], clients: int, where: str) -> tuple[int, float, float]:
    try:
        client, start, end = int(line[0]), float(line[1]), float(line[2])
    except (ValueError, IndexError):
        raise ValueError(f"{where}: expected client,from,to as numbers, got {','.join(line)!r}") from None
    if not 0 <= client < clients:
        raise ValueError(f"{where}: expected a client from 0 to {clients - 1}, got {client}")
    if not 0 <= start < end:
        raise ValueError(f"{where}: expected 0 <= from < to in simulated seconds, got {start:g} and {end:g}")
    return client, start, end


def _merge(own: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(own):
        if merged and start <= merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    return tuple(merged)
