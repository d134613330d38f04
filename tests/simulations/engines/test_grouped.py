"""Piles of clients in one message: the same replies as one by one, whatever becomes of an actor."""

import pickle
from collections.abc import Callable, Iterable
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from hypothesis import given
from hypothesis import strategies as st

from simulations.client.app import app
from simulations.engines import flower
from simulations.engines.local import LocalGrid, task_identity
from simulations.grids import grouped
from simulations.grids.grouped import GroupedGrid, answer_groups, divide, pack, unpack
from simulations.grids.virtual import FIRST_NODE
from simulations.server import app as server_app
from simulations.settings.settings import as_config
from strategies.federation.serial import wire_size
from strategies.federation.wire import flat_bytes, raw_array
from tests.places import REPOSITORY
from tests.simulations.support.deadly_clients import ALWAYS, ONCE
from tests.simulations.support.runs import Run, ignore, plan_at, run_local

CLIENTS = 7


@pytest.fixture(autouse=True)
def _in_an_actor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    """Nodes of this process stand in for Ray's actors, except where Ray itself runs."""
    if "deadly" not in request.fixturenames:
        monkeypatch.setattr(grouped, "in_simulation", lambda: True)
    with task_identity():
        yield


def echo() -> ClientApp:
    """Answers its partition and round; client 3 raises, 4 says nothing, 5 answers an error."""
    app = ClientApp()
    answer_groups(app)

    @app.train()
    def train(message: Message, context: Context) -> Message | None:
        partition = int(context.node_config["partition-id"])
        if partition == 3:
            raise OSError("planted \udcff")
        if partition == 4:
            return None
        if partition == 5:
            return Message(Error(code=7, reason="planted"), reply_to=message)
        known = {
            "partition": partition,
            "of": context.node_config["num-partitions"],
            "asked": message.content["own"]["i"],
        }
        return Message(RecordDict({"from": ConfigRecord(known)}), reply_to=message)

    return app


class Nodes(LocalGrid):
    """Flower's side: two nodes of which each message ends up with one; ``lose`` says which messages kill an actor."""

    def __init__(self, app: ClientApp, lose: Callable[[list[Message]], bool] = lambda pile: False) -> None:
        super().__init__(app, 2, {})
        self.lose, self.piles = lose, []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        sent, dead = [], []
        for message in messages:
            pile = unpack(message.content)[0]
            self.piles.append([m.metadata.dst_node_id - FIRST_NODE for m in pile])
            (dead if self.lose(pile) else sent).append(message)
        replies = list(super().send_and_receive(sent, timeout=timeout))
        for message in dead:
            message.metadata.__dict__["_message_id"] = str(id(message))
        return [*replies, *(Message(Error(code=1, reason="actor died"), reply_to=m) for m in dead)]


def questions() -> list[Message]:
    shared = ArrayRecord({"flat": raw_array(np.zeros(10**5, dtype="float32"))})
    return [
        Message(RecordDict({"weights": shared, "own": ConfigRecord({"i": i})}), FIRST_NODE + i, "train", group_id="1")
        for i in range(CLIENTS)
    ]


def told(replies: Iterable[Message]) -> dict[int, object]:
    return {
        r.metadata.src_node_id - FIRST_NODE: r.error.reason if r.has_error() else dict(r.content["from"])
        for r in replies
    }


def grid_of(nodes: LocalGrid, actors: int = 2) -> GroupedGrid:
    return GroupedGrid(nodes, range(1, CLIENTS + 1), actors=lambda: actors)


def test_the_replies_are_those_of_one_by_one():
    nodes = Nodes(echo())
    one_by_one = told(LocalGrid(echo(), CLIENTS, {}).send_and_receive(questions()))
    assert told(grid_of(nodes).send_and_receive(questions())) == one_by_one
    assert one_by_one.keys() == {0, 1, 2, 3, 5, 6}
    assert one_by_one[6] == {"partition": 6, "of": CLIENTS, "asked": 6}
    assert sorted(chain.from_iterable(nodes.piles)) == list(range(CLIENTS))
    assert len(nodes.piles) == 2


