"""Two deployed clients with data of their own and a server, in one process: the real server over
real messages.
"""

import json
import math
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

import fedlsg.simulations.client.node.conditions
import fedlsg.simulations.planning.base.initial_state
import fedlsg.simulations.server.server_app
import fedlsg.strategies.protocol.nodes
from fedlsg.accounting.certified import epsilon
from fedlsg.carriers.probe import ProbeSource
from fedlsg.privacy.ledger import Ledger
from fedlsg.simulations.client.virtual import FIRST_NODE
from fedlsg.simulations.engines.local import task_identity
from fedlsg.simulations.planning.base.start_weights import find_source
from fedlsg.simulations.server.server_app import run_rounds
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.settings import as_config, from_mapping
from fedlsg.simulations.storage.results import read_clients
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import LoadedWorkload
from tests.simulations.support.deployed import RUN, DeployedGrid, digits_file, terms

ROWS = (slice(0, 300), slice(300, 800))
"""Two hospitals of different sizes."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that refuses is asked again at once."""
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "ASK_AGAIN_SECONDS", 0.05)


def run(
    tmp_path: Path,
    name: str,
    nodes: dict[str, Any] | None = None,
    each: Sequence[dict[str, Any]] = ({}, {}),
    **settings: Any,
) -> dict[str, Any]:
    """A run of two clients; returns its summary. ``nodes``: of both node configs, ``each``: of each
    of them.
    """
    clients = []
    for client, rows in enumerate(ROWS):
        data = digits_file(tmp_path / f"rows-{client}.npz", rows)
        node = terms(
            tmp_path / f"node-{client}",
            data=f"digits:{data}",
            partition_id=client,
            num_partitions=None,
        )
        clients.append(node | (nodes or {}) | each[client])
    given = RUN | {"clients": None, "run_dir": str(tmp_path / name)} | settings
    config = dict(
        as_config(from_mapping({key: value for key, value in given.items() if value is not None}))
    )
    (tmp_path / name).mkdir(exist_ok=True)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with task_identity():
        run_rounds(DeployedGrid(clients, config), context)
    summary: dict[str, Any] = json.loads((tmp_path / name / "summary.json").read_text())
    return summary


def check_copies(tmp_path: Path, name: str) -> None:
    for client in range(2):
        copy = RunDir(tmp_path / name).ledger(client).read_bytes()
        assert copy == (tmp_path / f"node-{client}" / "ledger.jsonl").read_bytes()


def test_two_hospitals_and_a_server_agree_on_epsilon(tmp_path):
    summary = run(tmp_path, "run")
    check_copies(tmp_path, "run")
    ledgers = [Ledger(tmp_path / f"node-{client}" / "ledger.jsonl", client) for client in range(2)]
    assert [[e.num_examples for e in ledger.entries] for ledger in ledgers] == [
        [300] * 3,
        [500] * 3,
    ]
    assert summary["epsilon_max"] == max(ledger.epsilon(1e-5).upper for ledger in ledgers)
    assert (summary["private"], summary["rounds"], summary["clients"]) == (True, 3, 2)


SETTINGS: dict[str, dict[str, Any]] = {
    "a rate for each size": {"batch_size": 20, "sample_rate": None},
    "replicas": {"downlink": "sparse", "momentum": 0.9},
    "replicas of a client that knows no number of clients": {
        "downlink": "sparse",
        "clients_per_round": 1,
        "rounds": 5,
    },
    "local steps": {"local_steps": 3, "local_momentum": 0.5},
    "masks of an epoch": {"method": "rs", "redraw": "epoch", "sparsity": 0.5},
    "pruning that reads the data": {"method": "dp-ssgd", "prune": "dp-snip", "prune_rate": 0.3},
    "carriers of probes": {"method": "probe", "probes": 20, "refresh_rounds": 2},
    "carriers of probes, one client a round": {
        "method": "lsg-probe",
        "probes": 20,
        "refresh_rounds": 3,
        "clients_per_round": 1,
        "rounds": 5,
    },
    "a coarse codec": {"codec": "noise-floor"},
    "shuffled batches": {
        "sampling": "shuffle",
        "batch_size": 60,
        "sample_rate": None,
        "noise_multiplier": 5.0,
    },
    "an epsilon": {"noise_multiplier": None, "epsilon": 2.0},
}


@pytest.mark.slow
def test_a_stricter_hospital_has_an_epsilon_of_its_own(tmp_path):
    """The run says 3; the first hospital spends 1, and counts less."""
    summary = run(tmp_path, "run", each=[{"epsilon": 1.0}, {}], noise_multiplier=None, epsilon=3.0)
    check_copies(tmp_path, "run")
    strict, other = (
        Ledger(tmp_path / f"node-{client}" / "ledger.jsonl", client) for client in range(2)
    )
    assert 0.98 < strict.epsilon(1e-5).upper <= 1.0
    assert 2.9 < other.epsilon(1e-5).upper <= 3.0
    assert summary["epsilon_max"] == other.epsilon(1e-5).upper
    assert RunDir(tmp_path / "run").read_config().client_epsilons == "#0=1.0"


