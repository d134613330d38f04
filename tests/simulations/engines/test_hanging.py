"""A client that never comes back costs the round itself and those behind it in its pile, none that came before it."""

import contextlib
import signal
import time
from collections.abc import Iterable

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from simulations.engines import flower
from simulations.engines.local import task_identity
from simulations.grids import grouped
from simulations.grids.grouped import answer_groups
from tests.places import REPOSITORY
from tests.simulations.engines.test_grouped import Nodes, echo, grid_of, questions, told
from tests.simulations.support.hanging_clients import HANGS
from tests.simulations.support.runs import Run, ignore, plan_at


@pytest.fixture(autouse=True)
def _in_an_actor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    """Nodes of this process stand in for Ray's actors, except where Ray itself runs."""
    if request.node.get_closest_marker("ray") is None:
        monkeypatch.setattr(grouped, "in_simulation", lambda: True)
    with task_identity():
        yield


def hanging() -> tuple[ClientApp, list[str]]:
    """Client 4 never comes back, whatever is raised in it as an Exception; what is forgotten is noted."""
    app, noted = ClientApp(), []
    answer_groups(app, forget=lambda: noted.append("forgotten"))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        noted.append(f"began {context.node_config['partition-id']}")
        while context.node_config["partition-id"] == HANGS:
            with contextlib.suppress(Exception):
                time.sleep(60)
        return Message(RecordDict({"from": ConfigRecord(dict(message.content["own"]))}), reply_to=message)

    return app, noted


def test_a_client_that_hangs_costs_the_round_none_that_came_before_it():
    app, noted = hanging()
    grid = grid_of(Nodes(app), actors=1)
    start = time.monotonic()
    assert told(grid.send_and_receive(questions(), timeout=1.0)).keys() == set(range(HANGS))
    assert time.monotonic() - start < 1.0
    assert noted == [f"began {i}" for i in range(HANGS + 1)] + ["forgotten"], "each once, and none behind it"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_in_time_nothing_is_cut_off_or_forgotten():
    grid = grid_of(Nodes(echo()))
    assert told(grid.send_and_receive(questions(), timeout=5.0)).keys() == {0, 1, 2, 3, 5, 6}
    time.sleep(0.01)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_without_the_cut_the_pile_would_be_lost(monkeypatch):
    """Negative control: a pile without a deadline stays with the one that hangs."""
    app, _ = hanging()
    monkeypatch.setattr(grouped, "ending", lambda until: contextlib.nullcontext())

    def give_up(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 0.7)
    try:
        with pytest.raises(KeyboardInterrupt):
            grid_of(Nodes(app), actors=1).send_and_receive(questions(), timeout=0.5)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.ray
def test_on_ray_too_a_client_that_hangs_costs_the_round_itself_alone(tmp_path, monkeypatch):
    """It is the last of its pile; the actor that it held is there in the next round."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    plan, directory = plan_at(
        tmp_path / "run", engine="flower", clients=5, rounds=3, evaluate_every=3, round_timeout=25.0
    )
    flower.run(plan, directory, on_round=ignore, client_app="tests.simulations.support.hanging_clients:app")
    run = Run(directory.path, plan)
    assert [row.rejected.split() for row in run.rows] == [[], [str(HANGS)], []]
    assert "no reply before the round's timeout" in run.rows[1].reasons
    assert "stopped at the round's deadline" in run.log
    rounds = {client: [e.round for e in run.entries(client)] for client in range(5)}
    assert rounds == {client: [1, 3] if client == HANGS else [1, 2, 3] for client in range(5)}
