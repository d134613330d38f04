"""The ledger of a private step: epsilon, budget, and runs that are resumed with it."""

import io
import math
from dataclasses import asdict

import pytest
import torch

from fedlsg.accounting import Event, compose
from fedlsg.privacy import BudgetError, Entry, Ledger, LedgerError
from fedlsg.strategies.own_loop.loop_account import LoopAccount
from tests.strategies.own_loop import EXAMPLES, PUBLIC, batch, made, private_step, weights


def test_epsilon_is_that_of_the_ledger_and_of_nothing_else(tmp_path):
    path = tmp_path / "deep" / "ledger.jsonl"
    step = private_step(method="lsg", rank=2, ledger=path)
    assert step.epsilon() == 0.0
    for _ in range(3):
        step.step(batch)
    events = [Event(sample_rate=0.25, noise_multiplier=1.5, steps=3)]
    assert step.epsilon() == pytest.approx(compose(events, delta=1e-3).upper, rel=1e-9)
    assert step.epsilon(1e-5) == pytest.approx(compose(events, delta=1e-5).upper, rel=1e-9)
    other = Entry(
        client=0,
        round=1,
        attempt=0,
        steps=4,
        sample_rate=0.5,
        noise_multiplier=2.0,
        clip_norm=1.0,
        num_examples=EXAMPLES,
        mechanism="dp",
        run="elsewhere",
    )
    Ledger(path, client=0).charge(other)
    events.append(Event(sample_rate=0.5, noise_multiplier=2.0, steps=4))
    assert step.epsilon() == pytest.approx(compose(events, delta=1e-3).upper, rel=1e-9)


@pytest.mark.slow
def test_a_step_beyond_the_budget_is_refused_before_anything_is_drawn():
    step = private_step(method="dpsgd", epsilon=3.0, noise_multiplier=None, steps=3)
    for _ in range(3):
        step.step(batch)
    assert 2.9 < step.epsilon() <= 3.0
    before = weights(step)
    with pytest.raises(
        BudgetError, match=r"would pass the privacy budget epsilon=3 at delta=0.001"
    ):
        step.step(lambda positions: pytest.fail("a batch was drawn"))
    assert len(step._account.ledger.entries) == 3
    assert torch.equal(weights(step), before)


@pytest.mark.slow
def test_runs_on_one_ledger_share_the_budget(tmp_path):
    given = {
        "method": "dpsgd",
        "noise_multiplier": None,
        "steps": 3,
        "ledger": tmp_path / "ledger.jsonl",
    }
    first = private_step(epsilon=2.0, **given)
    for _ in range(3):
        first.step(batch)
    second = private_step(epsilon=3.0, **given)
    for _ in range(3):
        second.step(batch)
    assert second.noise_multiplier > 0
    assert first.epsilon() == second.epsilon()
    assert 2.9 < second.epsilon() <= 3.0
    with pytest.raises(BudgetError, match="has spent epsilon"):
        private_step(epsilon=2.0, **given).step(batch)


def test_a_ledger_of_another_data_set_is_refused(tmp_path):
    private_step(method="dpsgd", ledger=tmp_path / "ledger.jsonl").step(batch)
    with pytest.raises(LedgerError, match=r"its entries are of 40 examples, and num_examples=39"):
        private_step(method="dpsgd", ledger=tmp_path / "ledger.jsonl", num_examples=39)


@pytest.mark.parametrize(
    "given",
    [
        {"method": "sgd", "noise_multiplier": None},
        {"method": "dpsgd", "mechanism": "noise-only"},
        {"method": "dpsgd", "mechanism": "clip-only", "noise_multiplier": None},
        {"method": "dpsgd", "reproducible": True},
    ],
)
def test_what_is_not_private_has_an_infinite_epsilon(given):
    step = private_step(**given)
    step.step(batch)
    assert step.epsilon() == math.inf


