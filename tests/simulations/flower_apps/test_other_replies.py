"""What leaves an app besides private updates: nothing, unless the node's owner says so; and a node
has limits of its own, whatever the server chooses.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedlsg
import fedlsg.flower
from fedlsg.privacy import BudgetError, Entry, limits
from fedlsg.privacy.ledger_file import read_entries
from fedlsg.simulations.client.node.folder import Budget, NodeFolder
from fedlsg.simulations.client.node.node_config import read_terms
from fedlsg.simulations.client.node.refusals import TermsError
from fedlsg.simulations.client.virtual import FIRST_NODE
from fedlsg.simulations.engines.local import task_identity
from fedlsg.simulations.flower_apps import private_node
from fedlsg.strategies.protocol.wire import NO_REASON
from tests.places import REPOSITORY
from tests.simulations.flower_apps.test_flower_app import columns, deployed, two_sides
from tests.simulations.flower_apps.test_flower_app import fresh as fresh  # a fixture
from tests.simulations.support.deployed import terms
from tests.simulations.support.own_updates import (
    CLIENTS,
    ROWS,
    Nodes,
    app_of,
    build,
    ledgers,
    mod,
    rows,
    start,
    wrapped,
)

PRIVATE_STEP = fedlsg.PrivateStep.step
LOSS = 0.123456789
"""A number that only private data say."""


def node_config(**more: Any) -> Any:
    """A mod: what a node's owner gives to flower-supernode."""

    def configured(message: Message, context: Context, call_next: Any) -> Message:
        context.node_config.update({k.replace("_", "-"): v for k, v in more.items()})
        return call_next(message, context)

    return configured


def with_others(app: ClientApp) -> ClientApp:
    """The evaluation of Flower's template, and a query."""
    asked: list[str] = []
    app.asked = asked  # type: ignore[attr-defined]

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        asked.append(message.metadata.message_type)
        metrics = MetricRecord({"eval_loss": LOSS, "eval_acc": 0.5, "num-examples": ROWS})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        asked.append(message.metadata.message_type)
        return Message(RecordDict({"rows": ConfigRecord({"loss": LOSS})}), reply_to=message)

    app.evaluate("mine")(evaluate)
    return app


def leaks(replies: list[Message]) -> list[Message]:
    """Replies with a number of the app's own: only errors and private updates have none."""
    return [r for r in replies if not r.has_error() and str(LOSS) in str(dict(r.content))]


def asked_for(grid: Nodes, kind: str) -> Message:
    """The reply of a node to a message of this type, sent by a server's own main."""
    with task_identity():
        content = RecordDict({"arrays": ArrayRecord(build().state_dict())})
        list(grid.send_and_receive([Message(content, FIRST_NODE, kind)]))
    return grid.replies[-1]


def evaluating(**settings: Any) -> Any:
    return wrapped(FedAvg(fraction_evaluate=1.0, weighted_by_key="num-examples"), **settings)


def others(folder: Path) -> list[list[Entry]]:
    return [list(read_entries(path)) for path in sorted(folder.rglob("without-noise-*.jsonl"))]


def private_app(folder: Path, **given: Any) -> ClientApp:
    return with_others(app_of(mod(folder, **given)))


def test_evaluations_of_the_template_stay_on_the_node(tmp_path):
    grid = Nodes(app := private_app(tmp_path))
    result = start(evaluating(), grid)
    assert [len(book.entries) for book in ledgers(tmp_path)] == [2] * CLIENTS
    assert not app.asked
    assert not leaks(grid.replies)
    refused = {r.error.reason for r in grid.replies if r.has_error()}
    assert len(grid.replies) == 4 * CLIENTS
    assert len(refused) == 1
    assert "replies-without-noise='evaluate' in the node config" in refused.pop()
    assert not result.evaluate_metrics_clientapp
    assert result.train_metrics_clientapp[2]["replies_without_noise"] == 0


def test_without_the_mod_a_loss_is_seen(tmp_path):
    """Negative control of ``leaks``."""
    grid = Nodes(with_others(app_of()))
    with task_identity():
        FedAvg(weighted_by_key="num-examples").start(
            grid, ArrayRecord(build().state_dict()), num_rounds=1
        )
    assert len(leaks(grid.replies)) == CLIENTS


