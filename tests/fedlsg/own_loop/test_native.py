"""A user's CTC loss on made-up rows: out of range, torch reads foreign memory and ends the process."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedlsg
from fedlsg.own_loop.examples import checked_ctc


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 6)

    def forward(self, x):
        return self.head(x).log_softmax(-1)


def ctc(outputs, targets):
    lengths = (torch.full((len(targets),), part.shape[1]) for part in (outputs, targets))
    return functional.ctc_loss(outputs.transpose(0, 1), targets, *lengths, reduction="none", zero_infinity=True)


def step_with(loss):
    given = {"num_examples": 40, "sample_rate": 0.5, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-3}
    step = fedlsg.PrivateStep(Speech(), loss, **given)
    draw = torch.Generator().manual_seed(0)
    data = torch.randn(40, 9, 4, generator=draw), torch.randint(1, 6, (40, 3), generator=draw)
    step.step(step.batches(data))
    return step


def test_a_ctc_loss_trains():
    assert step_with(ctc).epsilon() > 0


def test_one_that_mixes_is_refused():
    with pytest.raises(ValueError, match="mixes examples"):
        step_with(lambda o, t: ctc(o, t) / (t != 0).float().sum(1).mean())


@pytest.mark.parametrize(
    ("targets", "lengths", "why"),
    [
        ([[1, 9]], [2], "targets from 0 to 4, got 1..9"),
        ([[1, -1]], [2], "targets from"),
        ([[1, 2]], [3], "target_lengths"),
    ],
)
def test_what_ends_a_process_raises(targets, lengths, why):
    scores = torch.zeros(6, 1, 5).log_softmax(-1)
    with checked_ctc(), pytest.raises(ValueError, match=why):
        functional.ctc_loss(scores, torch.tensor(targets), torch.tensor([6]), torch.tensor(lengths))
    assert torch.ctc_loss.__name__ == "ctc_loss"
