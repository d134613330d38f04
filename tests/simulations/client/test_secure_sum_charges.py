"""When clients of a secure sum are charged: before noise is drawn, for whatever follows, and never past the budget."""

import pytest

from fedlsg.accounting import epsilon
from fedlsg.discrete import Release
from fedlsg.privacy import Entry, Ledger, RunLedger
from simulations.engines import local
from strategies.federation.wire import IN_RUN_LOG
from tests.simulations.support.late_charges import charge_late
from tests.simulations.support.runs import Run, ignore, plan_at
from tests.simulations.support.secure_clients import FIVE, charged_clients, recorded_sum, run_five

SECRET = {"reproducible": False}


def charges_at_noise(out, monkeypatch) -> list[int]:
    """Entries on disk, of all clients together, at each draw of noise."""
    found, real = [], Release.encode

    def watched(self, *args, **place):
        ledger = RunLedger(out / "ledger")
        found.append(sum(len(ledger.of(client).entries) for client in ledger.clients()))
        return real(self, *args, **place)

    monkeypatch.setattr(Release, "encode", watched)
    run_five(out, **SECRET)
    return found


def test_the_ledger_is_charged_before_noise_is_drawn(tmp_path, monkeypatch):
    assert charges_at_noise(tmp_path / "run", monkeypatch) == [5, 5, 5, 5, 5]


def test_a_charge_after_the_noise_is_caught(tmp_path, monkeypatch):
    """Negative control: a driver that charges each client when it is back."""
    charge_late(monkeypatch)
    assert charges_at_noise(tmp_path / "run", monkeypatch) == [0, 5, 5, 5, 5]


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_client_that_fails_at_its_noise_is_charged_and_says_nothing(where, tmp_path, monkeypatch):
    calls, real = [], Release.encode

    def failing(self, *args, **place):
        calls.append(1)
        if len(calls) == 3 and where == "before":
            raise RuntimeError("SECRETROW")
        integers = real(self, *args, **place)
        return integers[:-1] if len(calls) == 3 else integers

    monkeypatch.setattr(Release, "encode", failing)
    run = run_five(tmp_path / "run", **SECRET)
    assert (run.rows[0].answered, run.rows[0].rejected) == ("0 1 3 4", "2")
    assert IN_RUN_LOG in run.rows[0].reasons
    assert "SECRETROW" not in run.rows[0].reasons
    assert charged_clients(run) == [0, 1, 2, 3, 4]
    assert recorded_sum(run) is not None


def test_a_client_over_its_budget_is_a_dropout_that_is_not_charged(tmp_path):
    budget = 1.0001 * epsilon(sample_rate=0.05, noise_multiplier=2.0, steps=1, delta=1e-5).upper
    plan, directory = plan_at(tmp_path / "run", **(FIVE | SECRET | {"epsilon": budget}))
    earlier = Entry(
        client=2, round=0, attempt=0, steps=1, sample_rate=0.05, noise_multiplier=2.0,
        clip_norm=0.5, num_examples=287, mechanism="dp",
    )  # fmt: skip
    Ledger(directory.ledger(2), client=2).charge(earlier)
    run = Run(directory.path, plan, local.run(plan, directory, on_round=ignore))
    assert (run.rows[0].answered, run.rows[0].rejected) == ("0 1 3 4", "2")
    assert "would pass the privacy budget" in run.rows[0].reasons
    assert charged_clients(run) == [0, 1, 3, 4]
    assert run.summary["epsilon_max"] <= budget
