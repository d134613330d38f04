"""TensorBoard events of a run: the numbers of rounds.csv, in one file without duplicate steps.

``tensorboard --logdir runs`` shows every run under its directory's name. Each round is appended and the file is closed
again. So nothing is lost when a process dies; torch's ``SummaryWriter`` has a thread that writes later. Records and
their checksums are made by tensorboard. A resumed run cuts the file to the size in its checkpoint, without reading it.
"""

import math
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.files.disk_space import naming

if TYPE_CHECKING:
    from simulations.rundir.row import Row

FILE = "events.out.tfevents.fedlsg"
"""TensorBoard reads every file that has "tfevents" in its name."""


def scalars(row: "Row") -> dict[str, float]:
    """Numbers of a row, by tag; without those that were not measured or are infinite (epsilon without privacy)."""
    values = {
        "test/accuracy": row.accuracy,
        "test/loss": row.loss,
        "epsilon/max": row.epsilon_max,
        "epsilon/median": row.epsilon_median,
        "bytes/uplink": row.uplink_bytes,
        "bytes/downlink": row.downlink_bytes,
        "clients/asked": len(row.asked.split()),
        "clients/answered": len(row.answered.split()),
        "clients/rejected": len(row.rejected.split()),
        "seconds": row.seconds,
    }
    return {tag: float(value) for tag, value in values.items() if value is not None and math.isfinite(value)}


def append(folder: Path, row: "Row") -> int:
    """Add one round to the run's events and close the file; returns its size."""
    new = not (folder / FILE).exists()
    with naming(folder / FILE), (folder / FILE).open("ab") as file:
        file.write(_encoded([row], header=new))
        return file.tell()


def cut(folder: Path, size: int, rows: Iterable["Row"]) -> None:
    """Go back to the size at which the file had these rounds; a shorter file is written again, with today's time."""
    path = folder / FILE
    if size and path.exists() and path.stat().st_size >= size:
        os.truncate(path, size)
    else:
        write_atomically(path, _encoded(rows, header=True))


def read(path: Path) -> Iterator[tuple[int, float, Mapping[str, float]]]:
    """(step, wall time, values by tag) of every complete record; an incomplete one ends the file."""
    from tensorboard.compat.proto.event_pb2 import Event

    data, at = path.read_bytes(), 0
    while at + 12 <= len(data):  # length (8 bytes), its checksum (4), the event, its checksum (4)
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length
        if end + 4 > len(data):
            return
        event = Event.FromString(data[at + 12 : end])
        if event.HasField("summary"):
            yield event.step, event.wall_time, {v.tag: v.simple_value for v in event.summary.value}
        at = end + 4


def _encoded(rows: Iterable["Row"], *, header: bool) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    def write(**fields: Any) -> None:
        writer.write(Event(**fields).SerializeToString())

    buffer = BytesIO()
    writer = RecordWriter(buffer)
    now = time.time()
    if header:
        write(wall_time=now, file_version="brain.Event:2")
    for row in rows:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(row).items()]
        write(wall_time=now, step=row.round, summary=Summary(value=values))
    return buffer.getvalue()
