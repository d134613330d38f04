"""Clients that share a pass: charges, batches, noise and payloads are each client's own, as without
it.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedlsg.privacy import Entry
from fedlsg.randomness import reproducible_stream
from fedlsg.simulations.client import drawing, pile_pass, train
from fedlsg.simulations.client.ahead import Ahead, Stash
from fedlsg.simulations.client.client_account import RECORD, GivenAccount
from fedlsg.simulations.client.client_app import simulated_settings
from fedlsg.simulations.client.process_state import HISTORY, process
from fedlsg.simulations.engines import accounts, shared_passes
from fedlsg.simulations.engines.accounts import give
from fedlsg.training.local_training import Drawn
from tests.simulations.support.runs import Run, run_local

SMALL: dict[str, Any] = {
    "reproducible": False,
    "clients": 4,
    "rounds": 2,
    "method": "dpsgd",
    "model": "mlp",
    "record_updates": True,
    "codec": "float32",
    "sample_rate": 0.02,
}


CHARGE = {
    "steps": 1,
    "sample_rate": 0.1,
    "noise_multiplier": 1.0,
    "clip_norm": 1.0,
    "num_examples": 10,
    "mechanism": "dp",
    "reproducible": False,
}
DRAWN = Drawn(positions=torch.arange(2), total=torch.zeros(3))


@pytest.fixture(autouse=True)
def known_draws(monkeypatch):
    """Batches and noise that two runs share, while the run itself takes the way of a secret one."""

    def stream(base, purpose, partition, round):
        return reproducible_stream(7, purpose, partition, round)

    monkeypatch.setattr(drawing, "stream_of", stream)
    monkeypatch.setattr(train, "stream_of", stream)


@pytest.fixture
def shared(monkeypatch) -> list[list[int]]:
    """The slots of each pass that was computed."""
    seen, honest = [], pile_pass.sums_in_one_pass

    def spy(steps, slots):
        seen.append(list(slots))
        return honest(steps, slots)

    monkeypatch.setattr(pile_pass, "sums_in_one_pass", spy)
    return seen


def alone(folder, monkeypatch, **settings: Any) -> Run:
    with monkeypatch.context() as patch:
        patch.setattr(shared_passes, "passes", lambda pile, *_: [[task] for task in pile])
        return run_local(folder, **SMALL | settings)


def values(run: Run) -> dict[str, torch.Tensor]:
    """The last numbers of each payload, in front of its checksum."""
    cut = slice(-4096 - 16, -16)
    return {
        name: torch.frombuffer(bytearray(data[cut]), dtype=torch.float32)
        for name, data in run.payloads.items()
    }


def truths(run: Run) -> list[bytes]:
    return [
        path.read_bytes()
        for path in sorted((run.path / "updates-truth").rglob("*"))
        if path.is_file()
    ]


def assert_equal(run: Run, other: Run) -> None:
    """The same charges, truths and payloads, these up to rounding."""
    assert [run.entries(c) for c in range(4)] == [other.entries(c) for c in range(4)]
    assert all(len(run.entries(c)) == 2 for c in range(4)), (
        "a client with an empty batch sends its noise, too"
    )
    assert truths(run) == truths(other), "the rows of each batch"
    a, b = values(run), values(other)
    assert len(a) == 8
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def by_itself(tmp_path_factory) -> Run:
    """A run whose clients are computed one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "stream_of", lambda base, *labels: reproducible_stream(7, *labels))
        patch.setattr(train, "stream_of", lambda base, *labels: reproducible_stream(7, *labels))
        return alone(tmp_path_factory.mktemp("alone") / "run", patch)


def test_clients_in_one_pass_send_what_they_send_one_by_one(tmp_path, by_itself, shared):
    run = run_local(tmp_path / "run", **SMALL)
    assert len(shared) == 2, "one pass a round"
    assert [len(slots) for slots in shared] == [4, 4]
    assert_equal(run, by_itself)


def other_clients_sum(patch):
    """Each client sends the sum of the one before it."""
    honest = pile_pass.sums_in_one_pass

    def turned(steps, slots):
        found = honest(steps, slots)
        return [
            replace(own, total=other.total)
            for own, other in zip(found, [*found[-1:], *found[:-1]], strict=True)
        ]

    patch.setattr(pile_pass, "sums_in_one_pass", turned)


def noise_reused(patch):
    """All clients of a round have the noise of the first one."""
    patch.setattr(
        train,
        "stream_of",
        lambda base, purpose, client, round: reproducible_stream(7, purpose, 0, round),
    )


def drawn_again(patch):
    """What the pass drew is forgotten, and the batch drawn once more for one charge."""
    patch.setattr(Stash, "take", lambda *_: None)


def no_charge(patch):
    """A pass that does not use up the charge: a second draw would go unnoticed."""
    patch.setattr(pile_pass, "_draw", lambda *given: _without_charge(*given))


def _without_charge(here, settings, task):
    found = _honest_draw(here, settings, task)
    task.state.config_records["account"]["charged"] = False
    return found


_honest_draw = pile_pass._draw