def test_replies_name_the_messages_that_they_answer_and_weigh_the_same():
    asked, alone = questions(), questions()
    grouped = sorted(grid_of(Nodes(echo())).send_and_receive(asked), key=lambda r: r.metadata.src_node_id)
    single = list(LocalGrid(echo(), CLIENTS, {}).send_and_receive(alone))
    ids = {m.metadata.message_id: m.metadata.dst_node_id for m in asked}
    assert all(ids[r.metadata.reply_to_message_id] == r.metadata.src_node_id for r in grouped)
    assert {r.metadata.dst_node_id for r in grouped} == {SUPERLINK_NODE_ID}
    assert [wire_size(r) for r in grouped] == [wire_size(r) for r in single]
    assert [wire_size(m) for m in asked] == [wire_size(m) for m in alone]


def test_a_lost_pile_is_sent_again_client_by_client_and_costs_no_other_client():
    def holds_poison(pile: list[Message]) -> bool:
        return any(m.metadata.dst_node_id == FIRST_NODE + 1 for m in pile)

    nodes = Nodes(echo(), holds_poison)
    replies = told(grid_of(nodes).send_and_receive(questions()))
    expected = told(LocalGrid(echo(), CLIENTS, {}).send_and_receive(questions()))
    assert replies == {**expected, 1: "actor died"}
    lost = next(pile for pile in nodes.piles if 1 in pile)
    assert nodes.piles[2:] == [[i] for i in lost]


def test_without_the_second_try_the_pile_would_be_lost(monkeypatch):
    """Negative control: the test above notices a grid that gives up after the first try."""
    grid = grid_of(Nodes(echo(), lambda pile: len(pile) > 1))
    first = grid._exchange
    monkeypatch.setattr(
        grid, "_exchange", lambda piles, deadline: first(piles, deadline) if len(piles) == 2 else ([], [])
    )
    assert told(grid.send_and_receive(questions())) == {}


def test_what_messages_share_travels_once():
    asked = questions()
    content = pack(asked, CLIENTS)
    pickled, weights = [array.data for array in content["messages"].values()]
    assert len(pickled) < 4 * 10**4
    assert weights is flat_bytes(asked[0].content), "what is large is not even copied"
    arrived, of = unpack(content)
    assert of == CLIENTS
    assert [m.content for m in arrived] == [m.content for m in asked]
    assert len({id(flat_bytes(m.content)) for m in arrived}) == 1


@given(work=st.lists(st.integers(0, 100), max_size=20), piles=st.integers(1, 5))
def test_work_is_shared_out_whole_and_evenly(work, piles):
    messages = [SimpleNamespace(work=w) for w in work]
    shared = divide(messages, work, piles)
    assert sorted(map(id, chain.from_iterable(shared))) == sorted(map(id, messages))
    assert all(shared)
    assert len(shared) == min(piles, len(work))
    if work:
        loads = [sum(m.work + 1 for m in pile) for pile in shared]
        assert max(loads) <= sum(work, len(work)) / piles + max(work) + 1  # Graham's bound for list scheduling


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Five clients on Ray; in round 2 one kills its actor once, another each time. Rounds 3 and 4 come after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        plan, directory = plan_at(
            tmp_path_factory.mktemp("deadly") / "run", engine="flower", clients=5, rounds=4, evaluate_every=4,
            round_timeout=90.0, reproducible=False,
        )  # fmt: skip
        summary = flower.run(
            plan, directory, on_round=ignore, client_app="tests.simulations.support.deadly_clients:app"
        )
    return Run(directory.path, plan, summary)


@pytest.mark.ray
def test_a_dead_actor_does_not_poison_later_rounds(deadly):
    everyone = [str(i) for i in range(5)]
    assert [row.answered.split() for row in deadly.rows] == [
        everyone, [i for i in everyone if i != str(ALWAYS)], everyone, everyone,
    ]  # fmt: skip
    assert (deadly.path / f"killed-by-{ONCE}").exists()
    assert "ray.exceptions.Actor" in deadly.rows[1].reasons


@pytest.mark.ray
def test_ray_says_of_no_ended_actor_that_it_failed(deadly):
    """It did, of each at the end of each run, while the call to end it was to be given again."""
    assert "terminate failed" not in deadly.log


