"""The engine ``ray`` on real Ray: runs as on the local engine, whatever becomes of a worker."""

import time
from collections import Counter
from types import SimpleNamespace

import pytest
import ray as library

from fedlsg.simulations.engines import cluster, ray
from fedlsg.simulations.engines.workers import Workers
from fedlsg.simulations.server.recorder import Recorder
from tests.simulations.support.ray_clients import ALWAYS, HANGS, ONCE
from tests.simulations.support.runs import Run, ignore, plan_at, run_local

pytestmark = pytest.mark.ray
SUPPORT = "tests.simulations.support"


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory, warm) -> Run:
    """Five clients; in round 2 one kills its worker once, another each time. Rounds 3 and 4 come
    after.
    """
    folder = tmp_path_factory.mktemp("deadly") / "run"
    plan, directory = plan_at(
        folder, engine="ray", clients=5, rounds=4, evaluate_every=4, reproducible=False
    )
    cluster._AHEAD.append(warm)
    summary = ray.run(plan, directory, on_round=ignore, client=f"{SUPPORT}.ray_clients:deadly")
    cluster._AHEAD.clear()
    return Run(directory.path, plan, summary)


@pytest.mark.slow
def test_a_dead_worker_loses_no_other_client_and_no_later_round(deadly):
    everyone = [str(i) for i in range(5)]
    assert [row.answered.split() for row in deadly.rows] == [
        everyone,
        [i for i in everyone if i != str(ALWAYS)],
        everyone,
        everyone,
    ]
    assert (deadly.path / f"killed-by-{ONCE}").exists()
    assert "ActorDiedError" in deadly.rows[1].reasons
    assert "a worker was lost with" in deadly.log


def test_every_attempt_that_may_have_drawn_noise_is_in_the_ledger(deadly):
    """Nobody knows how far those came who were in a lost pile: they are charged for it, and for the
    next attempt.
    """
    for client in range(5):
        charged = Counter(entry.round for entry in deadly.entries(client))
        assert (charged[1], charged[3], charged[4]) == (1, 1, 1)
        assert charged[2] == 2 if client in (ONCE, ALWAYS) else charged[2] in (1, 2)


@pytest.mark.slow
def test_a_round_in_which_every_worker_died_is_sent_again(tmp_path, on_ray):
    """All are lost, and sent again, and lost: no round. The next attempt ends as the run in which
    nobody died.
    """
    settings = {"clients": 2, "rounds": 3}
    plan, directory = plan_at(tmp_path / "run", engine="ray", **settings)
    summary = ray.run(plan, directory, on_round=ignore, client=f"{SUPPORT}.ray_clients:all_dying")
    run, unbroken = Run(directory.path, plan, summary), run_local(tmp_path / "unbroken", **settings)
    assert "round 2: no client replied, sending the round again" in run.log
    assert (summary["rounds"], summary["empty_rounds"]) == (3, 0)
    assert [row.answered for row in run.rows] == ["0 1"] * 3
    assert run.weights.equal(unbroken.weights)
    assert run.ledgers == unbroken.ledgers
    assert summary["downlink"]["interrupted"]["attempts"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["by its worker", "by the driver"])
def test_a_client_that_hangs_loses_itself_the_round_alone(how, tmp_path, on_ray, monkeypatch):
    """It is the last of its pile. It is stopped by its worker; where that fails, the driver
    replaces the worker.
    """
    if how == "by the driver":
        # the worker's own clock is late
        monkeypatch.setattr("fedlsg.simulations.engines.workers.MARGIN_SECONDS", -3600.0)
    plan, directory = plan_at(
        tmp_path / "run", engine="ray", clients=5, rounds=3, evaluate_every=3, round_timeout=12.0
    )
    began = time.monotonic()
    ray.run(plan, directory, on_round=ignore, client=f"{SUPPORT}.ray_clients:hanging")
    assert time.monotonic() - began < 60
    run = Run(directory.path, plan)
    if how == "by its worker":
        assert [row.rejected.split() for row in run.rows] == [[], [str(HANGS)], []]
        assert "stopped at the round's deadline" in run.log
    else:
        assert str(HANGS) in run.rows[1].rejected.split()
        assert [row.rejected for row in run.rows if row.round != 2] == ["", ""]
    assert "no reply before the round's timeout" in run.rows[1].reasons
    rounds = {client: [e.round for e in run.entries(client)] for client in range(5)}
    # else nobody knows whether it trained: it is charged
    began = HANGS if how == "by its worker" else None
    assert rounds == {client: [1, 3] if client == began else [1, 2, 3] for client in range(5)}