@pytest.mark.slow
def test_the_run_s_word_for_a_hospital_holds_next_to_the_terms_of_another(tmp_path):
    given = {"noise_multiplier": None, "epsilon": 3.0, "client_epsilons": "#0=1.0, #1=3.0"}
    run(tmp_path, "run", each=[{}, {"epsilon": 2.0}], **given)
    for client, own in enumerate((1.0, 2.0)):
        spent = Ledger(tmp_path / f"node-{client}" / "ledger.jsonl", client).epsilon(1e-5).upper
        assert 0.98 * own < spent <= own


@pytest.mark.slow
def test_a_stricter_hospital_has_a_delta_of_its_own(tmp_path):
    """The run says 1e-5; the first hospital says 1e-8, which is its delta-max, too."""
    own = {"delta": 1e-8, "delta-max": 1e-8}
    run(tmp_path, "run", each=[own, {}], noise_multiplier=None, epsilon=3.0)
    check_copies(tmp_path, "run")
    for client, delta in enumerate((1e-8, 1e-5)):
        ledger = Ledger(tmp_path / f"node-{client}" / "ledger.jsonl", client)
        assert 2.9 < ledger.epsilon(delta).upper <= 3.0
    settings = RunDir(tmp_path / "run").read_config()
    assert (settings.client_epsilons, settings.client_deltas) == (None, "#0=1e-08")
    rows = read_clients(RunDir(tmp_path / "run"))
    assert [row["delta"] for row in sorted(rows, key=lambda row: row["client"])] == [1e-8, 1e-5]


@pytest.mark.parametrize(
    ("own", "why"),
    [({"delta": 1e-4}, r"delta=0.0001 <= delta-max"), ({"delta-max": 1e-8}, "or a delta of its")],
)
def test_a_delta_that_the_hospital_does_not_give_is_refused(tmp_path, monkeypatch, own, why):
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match=why):
        run(tmp_path, "run", each=[own, {}], noise_multiplier=None, epsilon=3.0)


def test_an_epsilon_above_what_the_hospital_has_in_all_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match=r"epsilon=50 <= epsilon-max=3"):
        run(tmp_path, "run", each=[{"epsilon": 50.0}, {}], noise_multiplier=None, epsilon=3.0)


def test_an_epsilon_of_its_own_needs_noise_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match="leave epsilon out of its node config"):
        run(
            tmp_path,
            "run",
            nodes={"trust": "secure", "num-partitions": 2},
            each=[{"epsilon": 1.0}, {}],
            noise_multiplier=None,
            epsilon=3.0,
            trust="secure",
            clients=2,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if turn % 2 == 0 else pytest.param(name, marks=pytest.mark.slow)
        for turn, name in enumerate(SETTINGS)
    ],
)
def test_every_round_is_answered_by_all_who_are_asked(name, tmp_path):
    """Frames, replicas, divisors and rates are what the server expects, though no client knows the
    other's size.
    """
    settings = SETTINGS[name]
    nodes = {"num-partitions": 2} if name == "replicas" else {}
    summary = run(tmp_path, "run", nodes, **settings)
    check_copies(tmp_path, "run")
    rows = RunDir(tmp_path / "run").read_rounds()
    assert [row["rejected"] for row in rows] == [""] * len(rows), [row["reasons"] for row in rows]
    assert summary["private"]


@pytest.mark.slow
@pytest.mark.parametrize("downlink", ["full", "sparse"])
def test_what_a_client_must_not_draw_it_is_sent(downlink, tmp_path, own_code, monkeypatch):
    """A function that a setting names never runs there: at each refresh every client is sent the
    carriers.
    """
    (tmp_path / "mine.py").write_text(
        "import torch\ndef draw(count, generator): return torch.randn(count, 1, 8, 8, "
        "generator=generator)\n"
    )
    found: list[bool] = []

    def watched(spec: str, workload: LoadedWorkload, settings: Resolved) -> ProbeSource:
        found.append(len(workload.train) == 0)
        return find_source(spec, workload, settings)

    monkeypatch.setattr(fedlsg.simulations.planning.base.initial_state, "find_source", watched)
    settings = {
        "method": "probe",
        "probes": 20,
        "refresh_rounds": 2,
        "source": f"{tmp_path}/mine.py:draw",
    }
    summary = run(tmp_path, "run", {"num-partitions": 2}, downlink=downlink, **settings)
    rows = RunDir(tmp_path / "run").read_rounds()
    assert [row["answered"] for row in rows] == ["0 1"] * 3
    assert [row["downlink_messages"] for row in rows] == ["4", "2", "4"]
    assert summary["downlink"].get("repairs", 0) == 0
    assert found
    assert all(found), "a client, which has rows of its own, looked for the source"