@pytest.mark.parametrize("kind", ["evaluate", "evaluate.mine", "query", "query.default"])
@pytest.mark.parametrize("door", ["private_update", "PrivateNode", "client_app"])
def test_no_other_message_gets_a_reply_with_content(kind, door, tmp_path):
    app = with_others(
        {
            "private_update": lambda: app_of(mod(tmp_path)),
            "PrivateNode": lambda: steps_app(tmp_path),
            "client_app": lambda: own_queries(fedlsg.flower.client_app(two_sides)),
        }[door]()
    )
    answered = asked_for(Nodes(app), "query.mine" if door == "client_app" else kind)
    assert answered.has_error()
    assert str(LOSS) not in answered.error.reason
    assert not app.asked


def own_queries(app: ClientApp) -> Any:
    """fedlsg's own app has a query already."""
    app.query = lambda name="mine": ClientApp.query(app, name)  # type: ignore[method-assign]
    return app


@pytest.mark.parametrize("way", ["the app", "the node config"])
def test_what_the_owner_allows_leaves_and_is_counted_next_to_epsilon(way, tmp_path):
    if way == "the app":
        app = private_app(tmp_path, replies_without_noise="evaluate")
    else:
        config = node_config(replies_without_noise="evaluate, query")
        app = with_others(app_of(config, mod(tmp_path)))
    grid = Nodes(app)
    result = start(evaluating(), grid)
    assert len(leaks(grid.replies)) == 2 * CLIENTS
    counted = others(tmp_path)
    assert [[e.round for e in book] for book in counted] == [[1, 2]] * CLIENTS
    assert {(e.mechanism, e.has_epsilon) for book in counted for e in book} == {("none", False)}
    evaluated = result.evaluate_metrics_clientapp[2]
    assert evaluated["eval_loss"] == pytest.approx(LOSS)
    assert evaluated["replies_without_noise"] == CLIENTS
    trained = result.train_metrics_clientapp[2]
    assert evaluated["epsilon"] == trained["epsilon"] == pytest.approx(200.0, rel=1e-3)
    assert trained["replies_without_noise"] == 1  # before this round
    assert asked_for(grid, "query").has_error() == (way == "the app")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"replies_without_noise": ""}, "no reply to a message of type 'evaluate'"),
        ({"replies_without_noise": "train"}, "node config: expected"),
        ({"replies_without_noise": 1}, "node config: expected"),
    ],
)
def test_the_node_config_decides_whatever_the_app_says(config, words, tmp_path):
    app = with_others(app_of(node_config(**config), mod(tmp_path, replies_without_noise="query")))
    answered = asked_for(Nodes(app), "evaluate")
    assert words in answered.error.reason
    assert not app.asked


def test_a_reply_that_cannot_be_counted_stays(tmp_path):
    app = private_app(tmp_path, replies_without_noise="evaluate")
    grid = Nodes(app)
    assert not asked_for(grid, "evaluate").has_error()
    (book,) = tmp_path.rglob("without-noise-*.jsonl")
    book.write_text(book.read_text()[:-9] + "}\n")
    assert asked_for(grid, "evaluate").has_error()
    assert len(app.asked) == 1


@pytest.mark.parametrize("value", ["train", "losses", 3, None])
def test_only_kinds_of_messages_can_be_allowed(value, tmp_path):
    for make in (mod, steps_node):
        with pytest.raises(ValueError, match="replies_without_noise"):
            make(tmp_path, replies_without_noise=value)


def steps_node(folder: Path, **given: Any) -> Any:
    limits = {"epsilon": 50.0, "delta": 1e-5, "least_noise_multiplier": 0.5}
    return fedlsg.flower.PrivateNode(**{**limits, "ledger": folder, **given})


def steps_app(
    folder: Path,
    *before: Any,
    after: Any = None,
    ledger: Any = None,
    trap: Any = None,
    word: Any = None,
    **given: Any,
):
    """An app with private steps at the server's noise; ``after(message, reply)`` in place of the
    reply.

    ``trap(model, moment)`` is called with "before" the steps, "between" them and "after" them;
    ``word``: further arguments of ``reply``.
    """
    trap = trap or (lambda model, moment: None)
    node = steps_node(folder, **given)
    app = ClientApp(mods=[*before, node])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = build()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        trap(model, "before")
        step = fedlsg.PrivateStep(
            model,
            nn.CrossEntropyLoss(),
            num_examples=ROWS,
            sample_rate=0.5,
            steps=2,
            noise_multiplier=message.content["config"]["sigma"],
            delta=1e-5,
            method="dpsgd",
            learning_rate=0.1,
            ledger=ledger or node.ledger(context),
        )
        batches = step.batches(rows(context.node_config["partition-id"]))
        step.step(batches)
        trap(model, "between")
        step.step(batches)
        trap(model, "after")
        made = fedlsg.flower.reply(step, message, **word or {})
        return made if after is None else after(message, made)

    return app


