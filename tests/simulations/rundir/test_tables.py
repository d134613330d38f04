"""bytes.csv: every message at three levels, adding up to rounds.csv and summary.json, also after a crash."""

import shutil
from collections import defaultdict
from dataclasses import replace

import pytest
from flwr.app import Context, Message

from fedlsg.payload.layout import HEADER
from simulations.client.app import app
from simulations.rundir.tables import BYTES, Line, read_lines
from tests.simulations.support.runs import Run, resume_local, run_local

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
    rows = [(row.round, vars(row)) for row in run.rows] + ([] if run.summary is None else [(-1, run.summary)])
    return all(
        sums[round, way, "payload_bytes"] == own[f"{name}_bytes"]
        and sums[round, way, "wire_bytes"] == own[f"{name}_bytes_wire"]
        for round, own in rows
        for way, name in (("up", "uplink"), ("down", "downlink"))
    )


def test_the_small_run_by_hand(small):
    """1,074 values as float32 in a version 1 payload: 64 bytes of header, 16 of checksum; 4,810 weights down."""
    found = lines(small)
    assert [(line.round, line.direction, line.client) for line in found] == [
        (round, way, client) for round in (1, 2) for way in ("down", "up") for client in (0, 1)
    ]
    for line in found:
        if line.direction == "down":
            assert line.values_bytes == line.payload_bytes == 4 * 4810
        else:
            assert line.payload_bytes == line.values_bytes + HEADER.size + 16 == 4376
            assert line.payload_bytes == len(small.payloads[f"round-{line.round:06d}/client-{line.client:06d}.bin"])
        assert 100 < line.wire_bytes - line.payload_bytes < 600
    assert add_up(found, small)


def test_a_message_that_is_left_out_is_caught(small):
    """Negative control."""
    assert not add_up(lines(small)[:-1], small)
    assert not add_up(lines(small)[1:], small)


def failing(message: Message, context: Context) -> Message:
    """Client 1 does not answer the pruning round."""
    if message.metadata.message_type == "train" and context.node_config["partition-id"] == 1:
        raise OSError("no disk")
    return app(message, context)


FAILED = {"method": "dp-ssgd", "prune": "dp-snip", "rounds": 1, "min_survivors": 2}


def test_a_pruning_round_that_failed_is_counted_and_so_is_the_next_try(tmp_path):
    with pytest.raises(RuntimeError, match="in the pruning round, 1 replied"):
        run_local(tmp_path / "run", client=failing, **FAILED)
    failed = Run(tmp_path / "run")
    assert [(line.round, line.direction, line.client) for line in lines(failed)] == [
        (0, way, client) for way in ("down", "up") for client in (0, 1)
    ]
    sums = {name: failed.checkpoint["totals"][name] for name in BYTES}
    assert sums["uplink_bytes"] == sum(line.payload_bytes for line in lines(failed) if line.direction == "up") > 0
    shutil.copy(failed.directory.messages, tmp_path / "before")
    with failed.directory.messages.open("a") as file:  # a second try whose checkpoint a crash has cost
        file.write("0,0,down,1,2,3\n0,0,up,1,2,3\n")
    run = resume_local(tmp_path / "run")
    assert add_up(lines(run), run)
    assert lines(run)[:4] == list(read_lines(tmp_path / "before"))
    assert [line.round for line in lines(run)] == [0] * 8 + [1] * 4
    assert run.summary["pruning"]["messages"] == 8
    rows = {name: run.summary[name] - sum(getattr(row, name) for row in run.rows) for name in BYTES}
    assert rows == {name: run.summary["pruning"][name] for name in BYTES}
    assert rows["uplink_bytes"] == 3 * sums["uplink_bytes"]


# --- resume

TORN = [b"2,0,down,1", b"2,0,down,19240,19240,19600\n2,1,down,19", b"1", b"2,0,up,1,1,1\n3,1,up,1,1,1\n"]


@pytest.mark.parametrize("torn", TORN)
def test_what_a_crash_left_after_the_checkpoint_is_cut(torn, stopped, small):
    with stopped.directory.messages.open("ab") as file:
        file.write(torn)
    run = resume_local(stopped.path)
    assert add_up(lines(run), run)
    timeless = [[replace(line, wire_bytes=0) for line in lines(one)] for one in (run, small)]
    assert timeless[0] == timeless[1]


def test_resume_insists_on_lines_that_are_what_was_written(stopped):
    text = stopped.directory.messages.read_text()
    for damaged in (None, text.replace(",4376,", ",4375,"), text.replace("\n1,0,up", "\n2,0,up"), "a,b\n1,2\n"):
        if damaged is None:
            stopped.directory.messages.unlink()
        else:
            stopped.directory.messages.write_text(damaged)
        with pytest.raises(ValueError, match=r"bytes.csv is damaged"):
            resume_local(stopped.path)
    stopped.directory.messages.write_text(text)
    assert add_up(lines(resumed := resume_local(stopped.path)), resumed)
