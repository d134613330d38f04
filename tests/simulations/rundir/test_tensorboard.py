"""TensorBoard events: TensorBoard itself reads them, each step once, also after crashes and resumes."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from simulations.rundir import journal
from simulations.rundir.journal import EVENTS as FILE
from simulations.rundir.tables import FIELDS, Row
from tests.simulations.support.runs import resume_local


def row(round: int, **changes: object) -> Row:
    values = dict.fromkeys(FIELDS, 0) | {
        "round": round, "accuracy": 0.5, "loss": 1.0, "epsilon_max": 1.25, "epsilon_median": 1.0, "seconds": 2.0,
        "asked": "0 1 2", "answered": "0 2", "rejected": "1", "reasons": "1: late",
    }  # fmt: skip
    return Row(**(values | changes))


def seen(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself shows: the oracle."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def append(folder: Path, added: Row) -> int:
    return journal.append_events(folder, added.round, added.scalars)


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


def test_a_resumed_run_holds_each_step_once(stopped):
    (_, first), *_ = read(stopped.path / FILE)
    append(stopped.path, replace(stopped.rows[0], round=2))  # row 2, no checkpoint
    run = resume_local(stopped.path)
    assert raw_steps(run.path) == [1, 2]
    assert [step for step, _ in seen(run.path)["seconds"]] == [1, 2]
    assert next(iter(read(run.path / FILE)))[1] == first
