"""Passes that follow each other share a snapshot, and still none reads a trace of another."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedlsg.gradients import check, per_example_loss
from fedlsg.gradients.isolation import state
from fedlsg.gradients.isolation.state import forgetting, uninterrupted
from fedlsg.gradients.isolation.trial import dense_frame
from fedlsg.method import LocalTraining
from fedlsg.training import client_round
from fedlsg.training.client_round import clipped_batch_sum
from fedlsg.training.local_training import Drawn, StepInputs
from tests.fedlsg.support.step_oracle import CLIP_ONLY, EXACT


class Remembers(nn.Module):
    """Adds to its outputs how often it ran."""

    def __init__(self):
        super().__init__()
        self.head, self.ran = nn.Linear(2, 3, dtype=torch.float64), []

    def forward(self, x):
        self.ran.append(1)
        return self.head(x.flatten(1)[:, :2] * len(self.ran))


def snapshots(monkeypatch):
    """The things of which a snapshot is taken from now on."""
    taken, snapshot = [], state._snapshot
    monkeypatch.setattr(
        state, "_snapshot", lambda *given: taken.append(given[0]) or snapshot(*given)
    )
    return taken


def test_one_snapshot_serves_all_passes_and_each_is_put_back(monkeypatch):
    model, taken = Remembers(), snapshots(monkeypatch)
    with uninterrupted():
        for _ in range(3):
            with forgetting(model):
                assert model.ran == []
                model.ran.append(1)
                model.more = 1
            assert model.ran == []
            assert not hasattr(model, "more")
        assert len(taken) == 1
        with forgetting(model, parameters=False):
            assert len(taken) == 2, "of other things, another one"
    for number in (3, 4):
        with forgetting(model):
            assert len(taken) == number, "outside, each pass takes its own"


def test_after_an_error_the_next_pass_takes_its_own(monkeypatch):
    model, taken = Remembers(), snapshots(monkeypatch)
    with uninterrupted():
        for _ in range(2):
            with pytest.raises(KeyError), forgetting(model):
                raise KeyError
        assert len(taken) == 2


@pytest.mark.parametrize("planted", [False, True])
def test_a_pass_inside_of_a_pass_shares_none(planted):
    """Else it would put back what another example's pass wrote before it."""
    model, loss, kept = Remembers(), nn.ReLU(), {}
    loss.held = model.ran
    with uninterrupted():
        for number in (5, 6):
            with forgetting(model):
                model.ran.append(number)
                if planted:
                    state._passes.kept = kept
                with forgetting(loss):
                    model.ran.append(0)
                assert model.ran == [5 if planted else number]


ROWS = torch.randn(9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.arange(9) % 3


def total(model, groups, batch):
    """The clipped sum over rows of three shapes."""
    frame = dense_frame(model)
    return clipped_batch_sum(
        StepInputs(
            model=model,
            batch=batch,
            loss_fn=per_example_loss(nn.CrossEntropyLoss()),
            frame=frame,
            mechanism=CLIP_ONLY,
            local=replace(LocalTraining(sample_rate=0.5, expected_batch=5.5), isolation="isolated"),
            groups=groups,
            num_examples=9,
            draws=Drawn(positions=torch.arange(9)),
            scale=None,
            parameters=check(model, frame),
        )
    )


def by_shape(positions):
    return [positions[positions % 3 == shape] for shape in range(3)]


@pytest.mark.parametrize("planted", [False, True])
def test_passes_of_many_shapes_read_no_trace_of_each_other(planted, monkeypatch):
    model, events = Remembers(), []
    taken = snapshots(monkeypatch)
    if planted:
        monkeypatch.setattr(
            state,
            "_snapshot",
            lambda *given: state.Snapshot(used=given, undo=lambda: False, generators=[]),
        )

    def batch(positions):
        events.append(state._passes.kept)
        return ROWS[positions][:, : 2 + int(positions[0]) % 3], LABELS[positions]

    sums = total(model, by_shape, batch)
    assert events == [None] * 3, "rows are made before the passes"
    reference = torch.zeros_like(sums)
    for x, y in zip(ROWS[:, :2], LABELS, strict=True):
        gradient = torch.autograd.grad(
            F.cross_entropy(model.head(x), y), list(model.head.parameters())
        )
        flat = torch.cat([part.flatten() for part in gradient])
        reference += flat * min(1.0, CLIP_ONLY.clip_norm / float(flat.norm()))
    if planted:
        assert not torch.allclose(sums, reference)
    else:
        torch.testing.assert_close(sums, reference, **EXACT)
        assert len(taken) == 1


@pytest.mark.parametrize("planted", [False, True])
def test_a_function_that_fills_one_buffer_gives_each_pass_its_own_rows(planted, monkeypatch):
    """Batches are made ahead of their passes: without a copy, all of them would be the last one."""
    if planted:
        monkeypatch.setattr(client_round, "each", lambda values, function: values)
    model, buffer = nn.Linear(4, 3), torch.empty(1, 4)
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))

    def refilled(positions):
        buffer.copy_(rows[positions])
        return buffer, LABELS[positions]

    def alone(positions):
        return [positions[row : row + 1] for row in range(len(positions))]

    honest = total(model, alone, lambda positions: (rows[positions], LABELS[positions]))
    assert torch.equal(total(model, alone, refilled), honest) == (not planted)