SECURE = {"nodes": {"trust": "secure", "num-partitions": 2}, "trust": "secure", "clients": 2}


@pytest.mark.slow
def test_two_hospitals_and_a_server_that_sees_their_sum_alone(tmp_path):
    summary = run(tmp_path, "run", record_updates=True, **SECURE)
    check_copies(tmp_path, "run")
    assert summary["secure_sum"] == {
        "clients": 2,
        "min_survivors": 2,
        "colluders": 1,
        "contributors": 1,
    }
    assert (summary["private"], summary["rounds"], summary["empty_rounds"]) == (True, 3, 0)
    entries = Ledger(tmp_path / "node-0" / "ledger.jsonl", 0).entries
    assert [entry.attempt for entry in entries] == [0, 0, 0]
    assert all(entry.log_ratio > 0 for entry in entries)
    assert {(entry.min_survivors, entry.colluders) for entry in entries} == {(2, 1)}
    found = summary["epsilon_by_reader"]
    assert found["participant"] == found["server_and_participants"] == summary["epsilon_max"]
    sigma = 2.0 * math.sqrt(2)  # of two whole shares
    assert found["outside"] == pytest.approx(
        epsilon(sample_rate=0.05, noise_multiplier=sigma, steps=3, delta=1e-5).upper
    )
    assert {
        path.name for path in (tmp_path / "run" / "updates" / "round-000001").glob("*.npy")
    } >= {"sum.npy"}


def test_a_client_that_does_not_accept_a_share_of_the_noise_refuses_the_run(tmp_path, monkeypatch):
    # a node may change its mind for so long
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 0.15)
    with pytest.raises(
        RuntimeError,
        match="trust=secure: alone, this client's payload would carry too little noise",
    ):
        run(tmp_path, "run", trust="secure", clients=2)


@pytest.mark.slow
def test_a_client_that_fears_more_colluders_than_the_run_refuses_it(tmp_path, monkeypatch):
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 0.15)
    nodes = {"nodes": SECURE["nodes"] | {"colluders": 2}}
    with pytest.raises(RuntimeError, match=r"colluders=1: the run's noise .* asks for 2"):
        run(tmp_path, "run", **SECURE | nodes)
    assert Ledger(tmp_path / "node-0" / "ledger.jsonl", 0).entries == ()


CLIENT_LEVEL: dict[str, Any] = {
    "unit": "client",
    "trust": "secure",
    "clients": 2,
    "colluders": 1,
    "min_survivors": 2,
    "batch_size": 20,
    "sample_rate": None,
    "local_steps": 3,
    "noise_multiplier": 4.0,
}
NODE = {"unit": "client", "trust": "secure", "num-partitions": 2}


@pytest.mark.parametrize(
    ("nodes", "settings", "why"),
    [
        ({**NODE, "unit": "example"}, CLIENT_LEVEL, "protect one example"),
        (NODE, {"trust": "client"}, "protect one client"),
    ],
)
def test_a_hospital_takes_part_in_runs_of_its_own_unit_alone(
    nodes, settings, why, tmp_path, monkeypatch
):
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 0.15)
    with pytest.raises(RuntimeError, match=why):
        run(tmp_path, "run", nodes, **settings)
    assert Ledger(tmp_path / "node-0" / "ledger.jsonl", 0).entries == ()


@pytest.mark.slow
def test_a_client_of_more_rows_than_the_noise_is_planned_for_refuses_the_run(tmp_path, monkeypatch):
    """It checks this itself: a server that does not would let rounding move sums further than the
    noise's margin.
    """
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 0.15)
    monkeypatch.setattr(fedlsg.simulations.client.node.conditions, "MOST_EXAMPLES", 400)
    with pytest.raises(
        RuntimeError, match="trust=secure is planned for clients of 400 training rows at most"
    ):
        run(tmp_path, "run", **SECURE)


def test_a_run_that_lost_its_checkpoints_is_not_begun_again_by_its_config(tmp_path):
    """Its finished rounds would be trained, and charged, once more."""
    run(tmp_path, "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    before = (tmp_path / "node-0" / "ledger.jsonl").read_bytes()
    with pytest.raises(ValueError, match="has ledgers and no checkpoint"):
        run(tmp_path, "run")
    assert (tmp_path / "node-0" / "ledger.jsonl").read_bytes() == before


class LastReplyLost(DeployedGrid):
    """Client 0 is silent in round 3. ``trains``: it was charged before; ``stays``: it still answers
    a query.
    """

    def __init__(self, *given: Any, trains: bool, stays: bool) -> None:
        super().__init__(*given)
        self.trains, self.stays, self.lost = trains, stays, False

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Any:
        for message in messages:
            is_last = (
                message.metadata.group_id == "3" and message.metadata.dst_node_id == FIRST_NODE
            )
            self.lost |= is_last
            if self.trains or not is_last:
                (reply,) = super().deliver([message], timeout)
            if not is_last:
                yield reply

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE + 1] if self.lost and not self.stays else [FIRST_NODE, FIRST_NODE + 1]


