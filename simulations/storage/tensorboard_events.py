"""TensorBoard's events of a run: the numbers of rounds.csv, appended after each round.

``tensorboard --logdir runs`` shows every run under its directory's name. The file is closed again
after each round, so that nothing is lost when a process dies; torch's ``SummaryWriter`` has a
thread that writes later. Records and their checksums are made by tensorboard, of the extra of that
name: without it there are no events, and the size is 0. A resumed run cuts the file to the size in
its checkpoint, without reading it.
"""

import os
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from fedlsg.owner_only import open_file
from fedlsg.simulations.storage.atomic_files import naming, write_atomically

EVENTS = "events.out.tfevents.fedlsg"
"""TensorBoard reads every file that has "tfevents" in its name."""

Values = Mapping[str, float]
"""Numbers of a round by tag."""


def _writes_events() -> bool:
    return find_spec("tensorboard") is not None


def append_events(folder: Path, round: int, values: Values, *, wall_time: bool = True) -> int:
    """Add one round to the run's events and close the file; returns its size in bytes.

    Without ``wall_time`` an event has the number of its round instead of the time: times of day
    would reveal how many clients took part.
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
    """Cut the file to ``size``, at which it had these rounds; write a shorter file again."""
    path = folder / EVENTS
    if size and path.exists() and path.stat().st_size >= size:
        os.truncate(path, size)
    elif _writes_events():
        write_atomically(path, _encode_events(rounds, header=True, wall_time=wall_time))


def _encode_events(rounds: Iterable[tuple[int, Values]], *, header: bool, wall_time: bool) -> bytes:
    """Events of rounds in TensorBoard's format; ``header``: with the event that begins a file."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    def write(**event: Any) -> None:
        writer.write(Event(**event).SerializeToString())

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
