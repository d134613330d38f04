"""Models and losses that mix examples are refused on made-up rows; honest ones pass."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedlsg
from fedlsg.gradients import per_example_loss
from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError
from fedlsg.gradients.independence import check as independence
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.strategies.own_loop.examples import check_example, check_synthetic, ctc_checks
from tests.fedlsg.support.mixing_zoo import HONEST, LABELS, MIXING, Case, Embedded


def check(case: Case, level: Isolation = "checked") -> None:
    torch.manual_seed(1)
    check_synthetic(case.model(), per_example_loss(case.loss), case.x, case.y, level=level)


PLAIN = [
    "mean",
    "sorted",
    "ranks",
    "neighbour",
    "one id, centred",
    "texts of mean length",
    "hard examples",
    "weak",
]


@pytest.mark.thinned(10)
@pytest.mark.parametrize("level", ["checked", "isolated"])
@pytest.mark.parametrize("case", PLAIN)
def test_what_mixes_is_refused_without_an_example(case, level):
    with pytest.raises(UnsupportedLayerError, match="mixes examples"):
        check(MIXING[case], level)


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    "case",
    [
        case if turn % 2 == 0 else pytest.param(case, marks=pytest.mark.slow)
        for turn, case in enumerate(HONEST)
    ],
)
def test_what_is_honest_passes_without_an_example(case):
    check(HONEST[case])
    check(HONEST[case], "isolated")


@pytest.mark.parametrize("case", ["a coin by torch", "a coin by python"])
def test_other_seeds_find_what_one_seed_does_not(case, monkeypatch):
    """Negative control: under the first seed these coins do not mix."""
    monkeypatch.setattr(independence, "SEEDS", 1)
    check(MIXING[case])


def test_no_value_of_the_data_is_read():
    """Negative control: values that the model refuses would fail the check, if it read them."""
    for x in (torch.full((2, 6), 10**6), torch.full((2, 6), -7)):
        check(Case(x, torch.full((2,), 99), Embedded))


def test_where_made_up_rows_are_equal_an_example_is_demanded():
    one_word = Case(torch.zeros(2, 3, dtype=torch.int64), LABELS, lambda: Embedded(rows=1))
    with pytest.raises(ValueError, match=r"give example=\(inputs, targets\)"):
        check(one_word)
    loss = per_example_loss(nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="that differ from each other"):
        check_example(Embedded(rows=1), loss, one_word.x, one_word.y)


class Noisy(nn.Module):
    """Counts its calls in a buffer in train mode only; drops; is random."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop = nn.Linear(6, 3), nn.Dropout(0.5)
        self.register_buffer("ones", torch.ones(3))

    def forward(self, x):
        return self.drop(self.body(x)) * self.ones


def test_nothing_is_left_behind():
    model, loss = Noisy(), nn.CrossEntropyLoss(weight=torch.ones(3))
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    check_synthetic(model, per_example_loss(loss), torch.zeros(2, 6), LABELS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert loss.weight.dtype == torch.float32
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 6)

    def forward(self, x):
        return self.head(x).log_softmax(-1)


def ctc(outputs, targets):
    lengths = (torch.full((len(targets),), part.shape[1]) for part in (outputs, targets))
    return functional.ctc_loss(
        outputs.transpose(0, 1), targets, *lengths, reduction="none", zero_infinity=True
    )


def step_with(loss):
    given = {
        "num_examples": 40,
        "sample_rate": 0.5,
        "steps": 2,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
    }
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
    with ctc_checks(), pytest.raises(ValueError, match=why):
        functional.ctc_loss(scores, torch.tensor(targets), torch.tensor([6]), torch.tensor(lengths))
    assert torch.ctc_loss.__name__ == "ctc_loss"