@pytest.mark.ray
def test_every_attempt_that_drew_noise_is_in_the_ledger(deadly):
    """The killed ones died before they trained; who answered before its pile was lost is charged once."""
    rounds = {client: [e.round for e in deadly.entries(client)] for client in range(5)}
    assert rounds == {client: [1, 3, 4] if client == ALWAYS else [1, 2, 3, 4] for client in range(5)}


@pytest.mark.slow
@pytest.mark.ray
def test_a_round_in_which_every_actor_died_is_asked_again(tmp_path, monkeypatch):
    """All are lost, and sent again, and lost: no round. The next attempt ends as the run in which nobody died."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    settings = {"clients": 2, "rounds": 3, "round_timeout": 240.0}
    plan, directory = plan_at(tmp_path / "run", engine="flower", **settings)
    summary = flower.run(plan, directory, on_round=ignore, client_app="tests.simulations.support.all_dying_clients:app")
    run, unbroken = Run(directory.path, plan, summary), run_local(tmp_path / "unbroken", **settings)
    assert "round 2: no client replied, sending the round again" in run.log
    assert (summary["rounds"], summary["empty_rounds"]) == (3, 0)
    assert [row.answered for row in run.rows] == ["0 1"] * 3
    assert run.weights.equal(unbroken.weights)
    assert run.ledgers == unbroken.ledgers
    assert summary["downlink"]["interrupted"]["attempts"] >= 1


class OneNode(InMemoryGrid):
    """Flower's grid of a simulation, without a run behind it."""

    def __init__(self) -> None:
        self.pull_interval = 0.1

    def get_node_ids(self) -> Iterable[int]:
        return [5]


@pytest.mark.parametrize(("grid", "wanted", "groups"), [(OneNode(), True, True), (OneNode(), False, False)])
def test_a_simulation_is_grouped_unless_the_user_says_otherwise(grid, wanted, groups, tmp_path):
    plan, _ = plan_at(tmp_path / "run", grouped=wanted)
    assert isinstance(server_app.grouped(grid, plan), GroupedGrid) is groups


def test_a_deployment_is_never_grouped(tmp_path, monkeypatch):
    """Its grid is another class: each client has a machine of its own, and is refused where it shows no ledger."""
    plan, _ = plan_at(tmp_path / "run")
    seen: list[str] = []

    class Nodes(LocalGrid):
        def get_nodes(self) -> list[object]:
            return []

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            sent = list(messages)
            seen.extend(message.metadata.message_type for message in sent)
            return super().push_messages(sent)

    grid = Nodes(app, 2, dict(as_config(plan.settings)))
    monkeypatch.setattr("strategies.federation.nodes.CONNECT_SECONDS", 0.0)
    monkeypatch.setattr("strategies.federation.nodes.ASK_AGAIN_SECONDS", 0.0)
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(as_config(plan.settings))
    )
    with pytest.raises(RuntimeError, match="client 0 sent no ledger"):
        server_app.run_rounds(grid, context)
    assert set(seen) == {"query"}


class Opened:
    """Its unpickling is noticed."""

    noticed = False

    def __reduce__(self) -> tuple[object, ...]:
        return setattr, (Opened, "noticed", True)


def test_a_pile_is_refused_unopened_outside_a_simulation(monkeypatch, caplog):
    """A deployed client must not unpickle what a server sends. Negative control: in a simulation it is opened."""
    data = pickle.dumps(Opened())
    array = Array(dtype="uint8", shape=(len(data),), stype="raw", data=data)
    content = RecordDict({"messages": ArrayRecord({"0": array}), "of": ConfigRecord({"num-partitions": 1})})
    for inside in (False, True):
        monkeypatch.setattr(grouped, "in_simulation", lambda inside=inside: inside)
        message = Message(content, FIRST_NODE, "query.grouped")
        (reply,) = LocalGrid(echo(), 1, {}).send_and_receive([message])
        assert reply.has_error()
        assert ("PermissionError" in caplog.text) is not inside, "the reason is in the client's own log"
        caplog.clear()
        assert Opened.noticed is inside
