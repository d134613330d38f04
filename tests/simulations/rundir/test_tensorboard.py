"""TensorBoard events: TensorBoard itself reads them, each step once, also after crashes and resumes."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.rundir.journal import EVENTS as FILE


def seen(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself shows: the oracle."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def read(path: Path) -> Iterator[tuple[int, float]]:
    """(step, wall time) of every complete record of the file: TensorBoard would hide a step that occurs twice."""
    from tensorboard.compat.proto.event_pb2 import Event

    data, at = path.read_bytes(), 0
    while at + 12 <= len(data):  # length (8 bytes), its checksum (4), the event, its checksum (4)
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length
        if end + 4 > len(data):
            return
        event = Event.FromString(data[at + 12 : end])
        if event.HasField("summary"):
            yield event.step, event.wall_time
        at = end + 4


def raw_steps(folder: Path) -> list[int]:
    return [step for step, _ in read(folder / FILE)]


def test_tensorboard_reads_every_run(small):
    shown = seen(small.path)
    assert raw_steps(small.path) == [1, 2]
    assert shown["test/accuracy"] == [(r.round, pytest.approx(r.accuracy, rel=1e-6)) for r in small.rows]
    assert shown["bytes/uplink"] == [(r.round, r.uplink_bytes) for r in small.rows]
    assert (small.path / FILE).stat().st_size < 1_000
