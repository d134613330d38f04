"""DP-SNIP in a whole run: its round is in the ledger, in the epsilon, in the bytes, and is run
once.
"""

import pytest
from flwr.app import Context, Message

from fedlsg.privacy import Entry, Ledger, RunLedger
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.engines import local
from tests.simulations.support.runs import Run, ignore, plan_at, run_local

SNIP = {"method": "dp-ssgd", "prune": "dp-snip", "prune_rate": 0.4, "drop_rate": 0.5}


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two clients, round 0, two rounds, on the local engine. Do not write to it."""
    return run_local(tmp_path_factory.mktemp("runs") / "snip", record_updates=True, **SNIP)


def test_every_client_is_charged_one_full_batch_event_and_then_its_steps(pruned):
    assert pruned.plan is not None
    sigma = pruned.plan.terms[0].prune_noise_multiplier
    assert sigma > 2.0
    for client in range(2):
        first, *rest = pruned.entries(client)
        assert (first.round, first.attempt, first.steps, first.sample_rate) == (0, 0, 1, 1.0)
        assert first.noise_multiplier == pytest.approx(sigma)
        assert (first.clip_norm, first.mechanism) == (1.0, "dp")
        assert [(e.round, e.sample_rate, e.noise_multiplier, e.clip_norm) for e in rest] == [
            (1, 0.05, 2.0, 0.5),
            (2, 0.05, 2.0, 0.5),
        ]


def test_a_round_0_that_is_not_in_the_ledger_is_caught(tmp_path, monkeypatch):
    """Negative control: a driver that asks its clients, and does not charge them."""
    charge = RunLedger.charge

    def forgetful(self: RunLedger, entries: list[Entry]) -> None:
        charge(self, [entry for entry in entries if entry.round])

    monkeypatch.setattr(RunLedger, "charge", forgetful)
    with pytest.raises(RuntimeError, match="client 0 replied in round 0, and its ledger"):
        run_local(tmp_path / "run", **SNIP)


def test_a_client_without_the_budget_for_round_0_is_named_and_not_charged(tmp_path):
    """Its ledger is full from an earlier run: it sits out round 0 and every other."""
    settings = {"sample_rate": 0.3, "noise_multiplier": 1.0, "epsilon": 8.0}
    plan, directory = plan_at(tmp_path / "run", **SNIP, **settings, reproducible=False)
    spent = Entry(
        client=1,
        round=0,
        attempt=0,
        steps=1,
        sample_rate=1.0,
        noise_multiplier=0.3,
        clip_norm=0.5,
        num_examples=718,
        mechanism="dp",
    )
    Ledger(directory.ledger(1), client=1).charge(spent)
    run = Run(directory.path, plan, local.run(plan, directory, on_round=ignore))
    assert run.summary["pruning"]["answered"] == [0]
    assert "round 0 would pass the privacy budget" in run.summary["pruning"]["rejected"]["1"]
    assert [e.round for e in run.entries(1)] == [0]
    assert [e.round for e in run.entries(0)] == [0, 1, 2]


def test_a_server_that_asks_for_a_round_0_that_was_not_agreed_gets_nothing(tmp_path, monkeypatch):
    """The client's own settings say whether data may be read for pruning."""
    # as nodes do, clients read their own settings
    monkeypatch.setattr(local, "is_served", lambda: True)

    def client(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train":
            context.run_config["prune"] = "random"
        return app(message, context)

    with pytest.raises(
        RuntimeError,
        match=r"in the pruning round, 0 replied: client 0 1: a client failed, and run.log",
    ):
        run_local(tmp_path / "run", client=client, **SNIP)
    assert not any(Run(tmp_path / "run").ledgers.values())
