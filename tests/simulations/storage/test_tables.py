"""bytes.csv adds up to rounds.csv and summary.json, and TensorBoard reads its events, also after a
crash.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedlsg.payload.layout import HEADER
from fedlsg.simulations.storage.messages.byte_lines import LINES_HEADER, Line, read_lines
from fedlsg.simulations.storage.tensorboard_events import EVENTS as FILE
from tests.simulations.support.runs import Run, resume_local

LEVELS = ("values_bytes", "payload_bytes", "wire_bytes")


def lines(run: Run) -> list[Line]:
    return list(read_lines(run.directory.messages))


def add_up(found: list[Line], run: Run) -> bool:
    """Whether the lines of each round are its row's sums, and all lines the summary's."""
    sums: dict[tuple[int, str, str], int] = defaultdict(int)
    for line in found:
        for level in LEVELS:
            sums[line.round, line.direction, level] += getattr(line, level)
            sums[-1, line.direction, level] += getattr(line, level)
    rows = [(row.round, vars(row)) for row in run.rows] + (
        [] if run.summary is None else [(-1, run.summary)]
    )
    return all(
        sums[round, way, "payload_bytes"] == own[f"{name}_bytes"]
        and sums[round, way, "wire_bytes"] == own[f"{name}_bytes_wire"]
        for round, own in rows
        for way, name in (("up", "uplink"), ("down", "downlink"))
    )


def test_the_small_run_by_hand(small):
    """1,074 values as float32 in a version 1 payload: 64 bytes of header, 16 of checksum; 4,810
    weights down.
    """
    found = lines(small)
    assert [(line.round, line.direction, line.client) for line in found] == [
        (round, way, client) for round in (1, 2) for way in ("down", "up") for client in (0, 1)
    ]
    for line in found:
        if line.direction == "down":
            assert line.values_bytes == line.payload_bytes == 4 * 4810
        else:
            assert line.payload_bytes == line.values_bytes + HEADER.size + 16 == 4376
            assert line.payload_bytes == len(
                small.payloads[f"round-{line.round:06d}/client-{line.client:06d}.bin"]
            )
        assert 100 < line.wire_bytes - line.payload_bytes < 600
    assert add_up(found, small)


TORN = [
    b"2,0,down,1",
    b"2,0,down,19240,19240,19600\n2,1,down,19",
    b"1",
    b"2,0,up,1,1,1\n3,1,up,1,1,1\n",
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("torn", TORN)
def test_what_a_crash_left_after_the_checkpoint_is_cut(torn, stopped, small):
    with stopped.directory.messages.open("ab") as file:
        file.write(torn)
    run = resume_local(stopped.path)
    assert add_up(lines(run), run)
    timeless = [[replace(line, wire_bytes=0) for line in lines(one)] for one in (run, small)]
    assert timeless[0] == timeless[1]


@pytest.mark.slow
def test_resume_insists_on_lines_that_are_what_was_written(stopped):
    text = stopped.directory.messages.read_text()
    for damaged in (
        None,
        text.replace(",4376,", ",4375,"),
        text.replace("\n1,0,up", "\n2,0,up"),
        "a,b\n1,2\n",
    ):
        if damaged is None:
            stopped.directory.messages.unlink()
        else:
            stopped.directory.messages.write_text(damaged)
        with pytest.raises(ValueError, match=r"bytes.csv is damaged"):
            resume_local(stopped.path)
    stopped.directory.messages.write_text(text)
    assert add_up(lines(resumed := resume_local(stopped.path)), resumed)


def seen(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself shows: the oracle."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def read(path: Path) -> Iterator[tuple[int, float]]:
    """(step, wall time) of every complete record of the file: TensorBoard would hide a step that
    occurs twice.
    """
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
    assert shown["test/accuracy"] == [
        (r.round, pytest.approx(r.accuracy, rel=1e-6)) for r in small.rows
    ]
    assert shown["bytes/uplink"] == [(r.round, r.uplink_bytes) for r in small.rows]
    assert (small.path / FILE).stat().st_size < 1_000


@pytest.mark.parametrize(
    "text", [b"another file, of one line", b"a" * 500, b"\xff\xfe", b"round,x"]
)
def test_another_kind_of_file_is_refused_by_its_name(text, tmp_path):
    path = tmp_path / "bytes.csv"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=r"bytes\.csv is damaged"):
        list(read_lines(path))
    path.write_bytes(LINES_HEADER.encode() + b"1,0,up,\xff,1,1\n")
    with pytest.raises(ValueError, match=r"bytes\.csv is damaged"):
        list(read_lines(path))
    for cut in (0, 5, len(LINES_HEADER) - 1, len(LINES_HEADER)):
        path.write_text(LINES_HEADER[:cut])
        assert list(read_lines(path)) == [], "what a crash left incomplete"