@pytest.mark.parametrize(("trains", "stays"), [(True, False), (False, True), (True, True)])
def test_a_charge_that_the_server_cannot_see_counts_in_its_epsilon(
    trains, stays, tmp_path, monkeypatch, caplog
):
    """Client 0 spends more in a round than client 1, so epsilon is its epsilon. Negative control:
    what the copies alone have is less than it has spent.
    """
    monkeypatch.setattr(
        sys.modules[__name__],
        "DeployedGrid",
        partial(LastReplyLost, trains=trains, stays=stays),
    )
    with caplog.at_level(WARNING, "flwr"):
        summary = run(
            tmp_path, "run", batch_size=20, sample_rate=None, clients=2, client_timeout=1.0
        )
    own = Ledger(tmp_path / "node-0" / "ledger.jsonl", 0)
    copy = Ledger(RunDir(tmp_path / "run").ledger(0), 0)
    assert len(own.entries) == (3 if trains else 2)
    assert len(copy.entries) == (3 if trains and stays else 2)
    three = Ledger(tmp_path / "three.jsonl", 0)
    for entry in own.entries[:2]:
        three.charge(entry)
    three.charge(replace(own.entries[0], round=3))
    assert summary["epsilon_max"] == pytest.approx(three.epsilon(1e-5).upper)
    assert copy.epsilon(1e-5).upper < summary["epsilon_max"] or (trains and stays)
    said = "count as charged: none" if trains and stays else "count as charged: [3]"
    assert said in caplog.text


def spends(tmp_path: Path, node: int) -> list[float]:
    """Noise multipliers in a hospital's ledger."""
    path = tmp_path / f"node-{node}" / "ledger.jsonl"
    return [entry.noise_multiplier for entry in Ledger(path, node).entries]


MOST = 0.29
"""Epsilon that carries five rounds of ``RUN``, of which an earlier run of three has spent 0.249."""


def second_run(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """A run whose hospitals have an epsilon-max that does not carry it."""
    nodes = {"epsilon-max": MOST}
    run(tmp_path, "first", nodes)
    return run(tmp_path, "second", nodes, **settings)


def test_a_run_that_a_budget_does_not_carry_is_refused_before_a_charge(tmp_path):
    with pytest.raises(
        ValueError, match=r"nobody was charged: client 0 has .*=0.29 .* of its 3"
    ) as e:
        second_run(tmp_path)
    assert [len(spends(tmp_path, node)) for node in range(2)] == [3, 3]
    fit = int(re.search(r"(\d) of its 3 rounds fit", str(e.value)).group(1))
    assert 0 < fit < 3
    spent = float(re.search(r"with ([\d.]+) spent", str(e.value)).group(1))
    assert spent == pytest.approx(0.2493, abs=1e-3)
    assert not (tmp_path / "second" / "summary.json").exists()


def test_a_partial_run_trains_the_rounds_that_fit_and_says_in_the_end_that_it_stopped(
    tmp_path, caplog
):
    with caplog.at_level(WARNING, "flwr"):
        summary = second_run(tmp_path, partial_run=True)
    said = re.search(r"(\d) of its 3 rounds fit", caplog.text)
    # what was said before the first charge is what the hospital does
    assert said
    assert [len(spends(tmp_path, node)) - 3 for node in range(2)] == [int(said.group(1))] * 2
    last = caplog.records[-1].getMessage()
    assert last.startswith(f"stopped early, after round {summary['rounds']} of 3: ")
    assert str(summary["stopped"]) in last


def test_a_run_that_fits_is_not_asked(tmp_path, caplog):
    """Control: more noise."""
    with caplog.at_level(WARNING, "flwr"):
        summary = second_run(tmp_path, noise_multiplier=8.0)
    assert (summary["rounds"], summary["stopped"]) == (3, None)
    assert "budget ends" not in caplog.text
    assert "stopped early" not in caplog.text


def test_a_budget_that_was_never_touched_is_asked_too(tmp_path):
    with pytest.raises(ValueError, match=r"client 0 has epsilon-max=0.2 .* 0 spent: 1 of its 3"):
        run(tmp_path, "run", each=({"epsilon-max": 0.2}, {}))
    assert spends(tmp_path, 0) == spends(tmp_path, 1) == []
