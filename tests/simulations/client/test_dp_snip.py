"""DP-SNIP in a whole run: its round is in the ledger, in the epsilon, in the bytes, and is run once."""

import pytest
from flwr.app import Context, Message

import simulations.client.train
from fedlsg.accounting.bounds import compose, epsilon
from fedlsg.accounting.events import Event
from fedlsg.privacy import Entry, Ledger, RunLedger
from simulations.client.app import app
from simulations.engines import local
from simulations.plan.plan import make_plan
from simulations.settings.settings import from_mapping
from tests.simulations.support.runs import SMALL, Run, ignore, plan_at, resume_local, run_local

SNIP = {"method": "dp-ssgd", "prune": "dp-snip", "prune_rate": 0.4, "drop_rate": 0.5}
DELTA = 1e-5


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
            (1, 0.05, 2.0, 0.5), (2, 0.05, 2.0, 0.5)
        ]  # fmt: skip


def sigmas(**choices: object) -> tuple[float, float]:
    """Noise multipliers of training and of round 0 that a budget of epsilon = 3 gives."""
    settings = {k: v for k, v in SMALL.items() if k != "noise_multiplier"} | {"epsilon": 3.0, "rounds": 20} | choices
    terms = make_plan(from_mapping(settings)).terms[0]
    return terms.noise_multiplier, terms.prune_noise_multiplier


def test_where_epsilon_is_given_pruning_by_data_raises_sigma():
    plain, none = sigmas(method="dp-ssgd", prune="random")
    assert none == 0.0
    assert (plain, 0.0) == sigmas(method="dpsgd") == sigmas(method="rs")
    small, large = sigmas(**SNIP), sigmas(**SNIP, prune_epsilon_share=0.5)
    assert plain < small[0] < large[0]
    assert small[1] > large[1]
    for (sigma, first), share in ((small, 0.1), (large, 0.5)):
        alone = epsilon(sample_rate=1.0, noise_multiplier=first, steps=1, delta=DELTA).upper
        assert alone == pytest.approx(share * 3.0, rel=1e-3)
        events = [
            Event(sample_rate=0.05, noise_multiplier=sigma, steps=20),
            Event(sample_rate=1.0, noise_multiplier=first, steps=1),
        ]
        assert 2.99 < compose(events, delta=DELTA).upper <= 3.0


# Once, and charged for every attempt


def test_a_second_attempt_of_round_0_is_charged_again(tmp_path, monkeypatch):
    """Interrupted between the charge and the store: its noise was drawn."""
    pack = simulations.client.train.pack

    def interrupted(*args: object, **kwargs: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulations.client.train, "pack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_local(tmp_path / "run", **SNIP, reproducible=False)
    monkeypatch.setattr(simulations.client.train, "pack", pack)
    run = resume_local(tmp_path / "run")
    assert [(e.round, e.attempt) for e in run.entries(0)] == [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert [(e.round, e.attempt) for e in run.entries(1)] == [(0, 0), (1, 0), (2, 0)]
    assert run.summary["epsilon_max"] > run.summary["epsilon_median"]


# What must be caught or refused


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
        client=1, round=0, attempt=0, steps=1, sample_rate=1.0, noise_multiplier=0.3, clip_norm=0.5,
        num_examples=718, mechanism="dp",
    )  # fmt: skip
    Ledger(directory.ledger(1), client=1).charge(spent)
    run = Run(directory.path, plan, local.run(plan, directory, on_round=ignore))
    assert run.summary["pruning"]["answered"] == [0]
    assert "round 0 would pass the privacy budget" in run.summary["pruning"]["rejected"]["1"]
    assert [e.round for e in run.entries(1)] == [0]
    assert [e.round for e in run.entries(0)] == [0, 1, 2]


def test_a_server_that_asks_for_a_round_0_that_was_not_agreed_gets_nothing(tmp_path, monkeypatch):
    """The client's own settings say whether data may be read for pruning."""
    monkeypatch.setattr(local, "is_served", lambda: True)  # as nodes do, clients read their own settings

    def client(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train":
            context.run_config["prune"] = "random"
        return app(message, context)

    with pytest.raises(
        RuntimeError,
        match=r"in the pruning round, 0 replied: client 0 1: \[1001\] a client failed, and run.log",
    ):
        run_local(tmp_path / "run", client=client, **SNIP)
    assert not any(Run(tmp_path / "run").ledgers.values())
