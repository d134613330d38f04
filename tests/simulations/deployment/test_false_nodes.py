"""No message of a node ends a run: whatever it sends, the others go on, and it is named in report
and log.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

import fedlsg.strategies.protocol.nodes
from benchmarks.flower.false_node import KINDS, FalseNode
from benchmarks.flower.node_fuzz import fuzz
from fedlsg.simulations.client.virtual import FIRST_NODE, give_id
from fedlsg.simulations.engines.local import LocalGrid, task_identity
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.report.page_of_run.run_page import read_run, run_page
from fedlsg.simulations.server.deployment import Deployment
from fedlsg.simulations.server.server_app import run_rounds
from fedlsg.simulations.settings.settings import as_config, from_mapping
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.protocol import expectations, watched_grid
from fedlsg.strategies.protocol.proofs import LedgerCopies
from fedlsg.strategies.protocol.wire import over_the_wire

HONEST, FALSE, ROUNDS = 5, 4, 15
SETTINGS: dict[str, Any] = {
    "clients": HONEST + FALSE,
    "rounds": ROUNDS,
    "sample_rate": 0.05,
    "noise_multiplier": 2.0,
    "delta": 1e-5,
    "method": "dpsgd",
    "codec": "float32",
    "evaluate_every": ROUNDS,
    "engine": "local",
}


class Nodes(LocalGrid):
    """Nodes that answer without training; the last ones are false."""

    def __init__(self, nodes: Sequence[FalseNode], config: dict[str, Any]) -> None:
        super().__init__(self.answer, len(nodes), config)
        self.nodes = nodes

    def representatives(self) -> range:
        return range(len(self.nodes))

    def answer(self, message: Message, context: Context) -> Message:
        return give_id(self.nodes[int(context.node_config["partition-id"])].reply(message))

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Any:
        """The replies, filed under the message that they answer, whatever they say."""
        for message in messages:
            node = self.nodes[message.metadata.dst_node_id - FIRST_NODE]
            reply = node.reply(over_the_wire(message))
            self._replies[message.metadata.message_id] = give_id(reply)
        return ()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "ASK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(watched_grid, "POLL_SECONDS", 0.0)


def federation(chance: float = 0.9) -> list[FalseNode]:
    settings = from_mapping({k: v for k, v in SETTINGS.items()})
    plan = make_plan(settings, declared=[500 + client for client in range(HONEST + FALSE)])
    return [
        FalseNode(
            client=client,
            plan=plan,
            rng=random.Random(client),
            chance=chance if client >= HONEST else 0.0,
            pairs=5,
        )
        for client in range(HONEST + FALSE)
    ]


def run(folder: Path, nodes: list[FalseNode], **settings: Any) -> tuple[dict[str, Any], list[Row]]:
    """The summary of a run with these nodes, and its rows."""
    config = dict(as_config(from_mapping(SETTINGS | {"run_dir": str(folder)} | settings)))
    folder.mkdir()
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with task_identity():
        run_rounds(Nodes(nodes, config), context)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary, [Row.parse(row) for row in RunDir(folder).read_rounds()]


@pytest.mark.slow
def test_a_run_ends_with_its_result_whatever_some_nodes_send(tmp_path, caplog):
    nodes = federation()
    summary, rows = run(tmp_path / "run", nodes)
    assert (summary["rounds"], summary["empty_rounds"], summary["stopped"]) == (ROUNDS, 0, None)
    assert summary["private"]
    assert summary["epsilon_max"] < 1000
    for row in rows:
        assert set(map(str, range(HONEST))) <= set(row.answered.split())
        assert len(row.reasons) <= FALSE * (expectations.REASON_LENGTH + 20)
        assert row.reasons.isprintable()
    sent = [kind for node in nodes for kind in node.sent if kind != "honest"]
    assert set(sent) <= set(KINDS)
    assert len(sent) > 30
    page = run_page(read_run(tmp_path / "run"))
    assert "<script>alert" not in page
    assert sum(f.stat().st_size for f in (tmp_path / "run").rglob("*") if f.is_file()) < 2**26
    assert max(map(len, caplog.text.splitlines())) < 10_000


@pytest.mark.slow
@pytest.mark.ray
def test_the_same_of_raw_nodes_at_a_real_superlink(tmp_path):
    """A hundred replies that no honest node sends, some of which are no messages; ``node_fuzz`` has
    more.
    """
    found = fuzz(tmp_path, messages=100, clients=22, seed=0, patience=900)
    assert found["status"] == "finished:completed"
    assert (found["honest replies rejected"], found["without update"]) == (0, 0)
    assert found["false messages"] > 70
    assert found["rejected"] > 60
    assert found["longest line of the log"] < 10_000


@pytest.mark.slow
def test_a_run_that_is_continued_goes_on_without_a_ledger_that_lost_entries(tmp_path, caplog):
    nodes = federation(chance=0.0)
    run(tmp_path / "run", nodes, rounds=2, evaluate_every=2)
    nodes[-1]._lines[:] = nodes[-1]._lines[:1]
    nodes[-1].append(round=1, run="another")
    copies = LedgerCopies(folder=tmp_path / "run" / "ledger", run="x")
    deployment = Deployment(timeout=1.0)
    config = dict(as_config(from_mapping(SETTINGS)))
    with task_identity():
        grid = Nodes(nodes, config)
        assert len(deployment.gather(grid, len(nodes))) == len(nodes)
        deployment.open(copies.folder, "x")
    assert deployment.roster.node(nodes[-1].client) is None
    assert deployment.roster.node(0) is not None
    assert (
        f"client {nodes[-1].client} cannot take part: the ledger that client {nodes[-1].client}"
        in caplog.text
    )
