"""Files of a run that only grow: bytes.csv, journals with the digest of every byte, TensorBoard's
events.

bytes.csv has one line a message, at the three levels of ``Sent``, in the order in which the server
counted them: a round's announcements, then its replies. Round 0 is the pruning round, if there is
one. The lines of a round add up to its row of rounds.csv, all lines to summary.json. From its wire
bytes follow the seconds on a named link:

    seconds of a round = max over clients of the sum over its messages of (latency + 8 wire bytes /
    rate)

Clients of a round work in parallel, each on a link of its own; a client's messages follow each
other. The round waits for its slowest client, and rounds follow each other. Not modelled: the
server's own link (rate enough for all clients at once), TCP's slow start and TLS, loss, the HTTP
that Flower's deployment engine puts around a message (docs/communication.md, "What the socket
carries"), computing, and clients that never answer.

A checkpoint keeps the ``mark`` of a journal: length and digest. Bytes after the mark were written
by a process that ended before its next checkpoint, and are cut. Bytes before it must have the
digest of the mark.

``tensorboard --logdir runs`` shows every run under its directory's name. Each round is appended to
the events and the file is closed again. So nothing is lost when a process dies; torch's
``SummaryWriter`` has a thread that writes later. Records and their checksums are made by
tensorboard, of the extra of that name: without it there are no events, and size 0. A resumed run
cuts the file to the size in its checkpoint, without reading it.
"""

import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

from fedlsg.bounded import whole
from fedlsg.owner_only import open_file
from fedlsg.simulations.storage.atomic_files import DamagedError, naming, write_atomically
from fedlsg.strategies.protocol.round_report import Direction, RoundReport

CHUNK = 2**20
Mark = Mapping[str, Any]
"""Length and SHA-256 of a file, as a checkpoint or a manifest keeps them."""
Marks = Mapping[str, Any]
"""The marks of several files, by name; of the events only the length."""
DIRECTIONS: dict[str, Direction] = {"down": "down", "up": "up"}
"""Narrows a text to the Literal; KeyError for others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of bytes.csv."""

    round: int
    client: int
    direction: Direction
    values_bytes: int
    payload_bytes: int
    wire_bytes: int


LINES_HEADER = ",".join(field.name for field in fields(Line)) + "\n"
"""The first line of bytes.csv."""


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
        first = file.readline(2 * len(LINES_HEADER))
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
                    round=whole(round),
                    client=whole(client),
                    direction=DIRECTIONS[direction],
                    values_bytes=whole(values),
                    payload_bytes=whole(payload),
                    wire_bytes=whole(wire),
                )
            except (KeyError, ValueError):
                raise ValueError(damaged) from None


class Journal:
    """A file that only grows, a header and then lines; and the digest of every byte that the run
    has written to it.
    """

    def __init__(self, path: Path, header: str) -> None:
        self.path, self.header = path, header
        self.size, self._sha = 0, hashlib.sha256()

    def append(self, text: str) -> None:
        """Add text in one write; the first text after the header."""
        data = (text if self.size else self.header + text).encode()
        with (
            naming(self.path),
            open(self.path, "ab" if self.size else "wb", opener=open_file) as file,
        ):
            file.write(data)
        self._sha.update(data)
        self.size += len(data)

    def mark(self) -> Mark:
        """What a checkpoint keeps."""
        return {"bytes": self.size, "sha256": self._sha.hexdigest()}

    def cut(self, mark: Mark) -> None:
        """Go back to a mark. Raises DamagedError if the file differs up to there."""
        sha = verify(self.path, mark)
        if mark["bytes"]:
            os.truncate(self.path, mark["bytes"])
        else:
            self.path.unlink(missing_ok=True)
        self.size, self._sha = mark["bytes"], sha


def verify(path: Path, mark: Mark) -> "hashlib._Hash":
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


EVENTS = "events.out.tfevents.fedlsg"
"""TensorBoard reads every file that has "tfevents" in its name."""

Values = Mapping[str, float]
"""Numbers of a round by tag."""


def _writes_events() -> bool:
    return find_spec("tensorboard") is not None


def append_events(folder: Path, round: int, values: Values, *, wall_time: bool = True) -> int:
    """Add one round to the run's events and close the file; returns its size.

    Without ``wall_time`` the number of the round is in the place of the time, which would tell how
    many clients took part.
    """
    if not _writes_events():
        return 0
    new = not (folder / EVENTS).exists()
    with naming(folder / EVENTS), open(folder / EVENTS, "ab", opener=open_file) as file:
        file.write(_encode_events([(round, values)], header=new, wall_time=wall_time))
        return file.tell()


def cut_events(
    folder: Path, size: int, rounds: Iterable[tuple[int, Values]], *, wall_time: bool = True
) -> None:
    """Go back to the size at which the file had these rounds; a shorter file is written again, with
    today's time.
    """
    path = folder / EVENTS
    if size and path.exists() and path.stat().st_size >= size:
        os.truncate(path, size)
    elif _writes_events():
        write_atomically(path, _encode_events(rounds, header=True, wall_time=wall_time))


def _encode_events(rounds: Iterable[tuple[int, Values]], *, header: bool, wall_time: bool) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    def write(**fields: Any) -> None:
        writer.write(Event(**fields).SerializeToString())

    buffer = BytesIO()
    writer = RecordWriter(buffer)
    now = time.time() if wall_time else 0.0
    if header:
        write(wall_time=now, file_version="brain.Event:2")
    for round, values in rounds:
        summary = Summary(
            value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        )
        write(wall_time=now if wall_time else float(round), step=round, summary=summary)
    return buffer.getvalue()


@dataclass(frozen=True, kw_only=True)
class Link:
    """A client's connection: bits a second up and down, and seconds that a message needs apart from
    its bits.
    """

    name: str
    up: float
    down: float
    latency: float

    def __str__(self) -> str:
        return (
            f"{self.name} ({_rate(self.up)} up, {_rate(self.down)} down, {1000 * self.latency:g} "
            "ms)"
        )

    @property
    def short(self) -> str:
        """Name and numbers for a list of links; ``str`` is for a link that is named alone."""
        return (
            f"{self.name} ({self.up / 1e6:g}/{self.down / 1e6:g} Mbit/s, {1000 * self.latency:g} "
            "ms)"
        )

    def seconds(self, line: Line) -> float:
        """Of one message."""
        return self.latency + 8 * line.wire_bytes / (
            self.up if line.direction == "up" else self.down
        )


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
    """A named link, or UP/DOWN/LATENCY in Mbit/s, Mbit/s and ms, such as 10/50/50. Raises
    ValueError for neither.
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
    """Seconds of each round on ``link``; the lines of a round must be together, as they are in
    bytes.csv.
    """
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
    """Transfer seconds of a run on every named link, from its bytes.csv; empty without such a
    file.
    """
    lines = list(read_lines(path)) if path.exists() else []
    return (
        {name: round(transfer_seconds(lines, link), 6) for name, link in LINKS.items()}
        if lines
        else {}
    )


def rounds_by_client(lines: Iterable[Line]) -> dict[int, int]:
    """In how many training rounds each client sent values; clients that sent none are left out."""
    sent = {(line.client, line.round) for line in lines if line.round and _has_values(line)}
    return dict(sorted(Counter(client for client, _ in sent).items()))


def _has_values(line: Line) -> bool:
    return line.direction == "up" and line.values_bytes > 0


def _rate(bits: float) -> str:
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