def test_a_step_that_fails_stays_charged_and_is_another_attempt(tmp_path):
    step = private_step(
        method="dpsgd", ledger=tmp_path / "ledger.jsonl", example=PUBLIC, sample_rate=1.0
    )
    with pytest.raises(ZeroDivisionError):
        step.step(lambda positions: 1 / 0 if step._account.ledger.entries else batch(positions))
    step.step(batch)
    assert [(e.round, e.attempt) for e in Ledger(tmp_path / "ledger.jsonl", client=0).entries] == [
        (1, 0),
        (1, 1),
    ]


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


OPTIMIZERS = {
    "own AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "own SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "name",
    [
        "rgp",
        "rs ranked",
        "lora",
        "dp-ssgd snip",
        "dp-ssgd synflow",
        "dpsgd",
        "lsg without residual",
        *OPTIMIZERS,
    ],
)
@pytest.mark.parametrize("at", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_a_resumed_run_continues_bit_for_bit(name, at, tmp_path):
    def make(ledger):
        if name in OPTIMIZERS:
            given = {
                "learning_rate": None,
                "optimizer": OPTIMIZERS[name],
                "method": "lsg",
                "rank": 2,
            }
            return private_step(reproducible=True, ledger=tmp_path / ledger, **given)
        return made(name, ledger=tmp_path / ledger)

    unbroken, first = make("a.jsonl"), make("b.jsonl")
    for _ in range(7):
        unbroken.step(batch)
    for _ in range(at):
        first.step(batch)
    saved = through_a_file({"model": first.model.state_dict(), "step": first.state_dict()})
    second = make("b.jsonl")
    second.model.load_state_dict(saved["model"])
    second.load_state_dict(saved["step"])
    assert (second.steps_taken, second.noise_multiplier) == (at, first.noise_multiplier)
    for _ in range(7 - at):
        second.step(batch)
    assert torch.equal(weights(second), weights(unbroken))
    with second.evaluated(), unbroken.evaluated():
        assert torch.equal(weights(second), weights(unbroken))
    entries = [
        [asdict(e) | {"run": ""} for e in Ledger(tmp_path / x, client=0).entries]
        for x in ("a.jsonl", "b.jsonl")
    ]
    assert entries[0] == entries[1]


def test_a_state_without_its_ledger_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    step = private_step(method="dpsgd", ledger=path)
    step.step(batch)
    step.step(batch)
    state, lines = step.state_dict(), path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerError, match="1 entries, fewer than the checkpoint's 2"):
        private_step(method="dpsgd", ledger=path).load_state_dict(state)
    path.unlink()
    with pytest.raises(LedgerError, match="the ledger is missing"):
        private_step(method="dpsgd", ledger=path).load_state_dict(state)
    with pytest.raises(LedgerError, match="give the same ledger=PATH"):
        private_step(method="dpsgd").load_state_dict(state)
    other = private_step(method="dpsgd", ledger=tmp_path / "other.jsonl")
    for _ in range(3):
        other.step(batch)
    with pytest.raises(LedgerError, match="not those that the checkpoint saw"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    "changed",
    [
        {"sample_rate": 0.5},
        {"num_examples": 41},
        {"seed": 6},
        {"steps": 9},
        {"delta": 1e-4},
        {"method": "rs"},
        {"clip_norm": 1.0},
    ],
)
def test_a_state_of_other_terms_is_refused(changed):
    state = private_step(method="dpsgd").state_dict()
    with pytest.raises(ValueError, match="the state was made with"):
        private_step(**{"method": "dpsgd"} | changed).load_state_dict(state)


def test_a_loop_begins_a_torn_file_again_as_that_of_its_client(tmp_path):
    """It began again as client 0, whatever was lost."""
    path = tmp_path / "ledger.jsonl"
    Ledger(path, client=3).begin()
    path.write_bytes(path.read_bytes()[:60])
    account = LoopAccount(path, num_examples=60)
    assert (account.ledger.client, account.ledger.entries) == (3, ())
    account.ledger.begin()
    assert Ledger(path).client == 3
    path.write_bytes(b"\0" * 60)
    with pytest.raises(LedgerError, match="damaged"):
        LoopAccount(path, num_examples=60)