def trained_by(app: ClientApp, sigma: float, rounds: int = 1) -> Nodes:
    """The grid after rounds of FedAvg, whose server chose a noise multiplier."""
    grid = Nodes(app, 2)  # FedAvg waits for two
    strategy = FedAvg(fraction_evaluate=0.0, weighted_by_key="num-examples")
    with task_identity():
        torch.manual_seed(0)
        strategy.start(
            grid,
            ArrayRecord(build().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"sigma": sigma}),
        )
    return grid


def test_private_steps_leave_within_the_limits_of_the_node(tmp_path):
    grid = trained_by(steps_app(tmp_path), 1.0)
    assert [len(book.entries) for book in steps_ledgers(tmp_path)] == [2, 2]
    for reply in grid.replies:
        numbers = reply.content["metrics"]
        size = {"uplink_bytes_per_client", "downlink_bytes_per_client"}
        said = {"num-examples", "epsilon", "steps", "replies_without_noise"}
        assert set(numbers) == said | size
        assert 0 < numbers["epsilon"] < 50
        arrays = reply.content["arrays"].to_torch_state_dict()
        assert {numbers[name] for name in size} == {4 * sum(t.numel() for t in arrays.values())}


def test_the_ledger_of_private_steps_is_of_the_nodes_own_client(tmp_path):
    trained_by(steps_app(tmp_path), 1.0)
    paths = sorted(tmp_path.rglob("client-*.jsonl"))
    assert [(path.stem, fedlsg.Ledger(path).client) for path in paths] == [
        ("client-0", 0),
        ("client-1", 1),
    ]


def test_a_ledger_from_before_that_says_client_0_goes_on(tmp_path):
    """Versions before wrote client 0 in the ledger of every node with private steps."""
    trained_by(steps_app(tmp_path), 1.0)
    (mine,) = tmp_path.rglob("client-1.jsonl")
    old = fedlsg.Ledger(tmp_path / "old.jsonl", client=0)
    for entry in fedlsg.Ledger(mine).entries:
        old.charge(replace(entry, client=0))
    old.path.replace(mine)
    spent = fedlsg.Ledger(mine).epsilon(1e-5).upper
    grid = trained_by(steps_app(tmp_path), 1.0)
    assert not any(reply.has_error() for reply in grid.replies)
    book = fedlsg.Ledger(mine)
    assert (book.client, len(book.entries)) == (0, 4)
    assert book.epsilon(1e-5).upper > spent


