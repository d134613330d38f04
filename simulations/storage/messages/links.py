"""Transfer time: the seconds that the messages in bytes.csv would take on a client's link.

    seconds of a round = max over clients of the sum over its messages of (latency + 8 wire bytes /
    rate)

Clients of a round work in parallel, each on a link of its own; a client's messages follow each
other. The round waits for its slowest client, and rounds follow each other. Not modelled: the
server's own link (rate enough for all clients at once), TCP's slow start and TLS, loss, the HTTP
that Flower's deployment engine puts around a message (docs/communication.md, "What the socket
carries"), computing, and clients that never answer.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from fedlsg.simulations.storage.messages.byte_lines import Line, read_lines


@dataclass(frozen=True, kw_only=True)
class Link:
    """A client's connection.

    name: as the user writes it.
    up, down: bits a second.
    latency: seconds that each message needs in addition.
    """

    name: str
    up: float
    down: float
    latency: float

    def __str__(self) -> str:
        """Name and numbers for a link that is named alone; ``short`` is for lists."""
        up, down = _rate(self.up), _rate(self.down)
        return f"{self.name} ({up} up, {down} down, {1000 * self.latency:g} ms)"

    @property
    def short(self) -> str:
        """Name and numbers for a list of links, rates in one unit."""
        up, down = self.up / 1e6, self.down / 1e6
        return f"{self.name} ({up:g}/{down:g} Mbit/s, {1000 * self.latency:g} ms)"

    def seconds(self, line: Line) -> float:
        """The time of one message."""
        rate = self.up if line.direction == "up" else self.down
        return self.latency + 8 * line.wire_bytes / rate


LINKS = {
    link.name: link
    for link in (
        Link(name="broadband", up=10e6, down=50e6, latency=0.05),
        Link(name="mobile", up=2e6, down=10e6, latency=0.1),
        Link(name="datacentre", up=10e9, down=10e9, latency=0.0005),
    )
}
"""Links by name: round numbers for a kind of connection, no measurements."""


def parse_link(text: str) -> Link:
    """A named link, or UP/DOWN/LATENCY in Mbit/s, Mbit/s and ms, such as 10/50/50.

    Raises ValueError for any other text.
    """
    if text in LINKS:
        return LINKS[text]
    try:
        up, down, latency = (float(part) for part in text.split("/"))
        if 0 < up < math.inf and 0 < down < math.inf and 0 <= latency < math.inf:
            return Link(name=text, up=1e6 * up, down=1e6 * down, latency=latency / 1000)
        why = ": expected rates above 0, and a latency of 0 or more"
    except ValueError:
        why = ""
    raise ValueError(
        f"expected --link as one of {', '.join(LINKS)} or UP/DOWN/LATENCY in Mbit/s, Mbit/s and ms "
        f"(10/50/50), got {text!r}{why}"
    )


def round_seconds(lines: Iterable[Line], link: Link) -> dict[int, float]:
    """Seconds of each round on ``link``. The lines of a round must be together, as in bytes.csv."""
    seconds = {}
    for round, messages in groupby(lines, key=lambda line: line.round):
        clients: dict[int, float] = {}
        for line in messages:
            clients[line.client] = clients.get(line.client, 0.0) + link.seconds(line)
        seconds[round] = max(clients.values())
    return seconds


def transfer_seconds(lines: Iterable[Line], link: Link) -> float:
    """Seconds of all rounds on ``link``, the pruning round included."""
    return math.fsum(round_seconds(lines, link).values())


def run_seconds(path: Path) -> dict[str, float]:
    """Transfer seconds of a run on every named link; empty without a bytes.csv or lines in it."""
    lines = list(read_lines(path)) if path.exists() else []
    if not lines:
        return {}
    return {name: round(transfer_seconds(lines, link), 6) for name, link in LINKS.items()}


def _rate(bits: float) -> str:
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
