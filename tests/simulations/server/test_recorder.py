"""What a run writes while it goes on, and what a resumed one insists on."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, MessageType

from fedlsg.config.selection import UNIFORM
from fedlsg.privacy.ledger import Ledger
from fedlsg.privacy.ledger_entry import encode_line
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.engines import local
from fedlsg.simulations.storage.round_tables import Row
from tests.simulations.support.runs import Run, plan_at, resume_local, run_local


@pytest.mark.parametrize(
    ("settings", "private"),
    [
        ({"reproducible": False}, True),
        ({}, False),
        ({"reproducible": False, "mechanism": "none", "noise_multiplier": None}, False),
        ({"reproducible": False, "mechanism": "clip-only", "noise_multiplier": None}, False),
        ({"reproducible": False, "mechanism": "noise-only"}, False),
        ({"reproducible": False, "method": "sgd", "noise_multiplier": None}, False),
    ],
    ids=["dp", "seeded", "none", "clip-only", "noise-only", "sgd"],
)
def test_only_clipped_runs_with_secret_noise_have_an_epsilon(settings, private, tmp_path):
    run = run_local(tmp_path / "run", rounds=1, **settings)
    assert run.summary["private"] is private
    assert math.isfinite(run.summary["epsilon_max"]) is private
    assert (json.loads(run.directory.summary.read_text())["epsilon_max"] == "inf") is not private
    assert math.isfinite(run.rows[0].epsilon_max) is private
    assert bool(run.summary["epsilon_by_reader"]) is private


WHOLE = "2,0.1,2.3,0.2,0.2,1,1,1,1,1,1,0.1,0 1,0 1,,"


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "torn",
    [
        "1",
        "2",
        "12,0.",
        "2,0.1,2.3",
        '2,0.1,2.3,0.2,0.2,1,1,1,1,1,1,0.1,0 1,"',
        WHOLE,
        WHOLE + "\r\n",
    ],
)
def test_what_a_crash_left_after_the_checkpoint_is_cut(torn, stopped, small):
    """Row, then checkpoint: a crash in between leaves a row too many, a power failure a part of
    one.
    """
    with stopped.directory.rounds.open("a", newline="") as file:
        file.write(torn)
    run = resume_local(stopped.path)
    assert [row.round for row in run.rows] == [1, 2]
    assert run.rows[1].accuracy == small.rows[1].accuracy
    assert run.summary["uplink_bytes"] == small.summary["uplink_bytes"]


def edit(path: Path, number: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number] = lines[number].replace(b'"noise_multiplier": 2.0', b'"noise_multiplier": 9.0')
    lines[number] = lines[number].replace(b"add/remove", b"replace")
    path.write_bytes(b"".join(lines))


def rewritten(path: Path) -> None:
    """The last record with another noise, and with the digest that belongs to it."""
    *lines, last = path.read_bytes().splitlines()
    record = json.loads(last)
    record["charged"]["noise_multiplier"] = 9.0
    previous = record.pop("prev")
    del record["sha256"]
    path.write_bytes(b"\n".join([*lines, encode_line(record, previous), b""]))


def cut(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def ledger(run: Run) -> Path:
    return run.directory.ledgers / "run.jsonl"


DAMAGE: dict[str, tuple[Callable[[Run], Any], str]] = {
    "no ledger": (lambda run: shutil.rmtree(run.directory.ledgers), "run.jsonl.*ledger is missing"),
    "last line edited": (lambda run: edit(ledger(run), -1), "run.jsonl, line 2: .*its digest"),
    "last line rewritten": (lambda run: rewritten(ledger(run)), "run.jsonl.*not those that"),
    "header edited": (lambda run: edit(ledger(run), 0), "run.jsonl, line 1: .*its digest"),
    "last line cut": (lambda run: cut(ledger(run)), "run.jsonl.*fewer than the checkpoint's 1"),
    "checkpoints damaged": (
        lambda run: [
            path.write_bytes(b"damaged")
            for path in (run.directory.checkpoint, run.directory.previous)
        ],
        "latest.pt is damaged, and there is no whole previous.pt either",
    ),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("kind", DAMAGE)
def test_resume_insists_on_ledger_and_checkpoint(kind, stopped):
    damage, message = DAMAGE[kind]
    damage(stopped)
    with pytest.raises(ValueError, match=message):
        resume_local(stopped.path)
    assert not stopped.directory.summary.exists()
    assert [row.round for row in stopped.rows] == [1]


def test_what_a_client_charges_after_its_round_is_in_the_next_checkpoint(tmp_path):
    """Else a resumed run would not miss it, were it lost: the straggler's noise has left all the
    same.
    """
    first, second = (UNIFORM.select(6, 2, round=round, seed=0) for round in (1, 2))
    late = next(client for client in first if client not in second)
    plan, directory = plan_at(tmp_path / "run", clients=6, clients_per_round=2, min_survivors=1)

    def silent(message: Message, context: Context) -> Message | None:
        asked = message.metadata.message_type == MessageType.TRAIN
        return (
            None if asked and context.node_config["partition-id"] == late else app(message, context)
        )

    def charge(row: Row) -> None:
        if row.round == 1:
            charges, own = directory.charges, Ledger(directory.ledger(late), late)
            assert not charges.of(late).entries
            own.charge(replace(charges.of(first[first[0] == late]).entries[0], client=late))

    local.run(plan, directory, on_round=charge, client=silent)
    assert (
        directory.load_checkpoint()["ledgers"][str(late)]
        == Ledger(directory.ledger(late), late).snapshot()
    )
