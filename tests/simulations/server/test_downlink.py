"""What an interrupted round had sent down is counted by the run that resumes it, exactly once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from simulations.client.app import app
from simulations.engines import local
from simulations.rundir.tables import Tables
from simulations.server.downlink import NOTHING
from simulations.server.recorder import Recorder
from tests.simulations.client.test_replica import UPDATE, alone, is_for
from tests.simulations.support.runs import Run, plan_at, resume_local, run_local

WHOLE = 4 * 4810
SPARSE = {"downlink": "sparse", "rounds": 5, "momentum": 0.0, "evaluate_every": 9}
Client = Callable[[Message, Context], Any]


def breaking(round: int, client: int, answer: Client, *, when: Callable[[Message], bool] = bool) -> Client:
    """Ctrl-C while a client is at work on a message."""

    def broken(message: Message, context: Context) -> Any:
        if is_for(message, context, round, client) and when(message):
            raise KeyboardInterrupt
        return answer(message, context)

    return broken


def broken_run(out: Path, client: Client, **settings: Any) -> None:
    plan, directory = plan_at(out, **settings)
    with pytest.raises(KeyboardInterrupt):
        local.run(plan, directory, on_round=lambda row: None, client=client)


def broken_again(out: Path, client: Client) -> None:
    with pytest.raises(KeyboardInterrupt):
        resume_local(out, client=client)


def interrupted(run: Run) -> list[int]:
    found = run.summary["downlink"]["interrupted"]
    return [found[name] for name in ("attempts", "messages", "bytes")]


def forgetful(replica: Path) -> Client:
    """Client 0, on a machine of its own, loses its replica before round 3, once."""

    def client(message: Message, context: Context) -> Any:
        if not done and is_for(message, context, 3, 0):
            done.append(True)
            replica.unlink()
        return alone(message, context)

    done: list[bool] = []
    return client


def test_a_repair_in_a_round_that_is_interrupted_is_counted_by_resume(tmp_path):
    """Client 0 is repaired in round 3, and Ctrl-C comes while it trains on the whole model."""
    out = tmp_path / "run"
    answer = forgetful(out / "replicas" / "client-000000.bin")
    broken_run(out, breaking(3, 0, answer, when=lambda m: "weights" in m.content), **SPARSE)
    run = resume_local(out, client=alone)
    assert run.summary["downlink"]["repairs"] == 1 + 1  # its file is still missing: repaired again, in the round's row
    assert interrupted(run) == [1, 3, 2 * UPDATE + WHOLE]
    assert [row.downlink_messages for row in run.rows] == [2, 2, 3, 2, 2]
    assert run.checkpoint["downlink"]["repairs"] == {0: 2}


@pytest.mark.parametrize("method", ["lsg", "dp-ssgd"])
def test_each_interruption_counts_once(method, tmp_path):
    """In round 2 twice, then when all had answered round 4; a resume that sends nothing adds nothing.

    A client that has answered is asked once: the driver sends its stored payload, so client 0 comes first.
    """
    out = tmp_path / "run"
    pruned = {"method": method} | ({"prune": "dp-snip", "prune_rate": 0.3} if method == "dp-ssgd" else {})
    unbroken = run_local(tmp_path / "unbroken", rounds=5, evaluate_every=9, **pruned)
    broken_run(out, breaking(2, 0, app), rounds=5, evaluate_every=9, **pruned)
    broken_again(out, breaking(2, 1, app))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "resume", _then_stop(Recorder.resume))
        broken_again(out, app)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tables, "append", _stop_in_round(4, Tables.append))
        broken_again(out, app)
    run = resume_local(out)
    each = unbroken.rows[1].downlink_bytes
    assert interrupted(run) == [3, 3 * 2, 3 * each]
    assert run.weights.equal(unbroken.weights)
    assert [row.downlink_bytes for row in run.rows] == [row.downlink_bytes for row in unbroken.rows]
    assert {**run.summary["downlink"], "interrupted": NOTHING} == unbroken.summary["downlink"]


def _then_stop(resume: Callable[[Any], None]) -> Callable[[Any], None]:
    def stopped(self: Any) -> None:
        resume(self)
        raise KeyboardInterrupt

    return stopped


def _stop_in_round(round: int, append: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    def stopped(self: Any, report: Any, row: Any) -> None:
        append(self, report, row)
        if row.round == round:
            raise KeyboardInterrupt

    return stopped
