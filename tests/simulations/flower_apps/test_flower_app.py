"""fedlsg.flower: a ClientApp and a Strategy for a workload of an app's own, on a grid of Flower
messages.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from torch import nn

import fedlsg
import fedlsg.flower
from fedlsg import strategies
from fedlsg.simulations.client.process_state import process
from fedlsg.simulations.client.virtual import FIRST_NODE, SHARED, call_client, give_id
from fedlsg.simulations.engines.local import LocalGrid, task_identity
from fedlsg.simulations.flower_apps.client import OWN_CODE, RECORD, announcement, code_digest
from fedlsg.strategies.protocol.proofs import CODE, code_record, read_news
from fedlsg.strategies.protocol.wire import over_the_wire, read_identity
from tests.places import REPOSITORY
from tests.simulations.support.deployed import new_process, terms

SETTINGS: dict[str, Any] = {
    "method": "lsg",
    "rank": 1,
    "epsilon": 6.0,
    "sample_rate": 0.2,
    "learning_rate": 0.5,
    "reproducible": True,
}
FOREIGN = {"num-server-rounds": 2, "lr": 0.01, "fraction-evaluate": 0.5}
"""Keys of the app's own run config."""


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] > 0).astype(np.int64)


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def two_sides() -> fedlsg.Workload:
    return fedlsg.Workload(
        model=build, train=rows(120, 0), test=rows(60, 1), loss=nn.CrossEntropyLoss()
    )


class Nodes(LocalGrid):
    """Flower's own simulation, as far as the server sees it: nodes in one process, no order that is
    known.
    """

    def __init__(self, app: Any, count: int) -> None:
        super().__init__(app, count, FOREIGN)

    def deliver(self, messages: Any, timeout: float | None) -> Any:
        for message in messages:
            reply = call_client(
                self.client, over_the_wire(message), self.num_partitions, self.run_config
            )
            if reply is not None:
                yield over_the_wire(reply)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr("flwr.superlink.grid.inmemory_grid.InMemoryGrid", Nodes)
    process.cache_clear()
    yield
    process.cache_clear()
    strategies.forget()


def without_gaps(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def start(app: Any, folder: Path, nodes: int = 3, **settings: Any) -> fedlsg.Run:
    strategy = fedlsg.flower.Strategy(
        two_sides, out=folder, **without_gaps({**SETTINGS, **settings})
    )
    with task_identity():
        result = strategy.start(Nodes(app, nodes), num_rounds=2)
    assert strategy.run is not None
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert sorted(result.train_metrics_clientapp) == [1, 2]
    trained = result.arrays.to_torch_state_dict()
    assert all(
        torch.equal(trained[name], value) for name, value in strategy.run.model.state_dict().items()
    )
    return strategy.run


def test_a_simulation_with_too_few_nodes_is_refused_before_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("fedlsg.strategies.protocol.nodes.REGISTER_SECONDS", 0.1)
    monkeypatch.chdir(tmp_path)
    strategy = fedlsg.flower.Strategy(two_sides, clients=5, **SETTINGS)
    with pytest.raises(RuntimeError, match="the run has 5 clients, the federation only 3 nodes"):
        strategy.start(Nodes(fedlsg.flower.client_app(two_sides), 3), num_rounds=2)
    assert list(tmp_path.iterdir()) == []


def test_an_app_trains_as_simulate_does(tmp_path):
    run = start(fedlsg.flower.client_app(two_sides), tmp_path / "app")
    alone = fedlsg.simulate(
        workload=two_sides(),
        clients=3,
        rounds=2,
        engine="local",
        out=tmp_path / "alone",
        quiet=True,
        **SETTINGS,
    )
    assert run.summary["clients"] == 3
    assert run.epsilon == alone.epsilon
    other = alone.model.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in run.model.state_dict().items())


