"""Clients of a run with secure sums that are silent, or get messages that a server must not
send.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, MessageType, RecordDict
from torch import Tensor

from fedlsg.secure_sum.discrete import Release
from fedlsg.simulations.client.client_account import RECORD as ACCOUNT
from fedlsg.simulations.client.client_app import app as honest
from fedlsg.simulations.storage import atomic_files
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import sum_file
from fedlsg.strategies.protocol.stages import Stage, read_stage, write_stage
from fedlsg.strategies.protocol.wire import read_update, stage_of
from tests.simulations.support.runs import Run, run_local

FIVE: dict[str, Any] = {
    "clients": 5,
    "min_survivors": 4,
    "colluders": 1,
    "rounds": 1,
    "trust": "secure",
    "record_updates": True,
}
"""One client may be missing, and one may collude: noise of three counts."""
Drop = Callable[[str, int], str | None]
"""Stage and client -> "silent", "raises" or "late" (it works, and is silent then); None for an
honest client.
"""


def no_drop(stage: str, client: int) -> str | None:
    return None


@dataclass(kw_only=True)
class Seen:
    """Clients that drop out as a test says; ``stages`` lists (client, stage) as they were asked."""

    drop: Drop = no_drop
    stages: list[tuple[int, str]] = field(default_factory=list)
    replies: dict[tuple[int, str], bytes] = field(default_factory=dict)

    def __call__(self, message: Message, context: Context) -> Message | None:
        stage, client = stage_in(message), int(context.node_config["partition-id"])
        if stage is None:
            return honest(message, context)
        self.stages.append((client, stage))
        kind = self.drop(stage, client)
        if kind == "silent":
            return None
        if kind == "raises":
            raise RuntimeError("planted")
        reply = honest(message, context)
        if not reply.has_error():
            self.replies[client, stage] = read_update(reply.content)
        return None if kind == "late" else reply


Attack = Callable[[Stage], Stage | RecordDict]
"""The stage that a client is asked for -> what it gets in addition."""


@dataclass(kw_only=True)
class Abused:
    """Client 1 gets an additional message: before its honest answer of a stage, or ``after`` it."""

    at: str
    attack: Attack
    after: bool = False
    errors: list[str] = field(default_factory=list)
    answers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """The answer to the attack, and the honest one."""
    charges: list[int] = field(default_factory=list)
    """How often it was charged before and after the attack."""

    def __call__(self, message: Message, context: Context) -> Message:
        if int(context.node_config["partition-id"]) != 1 or stage_in(message) != self.at:
            return honest(message, context)
        reply = honest(message, context) if self.after else None
        state = dict(context.state.config_records)
        self.charges.append(charged(context))
        bad = honest(planted(message, self.attack(read_stage(message.content))), context)
        self.charges.append(charged(context))
        if bad.has_error():
            self.errors.append(bad.error.reason)
            assert dict(context.state.config_records) == state, "a refused message changes nothing"
        reply = honest(message, context) if reply is None else reply
        if not bad.has_error() and not reply.has_error():
            self.answers.append((read_update(bad.content), read_update(reply.content)))
        return reply


def planted(message: Message, content: Stage | RecordDict) -> Message:
    """A message to the same client; of a stage, next to what the message has already."""
    if isinstance(content, Stage):
        content = write_stage(RecordDict(dict(message.content.items())), content)
    other = Message(
        content, dst_node_id=message.metadata.dst_node_id, message_type=MessageType.TRAIN
    )
    other.metadata.__dict__["_message_id"] = "planted"
    return other


def stage_in(message: Message) -> str | None:
    """The stage of a train message, None for any other message."""
    return stage_of(message.content) if message.metadata.message_type == MessageType.TRAIN else None


def charged(context: Context) -> int:
    """Charges of the client on the local engine, without one that came with the message and is not
    used.
    """
    run = RunDir(Path(str(context.run_config["run-dir"])))
    given = context.state.config_records.get(ACCOUNT)
    unused = given is not None and given["charged"] is False
    return len(run.charges.of(int(context.node_config["partition-id"])).entries) - unused


def charged_clients(run: Run, round: int = 1) -> list[int]:
    """Clients with an entry of a round."""
    ledgers = run.directory.charges.clients()
    return [
        client for client in ledgers if any(entry.round == round for entry in run.entries(client))
    ]


def recorded_sum(run: Run, round: int = 1) -> Tensor | None:
    """What the secure sum of a round revealed, None if it was given up."""
    path = sum_file(run.path, round)
    return torch.from_numpy(atomic_files.load_array(path)) if path.exists() else None


@dataclass(frozen=True)
class Encoded:
    """What a client encoded: ``total`` without noise, ``integers`` with it."""

    total: Tensor
    release: Release
    round: int
    seed: int
    integers: Tensor


def watch_encode(patch: pytest.MonkeyPatch) -> list[Encoded]:
    """The integers of all clients, in the order in which they were drawn."""
    seen, real = list[Encoded](), Release.encode

    def watched(self: Release, total: Tensor, stream: Any, *, seed: int, round: int) -> Tensor:
        integers = real(self, total, stream, seed=seed, round=round)
        seen.append(Encoded(total.clone(), self, round, seed, integers.clone()))
        return integers

    patch.setattr(Release, "encode", watched)
    return seen


def decoded(parts: list[Encoded]) -> Tensor:
    """The sum of clients as the server would decode it."""
    first = parts[0]
    total = sum(part.integers for part in parts) % first.release.grid.modulus
    return first.release.decode(total, seed=first.seed, round=first.round)


def run_five(out: Path, client: Any = honest, **settings: Any) -> Run:
    """A run of five clients."""
    return run_local(out, client=client, **(FIVE | settings))