def trains_plainly(model: nn.Module) -> None:
    """The template's function, which its user forgot to remove."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = rows(0)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def trains_by_hand(model: nn.Module) -> None:
    """The same with gradients that no hook sees, and weights of no new version."""
    inputs, targets = rows(0)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    parameters = list(model.parameters())
    for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.data.sub_(0.1 * g)


def trains_a_copy(model: nn.Module) -> None:
    """And loads what it has learnt."""
    twin = build()
    twin.load_state_dict(model.state_dict())
    trains_plainly(twin)
    model.load_state_dict(twin.state_dict())


def leaks_a_number(model: nn.Module) -> None:
    """One weight of many says something of a row."""
    with torch.no_grad():
        model[0].weight[0, 0] = rows(0)[0][0, 0]


@pytest.mark.parametrize("moment", ["before", "between", "after"])
@pytest.mark.parametrize("how", [trains_plainly, trains_by_hand, trains_a_copy, leaks_a_number])
def test_what_an_app_does_to_the_weights_next_to_its_steps_does_not_leave(
    how, moment, tmp_path, monkeypatch
):
    """It left without noise, and epsilon did not count it."""

    def trap(model: nn.Module, now: str) -> None:
        if now == moment:
            how(model)

    grid = trained_by(steps_app(tmp_path, trap=trap), 1.0)
    assert {reply.error.reason for reply in grid.replies} == {NO_REASON}
    charged = sum(len(book.entries) for book in steps_ledgers(tmp_path))
    if how is trains_plainly:  # its gradient was seen before the next charge
        assert charged == 2 * {"before": 0, "between": 1, "after": 2}[moment]
        return
    allowed = steps_app(tmp_path, trap=trap, word={"other_weights": True})
    assert not any(reply.has_error() for reply in trained_by(allowed, 1.0).replies)
    # the negative control: as it was, all of it left
    monkeypatch.setattr(fedlsg.PrivateStep, "other_changes", lambda *_: [])
    assert not any(r.has_error() for r in trained_by(steps_app(tmp_path, trap=trap), 1.0).replies)


def test_what_moves_no_weight_next_to_the_steps_is_accepted(tmp_path):
    """Evaluation, modes, layouts in memory, and loading the same weights again."""

    def trap(model: nn.Module, now: str) -> None:
        inputs, _ = rows(0)
        model.eval()
        with torch.no_grad():
            model(inputs)
        torch.autograd.grad(model(inputs).sum(), list(model.parameters()))
        model.train()
        model.load_state_dict({name: t.clone() for name, t in model.state_dict().items()})
        model.to(memory_format=torch.channels_last).cpu()

    grid = trained_by(steps_app(tmp_path, trap=trap), 1.0, rounds=2)
    assert not any(reply.has_error() for reply in grid.replies)


def steps_ledgers(folder: Path) -> list[Any]:
    paths = sorted(folder.rglob("client-*.jsonl"))
    return [type("Book", (), {"entries": read_entries(path)}) for path in paths]


@pytest.mark.parametrize(
    ("sigma", "config", "words"),
    [
        (0.05, {}, "the least that this client accepts is 0.5"),
        (0.6, {"noise_multiplier_min": 0.7}, "the least that this client accepts is 0.7"),
        (0.6, {"epsilon_max": 1.0, "delta_max": 1e-5}, "would pass epsilon=1 at delta=1e-05"),
        (0.6, {"epsilon_max": 1.0}, "needs delta-max"),
        (0.6, {"noise_multiplier_min": -1}, "noise-multiplier-min"),
        (0.6, {"noise_multiplyer_min": 0.7}, "did you mean 'noise-multiplier-min'"),
    ],
)
@pytest.mark.parametrize("door", ["private_update", "PrivateNode"])
def test_a_node_refuses_less_noise_than_its_own_and_charges_nothing(
    door, sigma, config, words, tmp_path
):
    configured = node_config(**config)
    if door == "PrivateNode":
        grid = trained_by(steps_app(tmp_path, configured), sigma)
    else:
        limited = mod(tmp_path, epsilon=1e9, least_noise_multiplier=0.5)
        grid = Nodes(app_of(configured, limited), 2)
        start(wrapped(epsilon=None, noise_multiplier=sigma), grid, rounds=1)
    assert {reply.has_error() for reply in grid.replies} == {True}
    assert all(words in reply.error.reason for reply in grid.replies)
    assert not [book for book in steps_ledgers(tmp_path) if book.entries]


def in_a_thread(step: Any, *given: Any) -> None:
    """A private step in a thread of the app's own."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(PRIVATE_STEP, step, *given).result()


@pytest.mark.parametrize("forgotten", [False, True])
def test_limits_hold_in_threads_that_an_app_starts(forgotten, tmp_path, monkeypatch):
    """The negative control: a thread that knows of no limits has none."""
    monkeypatch.setattr(fedlsg.PrivateStep, "step", in_a_thread)
    if forgotten:
        monkeypatch.setattr(limits, "_held_now", lambda: [*filter(None, [limits._NOW.get()])])
        monkeypatch.setattr(private_node, "held_to", lambda held, ledger: limits.held_to(held))
    grid = trained_by(steps_app(tmp_path), 0.05)
    assert {reply.has_error() for reply in grid.replies} == {not forgotten}
    if not forgotten:
        assert "the least that this client accepts is 0.5" in grid.replies[-1].error.reason
    assert bool([book for book in steps_ledgers(tmp_path) if book.entries]) == forgotten
    assert not limits._ALL


@pytest.mark.parametrize("forgotten", [False, True])
def test_limits_of_a_ledger_hold_after_the_message(forgotten, tmp_path, monkeypatch):
    """A thread that the app left running, whose step the next message would send. The negative
    control: a ledger that has no limits of its own.
    """
    trained_by(steps_app(tmp_path), 1.0)
    assert not limits._ALL
    if forgotten:
        monkeypatch.setattr(limits, "_OF_LEDGERS", {})
    (mine,) = tmp_path.rglob("client-1.jsonl")
    book = fedlsg.Ledger(mine)
    entry = replace(book.entries[-1], attempt=99, noise_multiplier=0.05)
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(book.charge, entry)
    if forgotten:
        assert late.result() is None
    else:
        with pytest.raises(BudgetError, match="the least that this client accepts"):
            late.result()
    assert len(book.entries) == 2 + forgotten