def test_a_worker_with_other_code_than_the_driver_is_refused(tmp_path, on_ray, monkeypatch):
    """Files were edited since the driver started, or a machine has another version."""
    monkeypatch.setattr(
        "fedlsg.simulations.engines.workers.own_identity", lambda: SimpleNamespace(digest="other")
    )
    plan, directory = plan_at(tmp_path / "run", engine="ray")
    with pytest.raises(RuntimeError, match="other code than the driver: install the same version"):
        ray.run(plan, directory, on_round=ignore)
    assert not directory.ledgers.exists()


@pytest.mark.slow
def test_a_worker_that_finds_no_place_stops_nobody(tmp_path, on_ray):
    """Planted: one of two workers asks for more than there is, as after a machine was lost."""
    plan, directory = plan_at(tmp_path / "run", engine="ray", rounds=2)
    place = on_ray.workers

    def workers(most, **need):
        first, second = place(most, **need)
        on_ray.kill(second)
        return [first, on_ray.worker(64, 0)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_ray, "workers", workers)
        run = Run(directory.path, plan, ray.run(plan, directory, on_round=ignore))
    assert run.weights.equal(run_local(tmp_path / "local", rounds=2).weights)


@pytest.mark.slow
def test_a_run_without_any_place_ends(tmp_path, warm, monkeypatch):
    """Of a process whose own workers have all places it waited for ever."""
    monkeypatch.setattr("fedlsg.simulations.engines.workers.START_SECONDS", 3.0)
    holders = [warm.worker(1, 0) for _ in range(cluster.processors())]
    plan, directory = plan_at(tmp_path / "run", engine="ray")
    with pytest.raises(RuntimeError, match="no worker of Ray could start: none came in 3 s"):
        ray.run(plan, directory, on_round=ignore)
    for worker in [*holders, *warm._idle]:
        warm.kill(worker)
    warm._idle = []
    assert not directory.ledgers.exists()


@pytest.mark.slow
def test_no_text_of_a_client_leaves_its_worker(tmp_path, on_ray):
    """Not even that of an exception which no handler of errors catches: it may quote a row."""
    plan, directory = plan_at(tmp_path / "run", engine="ray", rounds=1, clients=3)
    run = Run(
        directory.path,
        plan,
        ray.run(plan, directory, on_round=ignore, client=f"{SUPPORT}.ray_clients:odd"),
    )
    assert run.rows[0].rejected.split() == ["0", "1"]
    assert "SECRETROW" not in directory.rounds.read_text()
    assert run.log.count("SECRETROW") >= 2, "the run's own log, which is private, has the reason"
    assert directory.log.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_new_workers_get_the_steps_that_they_lack(tmp_path, on_ray, monkeypatch):
    """A resumed run has only new workers. Planted once: steps that were read and freed got each
    other's place.
    """
    settings = {
        "downlink": "sparse",
        "rounds": 8,
        "clients": 4,
        "clients_per_round": 2,
        "model": "mlp",
    }
    alone = run_local(tmp_path / "local", **settings)
    plan, directory = plan_at(tmp_path / "ray", engine="ray", **settings)
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_round", _stops_after_six(Recorder.on_round))
        with pytest.raises(KeyboardInterrupt):
            ray.run(plan, directory, on_round=ignore)
    for worker in on_ray._idle:
        on_ray.kill(worker)
    on_ray._idle = []
    cluster._AHEAD.append(on_ray)
    run = Run(directory.path, plan, ray.run(plan, directory, on_round=ignore))
    assert run.weights.equal(alone.weights)
    assert run.summary["downlink"]["repairs"] == 0
    assert [row.downlink_bytes for row in run.rows] == [row.downlink_bytes for row in alone.rows]


def test_an_interruption_while_workers_run_takes_their_answers(tmp_path, on_ray, monkeypatch):
    """Planted once: the limits of running piles were forgotten, and Ctrl-C ended with a KeyError."""
    plan, directory = plan_at(tmp_path / "ray", engine="ray", rounds=2, clients=2)
    send, wait, sent = Workers._send, library.wait, list[str]()

    def send_and_interrupt(self, *arguments):
        send(self, *arguments)
        sent.append("pile")

    def wait_once_interrupted(*arguments, **options):
        if sent == ["pile"]:
            sent.append("interrupted")
            raise KeyboardInterrupt
        return wait(*arguments, **options)

    monkeypatch.setattr(Workers, "_send", send_and_interrupt)
    monkeypatch.setattr(library, "wait", wait_once_interrupted)
    with pytest.raises(KeyboardInterrupt):
        ray.run(plan, directory, on_round=ignore)
    assert "interrupted" in sent


def _stops_after_six(honest):
    def on_round(self, report):
        honest(self, report)
        if report.round == 6:
            raise KeyboardInterrupt

    return on_round


def test_a_place_is_looked_for_before_a_ray_of_this_process_is_chosen(on_ray, monkeypatch):
    monkeypatch.setattr(cluster, "PLACE_SECONDS", 0.3)
    assert cluster.gets_place(0)
    assert not cluster.gets_place(cluster.processors() + 1)
