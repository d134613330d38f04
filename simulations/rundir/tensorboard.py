"""TensorBoard events of a run: the numbers of rounds.csv, in one file without duplicate steps.

``tensorboard --logdir runs`` shows every run under its directory's name. Each round is appended and the file is closed
again. So nothing is lost when a process dies; torch's ``SummaryWriter`` has a thread that writes later. Records and
their checksums are made by tensorboard. A resumed run cuts the file to the size in its checkpoint, without reading it.
"""

import os
import time
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from fedlsg.owner_only import open_file
from simulations.rundir.files.atomic import naming, write_atomically

FILE = "events.out.tfevents.fedlsg"
"""TensorBoard reads every file that has "tfevents" in its name."""

Values = Mapping[str, float]
"""Numbers of a round by tag."""


def append(folder: Path, round: int, values: Values, *, timed: bool = True) -> int:
    """Add one round to the run's events and close the file; returns its size.

    Not ``timed``: the number of the round is in the place of the time, which would tell how many clients took part.
    """
    new = not (folder / FILE).exists()
    with naming(folder / FILE), open(folder / FILE, "ab", opener=open_file) as file:
        file.write(_encode([(round, values)], header=new, timed=timed))
        return file.tell()


def cut(folder: Path, size: int, rounds: Iterable[tuple[int, Values]], *, timed: bool = True) -> None:
    """Go back to the size at which the file had these rounds; a shorter file is written again, with today's time."""
    path = folder / FILE
    if size and path.exists() and path.stat().st_size >= size:
        os.truncate(path, size)
    else:
        write_atomically(path, _encode(rounds, header=True, timed=timed))


def _encode(rounds: Iterable[tuple[int, Values]], *, header: bool, timed: bool) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    def write(**fields: Any) -> None:
        writer.write(Event(**fields).SerializeToString())

    buffer = BytesIO()
    writer = RecordWriter(buffer)
    now = time.time() if timed else 0.0
    if header:
        write(wall_time=now, file_version="brain.Event:2")
    for round, values in rounds:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        write(wall_time=now if timed else float(round), step=round, summary=summary)
    return buffer.getvalue()
