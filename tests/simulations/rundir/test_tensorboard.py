"""TensorBoard events: TensorBoard itself reads them, each step once, also after crashes and resumes."""

import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.rundir import journal, tables
from simulations.rundir.journal import EVENTS as FILE
from simulations.rundir.rundir import RunDir
from simulations.rundir.tables import FIELDS, Row
from tests.simulations.support.runs import Run, resume_local


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


def test_a_row_by_hand():
    assert row(1, accuracy=None, loss=None, epsilon_max=math.inf, uplink_bytes=7, downlink_bytes=9).scalars == {
        "epsilon/median": 1.0, "bytes/uplink": 7.0, "bytes/downlink": 9.0, "clients/asked": 3.0,
        "clients/answered": 2.0, "clients/rejected": 1.0, "seconds": 2.0,
    }  # fmt: skip


def test_a_resumed_run_holds_each_step_once(stopped):
    (_, first), *_ = read(stopped.path / FILE)
    append(stopped.path, replace(stopped.rows[0], round=2))  # row 2, no checkpoint
    run = resume_local(stopped.path)
    assert raw_steps(run.path) == [1, 2]
    assert [step for step, _ in seen(run.path)["seconds"]] == [1, 2]
    assert next(iter(read(run.path / FILE)))[1] == first


def test_without_the_cut_a_step_occurs_twice(stopped, monkeypatch):
    """Negative control: the crash between events and checkpoint really leaves a step too many."""
    monkeypatch.setattr(tables, "cut_events", lambda *_, **__: None)
    append(stopped.path, replace(stopped.rows[0], round=2))
    assert raw_steps(resume_local(stopped.path).path) == [1, 2, 2]


@pytest.mark.parametrize("damage", [b"", b"x", b"\xff" * 64])
def test_damaged_or_missing_events_cost_a_run_nothing(damage, stopped):
    (stopped.path / FILE).write_bytes(damage)
    run: Run = resume_local(stopped.path)
    assert raw_steps(run.path) == [1, 2]
    assert RunDir(run.path).summary.exists()


@given(torn=st.integers(0, 5_000), steps=st.integers(1, 6))
def test_a_torn_file_reads_as_its_whole_records(torn, steps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("torn")
    rows = [row(step, accuracy=step / 10) for step in range(1, steps + 1)]
    sizes = [append(folder, one) for one in rows]
    whole = list(read(folder / FILE))
    data = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(data[:torn])
    assert list(read(folder / FILE)) == whole[: len(list(read(folder / FILE)))]
    journal.cut_events(folder, sizes[-1], [(one.round, one.scalars) for one in rows])
    assert raw_steps(folder) == list(range(1, steps + 1))