@pytest.mark.slow
def test_it_is_a_strategy_of_flower_whose_parts_a_subclass_extends(tmp_path):
    """Every round goes through the methods of the subclass, and through its evaluation; a second
    start trains anew.
    """
    seen = []

    class Mine(fedlsg.flower.Strategy):
        def configure_train(self, server_round, arrays, config, grid):
            messages = list(super().configure_train(server_round, arrays, config, grid))
            seen.append((server_round, len(messages)))
            return messages

        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            seen.append([name for name in metrics if name == "accuracy"])
            return arrays, metrics

    strategy = Mine(two_sides, out=None, min_available_nodes=3, **SETTINGS)
    assert isinstance(strategy, FlowerStrategy)
    evaluated = []

    def evaluate(round, arrays):
        evaluated.append((round, sorted(arrays)))
        return MetricRecord({"mine": float(round)})

    with task_identity(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        first = strategy.start(
            Nodes(fedlsg.flower.client_app(two_sides), 3), num_rounds=2, evaluate_fn=evaluate
        )
        directory = strategy.run.directory
        strategy.start(Nodes(fedlsg.flower.client_app(two_sides), 3), num_rounds=1)
    assert seen == [(1, 3), ["accuracy"], (2, 3), ["accuracy"], (1, 3), ["accuracy"]]
    assert [round for round, _ in evaluated] == [0, 1, 2]
    assert evaluated[0][1] == sorted(first.arrays)
    assert {"epsilon_max", "uplink_bytes", "downlink_bytes", "answered"} <= set(
        first.train_metrics_clientapp[2]
    )
    assert {"accuracy", "loss", "mine"} <= set(first.evaluate_metrics_serverapp[0])
    assert strategy.run.directory != directory


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fraction_train": 0.5}, "clients_per_round"),
        ({"fraction_train": 1.5, "clients": 4}, "fraction_train"),
        ({"fraction_evaluate": 0.5}, "public test rows"),
        ({"min_train_nodes": 2}, "clients_per_round.*min_survivors"),
        ({"weighted_by_key": "num-examples"}, "weighting"),
        ({"evaluate_metrics_aggr_fn": len}, "metrics="),
        ({"initial_arrays": None}, "load a checkpoint in the function that builds it"),
        ({"train_config": {"lr": 0.1}}, "settings of training are arguments: learning_rate="),
        ({"evaluate_config": {}}, "public test rows"),
        ({"eta_l": 0.1}, "local_learning_rate"),
        ({"beta_1": 0.9}, "optimizer_options"),
        ({"proximal_mu": 0.1}, "proximal"),
        ({"out": 3}, "out=3: expected the path"),
        ({"method": 3}, "method=3: expected the name"),
    ],
)
def test_arguments_of_fedavg_say_what_takes_their_place(settings, words):
    with pytest.raises(ValueError, match=words):
        fedlsg.flower.Strategy(two_sides, **{**SETTINGS, **settings})


WORK = {"fraction_train", "min_available_nodes"}
"""Arguments of FedAvg that Strategy takes as they are."""


def test_each_argument_in_the_table_of_the_page_has_an_answer():
    page = (REPOSITORY / "docs" / "flower-app.md").read_text()
    table = page[page.index("| yours | here |") :].partition("\n\n")[0]
    left = " ".join(row.split("|")[1] for row in table.splitlines()[2:])
    names = set(re.findall(r"`(\w+)`", left)) - {"start"} - WORK
    assert {"train_config", "initial_arrays", "evaluate_fn", "num_rounds"} <= names
    for name in sorted(names):
        with pytest.raises(ValueError, match=rf"{name}.*; ") as refused:
            fedlsg.flower.Strategy(two_sides, **SETTINGS, **{name: None})
        assert "did you mean" not in str(refused.value), name
    with pytest.raises(ValueError, match="unknown setting 'train_confi'"):  # a control
        fedlsg.flower.Strategy(two_sides, **SETTINGS, train_confi=None)


@pytest.mark.parametrize("rounds", [0, -1, 2.5, "2", True])
def test_a_wrong_number_of_rounds_is_refused_before_the_grid_is_used(rounds):
    with pytest.raises(ValueError, match=f"expected num_rounds={rounds!r}"):
        fedlsg.flower.Strategy(two_sides, **SETTINGS).start(None, num_rounds=rounds)


