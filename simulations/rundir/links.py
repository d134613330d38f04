"""Seconds that a run's messages would take on a named link, from the wire bytes of bytes.csv.

    seconds of a round = max over clients of the sum over its messages of (latency + 8 wire bytes / rate)

Clients of a round work in parallel, each on a link of its own; a client's messages follow each other. The round waits
for its slowest client, and rounds follow each other.

Not modelled: the server's own link (rate enough for all clients at once), TCP's slow start and TLS, loss, the HTTP that
Flower's deployment engine puts around a message (docs/communication.md, "What the socket carries"), computing, and
clients that never answer.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from simulations.rundir.journal import Line, read_lines


@dataclass(frozen=True, kw_only=True)
class Link:
    """A client's connection: bits a second up and down, and seconds that a message needs apart from its bits."""

    name: str
    up: float
    down: float
    latency: float

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"expected a link with 0 < {name}={getattr(self, name)} bit/s")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"expected a link with latency={self.latency} >= 0 seconds")

    def __str__(self) -> str:
        return f"{self.name} ({_rate(self.up)} up, {_rate(self.down)} down, {1000 * self.latency:g} ms)"

    @property
    def short(self) -> str:
        """Its name and numbers, short."""
        return f"{self.name} ({self.up / 1e6:g}/{self.down / 1e6:g} Mbit/s, {1000 * self.latency:g} ms)"

    def seconds(self, line: Line) -> float:
        """Of one message."""
        return self.latency + 8 * line.wire_bytes / (self.up if line.direction == "up" else self.down)


LINKS = {
    link.name: link
    for link in (
        Link(name="broadband", up=10e6, down=50e6, latency=0.05),
        Link(name="mobile", up=2e6, down=10e6, latency=0.1),
        Link(name="datacentre", up=10e9, down=10e9, latency=0.0005),
    )
}
"""Round numbers that represent a kind of connection, not measurements."""


def parse_link(text: str) -> Link:
    """A named link, or UP/DOWN/LATENCY in Mbit/s, Mbit/s and ms, such as 10/50/50. Raises ValueError for neither."""
    if text in LINKS:
        return LINKS[text]
    try:
        up, down, latency = (float(part) for part in text.split("/"))
        return Link(name=text, up=1e6 * up, down=1e6 * down, latency=latency / 1000)
    except ValueError as error:
        why = f": {error}" if "link with" in str(error) else ""
        raise ValueError(
            f"expected --link as one of {', '.join(LINKS)} or UP/DOWN/LATENCY in Mbit/s, Mbit/s and ms (10/50/50), "
            f"got {text!r}{why}"
        ) from None


def round_seconds(lines: Iterable[Line], link: Link) -> dict[int, float]:
    """Seconds of each round on ``link``; the lines of a round must be together, as they are in bytes.csv."""
    found = {}
    for round, messages in groupby(lines, key=lambda line: line.round):
        clients: dict[int, float] = {}
        for line in messages:
            clients[line.client] = clients.get(line.client, 0.0) + link.seconds(line)
        found[round] = max(clients.values())
    return found


def transfer_seconds(lines: Iterable[Line], link: Link) -> float:
    """Seconds of all rounds on ``link``, the pruning round included."""
    return math.fsum(round_seconds(lines, link).values())


def run_seconds(path: Path) -> dict[str, float]:
    """Transfer seconds of a run on every named link, from its bytes.csv; empty without such a file."""
    lines = list(read_lines(path)) if path.exists() else []
    return {name: round(transfer_seconds(lines, link), 6) for name, link in LINKS.items()} if lines else {}


def _rate(bits: float) -> str:
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