@pytest.mark.parametrize("plant", [other_clients_sum, noise_reused, drawn_again])
def test_mistakes_of_a_pass_are_caught(plant, tmp_path, by_itself, monkeypatch):
    plant(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        assert_equal(run_local(tmp_path / "run", **SMALL), by_itself)


def test_who_sends_a_payload_stays_charged_whatever_the_pass_says(tmp_path, by_itself, monkeypatch):
    no_charge(monkeypatch)
    assert_equal(run_local(tmp_path / "run", **SMALL), by_itself)
    # negative control: the word of the pass alone would make the charge void
    monkeypatch.setattr(accounts, "payload_in", lambda reply: b"")
    with pytest.raises((AssertionError, RuntimeError)):
        assert_equal(run_local(tmp_path / "believed", **SMALL), by_itself)


def test_an_empty_client_that_is_skipped_is_caught(tmp_path, monkeypatch):
    """Negative control: no noise from a client that drew nobody tells that it drew nobody."""
    rare = {"sample_rate": 1e-4, "rounds": 1, "clients": 4}
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "stream_of", lambda base, *labels: reproducible_stream(3, *labels))
        assert len(run_local(tmp_path / "honest", **SMALL | rare).payloads) == 4
        honest = train.client_step

        def skipping(*given, sampler, **named):
            if isinstance(sampler, Drawn) and not len(sampler.positions):
                raise RuntimeError("nobody was drawn")
            return honest(*given, sampler=sampler, **named)

        patch.setattr(train, "client_step", skipping)
        assert len(run_local(tmp_path / "planted", **SMALL | rare).payloads) < 4


@pytest.mark.slow
def test_a_pass_that_hangs_is_stopped_and_each_client_goes_on_with_its_own_batch(
    tmp_path, by_itself, monkeypatch
):
    monkeypatch.setattr(pile_pass, "sums_in_one_pass", lambda *_: time.sleep(60))
    run = run_local(tmp_path / "run", **SMALL, client_timeout=3.0)
    assert run.log.count("a pass of 4 clients was stopped") == 1
    assert_equal(run, by_itself)


def test_a_client_whose_data_fail_is_named_and_nobody_elses_bits_change(tmp_path, monkeypatch):
    honest = drawing.batches

    def bad(base, partition, round, used_rows):
        batch = honest(base, partition, round, used_rows)

        def failing(positions):
            raise OSError("this row cannot be read")

        return failing if partition == 1 else batch

    whole = run_local(tmp_path / "whole", **SMALL | {"rounds": 1})
    monkeypatch.setattr(pile_pass, "batches", bad)
    monkeypatch.setattr(train, "batches", bad)
    run = run_local(tmp_path / "run", **SMALL | {"rounds": 1})
    assert len(run.payloads) == 3
    assert all(data == whole.payloads[name] for name, data in run.payloads.items())
    assert len(run.entries(1)) == 1, "it stays charged"


def test_a_reproducible_run_and_several_steps_share_no_pass(tmp_path, shared):
    run_local(tmp_path / "a", **SMALL | {"reproducible": True, "rounds": 1})
    run_local(tmp_path / "b", **SMALL | {"local_steps": 2, "rounds": 1})
    run_local(tmp_path / "c", **SMALL | {"rounds": 1, "precision": "bfloat16"})
    assert shared == []


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), np.random.random], ids=["torch", "numpy"])
def test_a_model_that_draws_numbers_shares_no_draws(draw, tmp_path, by_itself, monkeypatch, shared):
    honest = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: honest(self, x + 0 * draw()))
    # as the run that it is compared with
    run = run_local(tmp_path / "run", **SMALL, isolation="checked")
    assert len(shared) == 1, "seen in the first pass"
    assert_equal(run, by_itself)


def other_weights(monkeypatch):
    """Between the pass and the clients' own calls, the process has had other weights."""
    honest = shared_passes.compute_ahead

    def compute(pile, partitions, run_config):
        honest(pile, partitions, run_config)
        process(simulated_settings(run_config, partitions)).loaded = None

    monkeypatch.setattr(shared_passes, "compute_ahead", compute)


def weights_of_its_own(monkeypatch):
    """Each client of the pile is sent other weights than the one before it."""
    honest = pile_pass.follow

    def follow(here, *given, **named):
        here.loaded = None
        return honest(here, *given, **named)

    monkeypatch.setattr(pile_pass, "follow", follow)


@pytest.mark.parametrize("other", [other_weights, weights_of_its_own])
def test_a_sum_of_other_weights_is_not_used(other, tmp_path, by_itself, monkeypatch):
    """Parameters tell nothing: they are the same objects in all weights and frames."""
    totals, honest = [], train.client_step

    def step(*given, sampler, **named):
        totals.append(sampler.total)
        return honest(*given, sampler=sampler, **named)

    monkeypatch.setattr(train, "client_step", step)
    other(monkeypatch)
    assert_equal(run_local(tmp_path / "run", **SMALL), by_itself)
    assert totals == [None] * 8


def test_a_draw_of_another_run_is_not_taken():
    """An equal entry of a run that was interrupted is another charge: the record is another one."""
    stash, charge = Stash(), Entry(client=0, round=1, attempt=0, **CHARGE)
    own, other = (
        GivenAccount(give(charge, last=None, memory=None)[RECORD], HISTORY, False) for _ in range(2)
    )
    loaded: Any = object()
    stash.put(Ahead(account=own, entry=charge, drawn=DRAWN, loaded=loaded))
    assert stash.take(own, charge, loaded) is DRAWN
    assert stash.take(own, charge, loaded) is None, "once"
    stash.put(Ahead(account=own, entry=charge, drawn=DRAWN, loaded=loaded))
    assert stash.take(other, charge, loaded) is None