def test_limits_of_the_app_hold_under_a_weaker_node_config(tmp_path):
    weaker = node_config(noise_multiplier_min=0.01, epsilon_max=1e6, delta_max=1e-5)
    grid = trained_by(steps_app(tmp_path, weaker), 0.05)
    assert "the least that this client accepts is 0.5" in grid.replies[-1].error.reason


@pytest.mark.slow
def test_a_node_stops_at_its_epsilon_whatever_the_server_asks(tmp_path):
    grid = trained_by(steps_app(tmp_path, epsilon=8.0), 0.6, rounds=4)
    assert "would pass epsilon=8" in grid.replies[-1].error.reason
    assert all(0 < len(book.entries) < 8 for book in steps_ledgers(tmp_path))


def test_what_is_added_to_a_reply_of_private_steps_stays(tmp_path):
    def more(message: Message, made: Message) -> Message:
        made.content["metrics"]["train_loss"] = LOSS
        made.content["arrays"] = message.content["arrays"]
        return Message(RecordDict({"all": made.content["metrics"]}), reply_to=message)

    grid = trained_by(steps_app(tmp_path, after=more), 1.0)
    assert not leaks(grid.replies)
    for reply in grid.replies:
        sent = reply.content["arrays"].to_torch_state_dict()
        assert not torch.equal(sent["0.weight"], build().state_dict()["0.weight"])


def test_an_app_that_raises_says_nothing(tmp_path):
    def fail(message: Message, made: Message) -> Message:
        raise TermsError("row 7 has the label 3")

    grid = trained_by(steps_app(tmp_path, after=fail), 1.0)
    assert {reply.error.reason for reply in grid.replies} == {NO_REASON}


def test_a_reply_needs_the_node_and_its_ledger(tmp_path):
    step = fedlsg.PrivateStep(
        build(),
        nn.CrossEntropyLoss(),
        num_examples=ROWS,
        sample_rate=0.5,
        steps=1,
        noise_multiplier=1.0,
        delta=1e-5,
        ledger=tmp_path / "one.jsonl",
    )
    with pytest.raises(ValueError, match=r"mods=\[fedlsg.flower.PrivateNode"):
        fedlsg.flower.reply(step, None)
    grid = trained_by(steps_app(tmp_path, ledger=tmp_path / "other.jsonl"), 1.0)
    assert grid.replies[-1].has_error()


def test_the_example_has_a_noise_of_its_own(tmp_path, monkeypatch):
    """The server of the example may choose .05; its node does not take it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples/flower_steps"))
    from digits_steps import client_app, task

    grid, config = Nodes(client_app.app, 1), {"lr": 4.0, "local-steps": 2, "noise-multiplier": 0.05}
    content = {"arrays": ArrayRecord(task.Net().state_dict()), "config": ConfigRecord(config)}
    with task_identity():
        list(grid.send_and_receive([Message(RecordDict(content), FIRST_NODE, "train")]))
    assert "the least that this client accepts is 0.5" in grid.replies[0].error.reason
    assert not steps_ledgers(tmp_path)[0].entries
    for name in [name for name in sys.modules if name.startswith("digits_steps")]:
        del sys.modules[name]


def test_a_deployed_client_of_fedlsg_counts_and_limits_too(tmp_path):
    """Its own handlers; and noise-multiplier-min in every charge."""
    config = deployed(tmp_path, replies_without_noise="evaluate")
    app = with_others(own_queries(fedlsg.flower.client_app(columns)))

    def own_node(message: Message, context: Context) -> Message:
        context.node_config.clear()
        context.node_config.update(config)
        return app(message, context)

    grid = Nodes(own_node, 1)
    assert leaks([asked_for(grid, "evaluate")])
    (entry,) = read_entries(tmp_path / "ledger/without-noise-ledger.jsonl")
    assert entry.mechanism == "none"
    config["replies-without-noise"] = "query"
    assert asked_for(grid, "evaluate").has_error()


def test_a_deployed_client_of_fedlsg_charges_no_less_noise_than_its_terms_say(tmp_path):
    folder = NodeFolder.open(read_terms(terms(tmp_path / "node", noise_multiplier_min=1.5)))
    folder.admit("form", 40, lambda key: "digest")
    entry = Entry(
        client=0,
        round=1,
        attempt=0,
        steps=1,
        sample_rate=0.05,
        noise_multiplier=1.4,
        clip_norm=0.5,
        num_examples=40,
        mechanism="dp",
    )
    with pytest.raises(TermsError, match=r"the least that this client accepts is 1\.5"):
        folder.charge(entry, (Budget(epsilon=100.0, delta=1e-5),))
    assert not folder.ledger.entries