def reply(app: Any, said: dict[str, Any] | None, **node: Any) -> Message:
    """The reply to a query with these announced settings."""
    content = RecordDict({CODE: code_record()})
    if said is not None:
        content[RECORD] = announcement(said)
    config = node or {"partition-id": 0, "num-partitions": 2, SHARED: True}
    with task_identity():
        question = give_id(Message(content, FIRST_NODE, MessageType.QUERY))
        context = Context(
            run_id=1, node_id=FIRST_NODE, node_config=config, state=RecordDict(), run_config=FOREIGN
        )
        return over_the_wire(give_id(app(over_the_wire(question), context)))


def said(**changes: Any) -> dict[str, Any]:
    strategies.check_name("lsg")
    known = {"workload": "two_sides", "method": "lsg", "rank": 1, "clients": 2, "rounds": 1}
    return {**known, OWN_CODE: code_digest("two_sides", "lsg"), **changes}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (None, "announces no settings"),
        ({"workload": "digits"}, "the server trains workload 'digits', this app has 'two_sides'"),
        ({"method": "nobody"}, "this app knows no method 'nobody'"),
        ({"method": "evil.py:recipe"}, "this app knows no method"),
        ({OWN_CODE: "0" * 64}, "other code than this client's"),
        ({"rank": "many"}, "expected a number"),
        ({"nonsense": 1}, "unknown setting"),
        ({"preset": "lsg-cifar10"}, "announces a preset"),
    ],
)
def test_a_client_refuses_what_it_is_told(changes, reason):
    app = fedlsg.flower.client_app(two_sides)
    answered = reply(app, None if changes is None else said(**changes))
    assert answered.has_error()
    assert reason in answered.error.reason


def test_a_client_that_is_told_the_truth_answers():
    answered = reply(fedlsg.flower.client_app(two_sides), said())
    assert read_identity(answered.content) == (0, 60, (0.0, 0.0))


def deployed(folder: Path, **changes: Any) -> dict[str, Any]:
    x, y = rows(40, 5)
    table = folder / "own.csv"
    lines = [
        ",".join([*map(str, row), str(label)])
        for row, label in zip(x.tolist(), y.tolist(), strict=True)
    ]
    table.write_text("\n".join(["a,b,c,d,e,f,label", *lines]) + "\n")
    return terms(folder / "ledger", data=f"columns:{table}", **changes)


def columns() -> fedlsg.Workload:
    """The test split alone: training rows are the nodes'."""
    return fedlsg.Workload(
        model=build, train=None, test=rows(60, 1), loss=nn.CrossEntropyLoss(), name="columns"
    )


def told(**changes: Any) -> dict[str, Any]:
    known = {
        "workload": "columns",
        "method": "lsg",
        "rank": 1,
        "clients": 2,
        "rounds": 3,
        "sample-rate": 0.05,
    }
    return {
        **known,
        "noise-multiplier": 2.0,
        "delta": 1e-5,
        OWN_CODE: code_digest("columns", "lsg"),
        **changes,
    }


def test_a_deployed_client_reads_its_own_rows_under_its_own_terms(tmp_path):
    app = fedlsg.flower.client_app(columns)
    new_process()
    answered = reply(app, told(), **deployed(tmp_path))
    assert not answered.has_error(), answered.error
    assert read_identity(answered.content) == (0, 40, (0.0, 0.0))
    assert read_news(answered.content) is not None
    assert (tmp_path / "ledger").is_dir()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reproducible": True}, "never draws its noise from a known seed"),
        ({"mechanism": "none", "noise-multiplier": None}, "is not private"),
        ({"epsilon": 9.0}, "epsilon-max"),
        ({"delta": 1e-2}, "delta-max"),
    ],
)
def test_a_deployed_client_keeps_its_terms(tmp_path, changes, reason):
    app = fedlsg.flower.client_app(columns)
    new_process()
    settings = {name: value for name, value in told(**changes).items() if value is not None}
    answered = reply(app, settings, **deployed(tmp_path))
    assert answered.has_error()
    assert reason in answered.error.reason


def test_a_deployed_client_runs_no_code_that_a_server_names(tmp_path):
    marker, evil = tmp_path / "ran", tmp_path / "evil.py"
    evil.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n")
    app = fedlsg.flower.client_app(columns)
    new_process()
    for name in ("workload", "method"):
        answered = reply(app, told(**{name: f"{evil}:recipe"}), **deployed(tmp_path))
        assert answered.has_error()
    assert not marker.exists()
