"""Runs that ended in the middle of a round, and what they must come to when they are resumed."""

import contextlib
import io
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from rich.console import Console

from fedlsg.privacy import SERVER, Ledger
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.engines import local
from fedlsg.simulations.run.commands import resume_command
from fedlsg.simulations.storage.messages.byte_lines import read_lines
from fedlsg.strategies.protocol.wire import read_update
from tests.simulations.support.runs import Run, ignore, plan_at, run_local

KINDS: dict[str, dict[str, Any]] = {
    "steps": {"method": "lsg-probe", "probes": 20, "downlink": "sparse", "record_updates": True},
    "memory": {"method": "topk", "noise_multiplier": None, "codec": "int8"},
    "pruned": {
        "method": "dp-ssgd",
        "prune": "dp-snip",
        "prune_rate": 0.3,
        "indices": "explicit",
        "optimizer": "adam",
    },
}
"""Between them they keep every kind of file that a run directory can hold."""
ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The unbroken run, one that was interrupted when client 0 had answered round 3, and a finished
    one.
    """

    unbroken: Run
    interrupted: Path


def break_run(folder: Path, kind: str) -> Broken:
    """Both runs of a kind."""
    settings = {"rounds": ROUNDS, **KINDS[kind]}
    unbroken = run_local(folder / "unbroken", **settings)
    plan, directory = plan_at(folder / "interrupted", **settings)

    def client(message: Message, context: Context) -> Message:
        asked = message.content.config_records.get("round", {})
        if asked.get("round") == 3 and context.node_config["partition-id"] == 1:
            raise KeyboardInterrupt
        return app(message, context)

    with contextlib.suppress(KeyboardInterrupt):
        local.run(plan, directory, on_round=ignore, client=client)
    return Broken(unbroken=unbroken, interrupted=directory.path)


class Tape:
    """A ClientApp that records payloads, and is interrupted when it is asked for one (round,
    client).
    """

    def __init__(self, interrupt: tuple[int, int] | None = None) -> None:
        self.interrupt = interrupt
        self.sent: dict[tuple[int, int], bytes] = {}

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == "query":
            return app(message, context)
        key = int(message.content["round"]["round"]), int(context.node_config["partition-id"])
        if key == self.interrupt:
            raise KeyboardInterrupt
        reply = app(message, context)
        self.sent[key] = read_update(reply.content)
        return reply


def state_of(run: Run) -> dict[str, Any]:
    """All that a resumed run must have as the unbroken one: seconds and the sizes of messages with
    random ids apart.
    """
    apart = {"seconds", "times", "uplink_bytes_wire", "downlink_bytes_wire"}
    saved = run.directory.load_checkpoint()
    return {
        "server": saved["server"],
        "ledgers": run.ledgers,
        "rows": [{k: v for k, v in vars(row).items() if k not in apart} for row in run.rows],
        "lines": [
            (li.round, li.client, li.direction, li.payload_bytes)
            for li in read_lines(run.directory.messages)
        ],
        "accuracy": run.directory.read_summary()["accuracy"],
        "epsilon": run.directory.read_summary()["epsilon_max"],
    }


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.equal(other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def copy_run(run: Path, to: Path) -> Run:
    """A copy of a run directory that knows where it is."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(run, to)
    return Run(to)


def resumed(run: Run) -> str:
    """Resume as the command does; returns what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        resume_command(str(run.path), Console(file=printed, width=200))
    return printed.getvalue()


def leave_old_ledgers(run: Run) -> None:
    """Ledgers of single clients and of a server next to the run's, as older versions left them."""
    charges = run.directory.charges
    for client in charges.clients():
        Ledger(run.directory.ledger(client), client=client).charge(
            replace(run.entries(client)[0], attempt=7)
        )
    for_all = replace(
        run.entries(0)[0],
        client=SERVER,
        unit="client",
        sample_rate=1.0,
        mechanism="dp",
        noise_multiplier=1.0,
    )
    Ledger(run.directory.ledger(SERVER), client=SERVER).charge(for_all)
