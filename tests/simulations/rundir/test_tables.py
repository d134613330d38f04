"""bytes.csv: every message at three levels, adding up to rounds.csv and summary.json, also after a crash."""

import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message

from fedlsg.payload.layout import COMPACT, HEADER, value_bytes
from fedlsg.privacy.ledger import Entry, Ledger
from simulations.client.app import app
from simulations.engines import local
from simulations.rundir.journal import LINES_HEADER, Journal, Line, lines_of, read_lines
from simulations.rundir.tables import BYTES
from simulations.server.restore import restore
from strategies.federation.report import RoundReport, Sent
from strategies.federation.wire import raw_array
from tests.simulations.support.runs import Run, ignore, plan_at, resume_local, run_local

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


@pytest.mark.parametrize(
    ("settings", "around"),
    [
        ({"codec": "noise-floor"}, COMPACT.size + 16),
        ({"codec": "int8"}, COMPACT.size + 16),
        ({"codec": "float16"}, HEADER.size + 16),
        ({"method": "dp-powersgd"}, HEADER.size + 16),
    ],
    ids=str,
)
def test_values_are_the_payload_without_its_frame(settings, around, tmp_path):
    run = run_local(tmp_path / "run", **settings)
    assert add_up(lines(run), run)
    assert {line.payload_bytes - line.values_bytes for line in lines(run) if line.direction == "up"} == {around}


def test_indices_are_no_values(tmp_path, small):
    """Explicit ones weigh more than the header alone, and eight bytes when the mask stays."""
    run = run_local(tmp_path / "run", method="sparse-dpsgd", indices="explicit", record_updates=True)
    assert add_up(lines(run), run)
    up = [line for line in lines(run) if line.direction == "up"]
    around = [line.payload_bytes - line.values_bytes - COMPACT.size - 16 for line in up]
    assert around[:2] == [around[0]] * 2
    assert around[0] > 12
    assert around[2:] == [8, 8]
    assert {line.values_bytes % 4 for line in up} == {0}
    assert value_bytes(b"") == value_bytes(b"FLSG\x02\x01\x01") == 0


def test_pruning_is_round_0(tmp_path):
    """It has no row in rounds.csv and is in the summary's sums."""
    run = run_local(tmp_path / "run", method="dp-ssgd", prune="dp-snip", rounds=1, reproducible=False)
    assert [line.round for line in lines(run)] == [0] * 4 + [1] * 4
    assert add_up(lines(run), run)


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


def test_a_budget_that_ends_in_the_pruning_round_leaves_its_bytes_in_the_summary(tmp_path):
    settings = {"noise_multiplier": 1.0, "epsilon": 8.0, "sample_rate": 0.3, "reproducible": False, "min_survivors": 1}
    plan, directory = plan_at(tmp_path / "run", **FAILED | settings)
    for client in range(2):
        spent = Entry(
            client=client, round=0, attempt=0, steps=1, sample_rate=1.0, noise_multiplier=0.3, clip_norm=0.5,
            num_examples=718, mechanism="dp",
        )  # fmt: skip
        Ledger(directory.ledger(client), client=client).charge(spent)
    run = Run(directory.path, plan, local.run(plan, directory, on_round=ignore))
    assert "budget" in run.summary["stopped"] or "epsilon" in run.summary["stopped"]
    assert run.summary["downlink_bytes"] == run.summary["pruning"]["downlink_bytes"] == 2 * 4 * 4810
    assert run.summary["uplink_bytes_wire"] > 0 == run.summary["uplink_bytes"]
    assert [line.round for line in lines(run)] == [0] * 4
    assert run.summary["pruning"]["zero_weights"] == 0


def test_a_ranked_mask_travels_as_payload_that_is_no_value(tmp_path):
    run = run_local(tmp_path / "run", method="rs", ranking="gradients", rounds=1)
    down = [line for line in lines(run) if line.direction == "down"]
    assert add_up(lines(run), run)
    assert {line.payload_bytes - line.values_bytes for line in down} == {(4810 + 7) // 8}


def test_rejected_replies_and_errors_count_and_hold_no_values(tmp_path):
    def client(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 0:
            reply.content["update"] = ArrayRecord({"payload": raw_array(np.zeros(77, "u1"))})
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 1:
            raise OSError("no disk")
        return reply

    run = run_local(tmp_path / "run", client=client, clients=3, rounds=1, min_survivors=1)
    assert run.rows[0].answered == "2"
    assert add_up(lines(run), run)
    up = {line.client: (line.values_bytes, line.payload_bytes) for line in lines(run) if line.direction == "up"}
    assert up[0] == (0, 77)
    assert up[1] == (0, 0)
    assert up[2][0] > 0


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


def test_what_a_crash_left_is_cut_before_an_engine_starts(stopped):
    """An engine that follows rounds.csv would show it as the round that is still to come."""
    tables = (stopped.directory.rounds, stopped.directory.messages)
    before = [path.read_bytes() for path in tables]
    for path, content in zip(tables, before, strict=True):
        path.write_bytes(content + content.splitlines(keepends=True)[-1].replace(b"1,", b"2,", 1))
    restore(stopped.directory)
    assert [path.read_bytes() for path in tables] == before


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


def test_the_file_by_hand(tmp_path):
    report = RoundReport(round=3, asked=[4], sent=[Sent(4, "down", 1, 2, 3), Sent(4, "up", 0, 0, 5)])
    path: Path = tmp_path / "bytes.csv"
    journal = Journal(path, LINES_HEADER)
    journal.append(lines_of(report))
    journal.append(lines_of(report))
    assert path.read_text() == LINES_HEADER + 2 * "3,4,down,1,2,3\n3,4,up,0,0,5\n"
    assert LINES_HEADER == "round,client,direction,values_bytes,payload_bytes,wire_bytes\n"
    assert next(iter(read_lines(path))) == Line(
        round=3, client=4, direction="down", values_bytes=1, payload_bytes=2, wire_bytes=3
    )
