"""A client that hangs in the process of the run: it is stopped, charged for what it began, and
asked after pauses.
"""

import time
from functools import partial
from typing import Any

import pytest
from flwr.app import Context, Message

from fedlsg.participation import Health
from fedlsg.privacy import SERVER, RunLedger
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.client.virtual import ClientFunction
from fedlsg.strategies.protocol import round_report
from fedlsg.strategies.protocol.sums import ServerNoiseExchange
from tests.simulations.support.runs import Run, resume_local, run_local, stopped_after

HANGS = 1
SMALL: dict[str, Any] = {"clients": 4, "rounds": 6, "client_timeout": 1.5, "evaluate_every": 6}


def hanging(*, after_training: bool = False, rounds: range = range(1, 100)) -> ClientFunction:
    """A client that sleeps before, or after, it has trained and was charged."""

    def client(message: Message, context: Context) -> Message:
        if message.metadata.message_type != "train" or context.node_config["partition-id"] != HANGS:
            return app(message, context)
        if message.content["round"]["round"] in rounds:  # type: ignore[index]
            if after_training:
                app(message, context)
            time.sleep(3600)
        return app(message, context)

    return client


@pytest.mark.slow
@pytest.mark.parametrize("after_training", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_client_that_hangs_costs_its_limit_in_few_rounds_and_the_others_train_in_all(
    after_training, tmp_path
):
    began = time.monotonic()
    run = run_local(tmp_path / "run", client=hanging(after_training=after_training), **SMALL)
    assert time.monotonic() - began < 600, "without a limit it would be an hour"
    assert [row.rejected for row in run.rows] == ["1", "1", "", "", "1", ""]
    assert [row.asked for row in run.rows] == [
        f"0 {'1 ' if r in (1, 2, 5) else ''}2 3" for r in range(1, 7)
    ]
    assert "client_timeout" in run.rows[0].reasons
    rounds = {client: [entry.round for entry in run.entries(client)] for client in range(4)}
    assert rounds == {
        c: list(range(1, 7)) if c != HANGS else [1, 2, 5] if after_training else []
        for c in range(4)
    }


@pytest.mark.slow
def test_a_resumed_run_remembers_who_hangs(tmp_path):
    stopped_after(2, tmp_path / "run", client=hanging(), **SMALL)
    run = resume_local(tmp_path / "run", client=hanging())
    assert [row.rejected for row in run.rows] == ["1", "1", "", "", "1", ""]


@pytest.mark.slow
def test_under_a_trusted_server_a_client_that_hangs_ends_the_run_and_changes_no_draw(
    tmp_path, monkeypatch
):
    """Nothing is released of the round, and no health is kept of a secret draw."""
    level = {
        "unit": "client",
        "trust": "server",
        "batch_size": 40,
        "sample_rate": None,
        "method": "dpsgd",
    }
    settings = (
        SMALL
        | level
        | {"client_timeout": None, "clients_per_round": 2, "min_survivors": 1, "rounds": 3}
    )
    run = run_local(tmp_path / "whole", **settings)
    assert len(run.rows) == 3
    assert run.checkpoint["health"] == {
        "since": 0,
        "failures": {},
        "due": {},
        "asked": {},
        "left_out": {},
    }
    with monkeypatch.context() as patch:  # negative control: the mistake would be in the file
        patch.setattr(ServerNoiseExchange, "follows_health", True)
        patch.setattr(round_report, "Health", partial(Health, since=1))  # as after a failure
        assert run_local(tmp_path / "planted", **settings).checkpoint["health"]["asked"], (
            "who was drawn"
        )
    level_hangs = settings | {"round_timeout": 4.0, "clients_per_round": 4}
    with pytest.raises(RuntimeError, match=r"a reply did not come within round_timeout"):
        run_local(tmp_path / "hangs", client=hanging(), **level_hangs)
    assert len(RunLedger(tmp_path / "hangs" / "ledger").of(SERVER).entries) == 1
    assert not Run(tmp_path / "hangs").directory.rounds.exists() or not Run(tmp_path / "hangs").rows
    with pytest.raises(ValueError, match=r"trust=server does not go with client_timeout=1\.5"):
        run_local(tmp_path / "refused", **settings | {"client_timeout": 1.5})
