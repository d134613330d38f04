"""Deployed clients in one process: nodes with node configs of their own, each with its own folder,
over real messages.

A node is what Flower's SuperNode is to the ClientApp: a node config, and a new process whenever a
test wants one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, MessageType, RecordDict

from fedlsg.config.isolation import CHECKED
from fedlsg.frame import Frame
from fedlsg.privacy import Entry, read_entries
from fedlsg.privacy.ledger_copy import extend, head_of
from fedlsg.simulations import workloads
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.client.deployed import node_process
from fedlsg.simulations.client.process_state import process
from fedlsg.simulations.client.virtual import FIRST_NODE, give_id
from fedlsg.simulations.engines.local import LocalGrid, task_identity
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.settings.settings import as_config, from_mapping
from fedlsg.state.server_state import ServerState
from fedlsg.strategies.protocol.proofs import CODE, Held, code_record, held_record, read_news
from fedlsg.strategies.protocol.wire import (
    Announcement,
    announced_to,
    flat_record,
    over_the_wire,
    read_identity,
    read_update,
)

RUN: dict[str, Any] = {
    "clients": 2,
    "rounds": 3,
    "sample_rate": 0.05,
    "noise_multiplier": 2.0,
    "delta": 1e-5,
    "engine": "local",
}
"""The run config of the small deployed runs. The nodes' terms below allow it."""


def terms(folder: Path, **changes: Any) -> dict[str, Any]:
    """A node config with terms that ``RUN`` fits. Underscores stand for dashes; None leaves a key
    out.

    A path alone as ``data`` is one of digits.
    """
    config = {
        "partition-id": 0,
        "num-partitions": 2,
        "ledger-dir": str(folder),
        "epsilon-max": 3.0,
        "delta-max": 1e-5,
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    if "/" in str(config.get("data", "")) and ":" not in str(config["data"]):
        config["data"] = f"digits:{config['data']}"
    return {name: value for name, value in config.items() if value is not None}


def digits_file(path: Path, rows: Sequence[int] | slice = slice(0, 200)) -> Path:
    """Some training digits as a client's own file."""
    train = workloads.load("digits").train
    np.savez(path, inputs=train.inputs[rows], labels=train.labels.numpy()[rows])
    return path


def new_process() -> None:
    """Forget what a process keeps: Flower starts one for each message."""
    process.cache_clear()
    node_process.cache_clear()


def call(
    message: Message,
    node_config: Mapping[str, Any],
    run_config: Mapping[str, Any],
    state: RecordDict | None = None,
) -> Message:
    """The reply of the ClientApp to one message, as bytes carry it there and back; ``state``: of
    its Context.
    """
    context = Context(
        run_id=1,
        node_id=message.metadata.dst_node_id,
        node_config=dict(node_config),
        state=RecordDict() if state is None else state,
        run_config=dict(run_config),
    )
    return over_the_wire(give_id(app(over_the_wire(message), context)))


class DeployedGrid(LocalGrid):
    """A grid whose nodes are deployed: each is called with a node config of its own, in a process
    of its own.

    Flower keeps the state of a node's Context from message to message.
    """

    def __init__(self, nodes: Sequence[Mapping[str, Any]], run_config: Mapping[str, Any]) -> None:
        super().__init__(app, len(nodes), dict(run_config))
        self.nodes = list(nodes)

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Any:
        """The replies, in order."""
        for message in messages:
            new_process()
            node = message.metadata.dst_node_id
            state = self._states.setdefault(node, RecordDict())
            yield call(message, self.nodes[node - FIRST_NODE], self.run_config, state)


@dataclass(kw_only=True, eq=False)
class Server:
    """A minimal honest server for one client, for as long as its process lives; a new run is a new
    server.

    copy: where it keeps its copy of the client's ledger.
    """

    node: dict[str, Any]
    copy: Path
    run: str = "run-1"
    config: dict[str, Any]
    plan: Plan
    state: ServerState

    @classmethod
    def start(
        cls, node: Mapping[str, Any], copy: Path, *, run: str = "run-1", **settings: Any
    ) -> "Server":
        """A server of the small run with changes."""
        known = from_mapping({k: v for k, v in (RUN | settings).items() if v is not None})
        plan = make_plan(replace(known, reproducible=False))
        config = dict(as_config(known))
        return cls(
            node=dict(node),
            copy=copy,
            run=run,
            config=config,
            plan=plan,
            state=plan.initial.server(),
        )

    @property
    def client(self) -> int:
        return int(self.node.get("partition-id", 0))

    def query(self) -> Message:
        """The reply to the query; the copy takes the ledger that it brings."""
        with task_identity():
            question = Message(RecordDict({CODE: code_record()}), FIRST_NODE, MessageType.QUERY)
            reply = call(give_id(question), self.node, self.config)
        return self._noted(reply)

    def train(self, round: int = 1, **changes: Any) -> Message:
        """The reply to the announcement of a round from the initial weights; ``changes`` to what is
        announced.
        """
        held = changes.pop("held", Held(run=self.run, head=head_of(self.copy, self.client)))
        with task_identity():
            message = Message(self.announced(round, held, **changes), FIRST_NODE, MessageType.TRAIN)
            return self._noted(call(give_id(message), self.node, self.config))

    def announced(self, round: int, held: Held | None, **changes: Any) -> RecordDict:
        """What is announced of a round."""
        self.state.round = round - 1
        frame: Frame = self.state.frame()
        terms = self.plan.terms[0]
        said = Announcement(
            round=round,
            updates=0,
            frame_digest=frame.digest,
            sample_rate=terms.sample_rate,
            noise_multiplier=terms.noise_multiplier,
            expected_batch=self.plan.local.expected_batch,
            run_dir="",
            isolation=CHECKED,
            features="",
        )
        content = announced_to(
            {"weights": flat_record(self.state.weights)}, replace(said, **changes)
        )
        if held is not None:
            content["ledger"] = held_record(held)
        return content

    def _noted(self, reply: Message) -> Message:
        if not reply.has_error():
            news = read_news(reply.content)
            assert news is not None, "a deployed client sends its ledger"
            if news.lines:
                extend(self.copy, self.client, news.lines, news.head)
        return reply

    def rounds(self, most: int) -> int:
        """Rounds that the client answers, one after the other, up to ``most``."""
        for round in range(1, most + 1):
            if self.train(round).has_error():
                return round - 1
        return most


def entries(folder: Path) -> tuple[Entry, ...]:
    """What the node's ledger holds."""
    return read_entries(folder / "ledger.jsonl")


def refusal(reply: Message) -> str:
    """Code and text of a refusal."""
    assert reply.has_error(), "the client should have refused"
    return f"[{reply.error.code}] {reply.error.reason}"


def examples(reply: Message) -> int:
    """The declared N_k of an answer to the query."""
    assert not reply.has_error(), reply.error.reason
    return read_identity(reply.content)[1]


def payload(reply: Message) -> bytes:
    """The payload of an answer to an announcement."""
    assert not reply.has_error(), reply.error.reason
    return read_update(reply.content)
