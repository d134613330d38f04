"""The warning of steps that hardly move a model: where it comes, where not, and that it is measured
against what a run does.
"""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import fedlsg
from fedlsg.privacy.limits import Limits, held_to
from fedlsg.strategies.own_loop import short_steps

ROWS = 60


@pytest.fixture(autouse=True)
def new_process():
    short_steps._seen.cache_clear()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def said(takes: int = 1, **given: Any) -> list[str]:
    """The warnings of the first steps of a loop."""
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
    settings = {"sample_rate": 0.5, "steps": 4, "noise_multiplier": 1.0, "delta": 1e-5, **given}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = fedlsg.PrivateStep(
            model(), nn.CrossEntropyLoss(), num_examples=ROWS, method="dpsgd", **settings
        )
        batches = step.batches((x, (x[:, 0] > 0).long()))
        for _ in range(takes):
            step.step(batches)
    ours = [w for w in caught if "hardly move" in str(w.message)]
    assert all(w.filename == __file__ for w in ours)  # the user's own line
    return [str(w.message) for w in ours]


def test_short_steps_are_named_once_with_their_share_of_the_weights():
    (words,) = said(takes=3, learning_rate=0.05, clip_norm=0.5)
    size = sum(float(p.detach().square().sum()) for p in model().parameters()) ** 0.5
    assert f"{100 * 4 * 0.05 * 0.5 / size:.2g} % of the length" in words
    assert "steps=4 at learning_rate=0.05 and clip_norm=0.5" in words
    assert "node's epsilon" not in words
    assert said(learning_rate=0.05, clip_norm=0.5) == []  # the same terms in the next round


@pytest.mark.parametrize(
    "given",
    [
        {"learning_rate": 8.0},
        {"learning_rate": 0.5, "clip_norm": 8.0},
        {"learning_rate": 0.5, "momentum": 0.95},
        {"learning_rate": 0.05, "steps": 400},
        {},  # Adam, whose steps have a length of their own
        {"learning_rate": 0.001, "optimizer": "adam"},
        {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1e-6)},
        {"learning_rate": 1e-6, "mechanism": "none", "noise_multiplier": None},
    ],
    ids=lambda given: " ".join(given) or "defaults",
)
def test_other_steps_are_no_matter(given):
    assert said(**given) == []


@pytest.mark.parametrize(("epsilon", "warned"), [(4.0, True), (400.0, False)])
def test_further_rounds_of_a_node_count_as_far_as_its_epsilon_goes(epsilon, warned):
    limits = Limits(budgets=((epsilon, 1e-5), (1000.0, 1e-5)))
    with held_to(limits):
        words = said(learning_rate=0.5)
    assert bool(words) == warned
    assert all("over all rounds that the node's epsilon allows" in one for one in words)
    short_steps._seen.cache_clear()
    assert said(learning_rate=0.5) != []  # a loop without a node has its steps alone


def test_the_sum_of_such_steps_is_as_short_as_it_says():
    """Without noise: the bound that the warning rests on."""
    net = model()
    before = torch.cat([p.detach().flatten() for p in net.parameters()])
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
    step = fedlsg.PrivateStep(
        net,
        nn.CrossEntropyLoss(),
        num_examples=ROWS,
        method="dpsgd",
        mechanism="clip-only",
        sample_rate=1.0,
        steps=4,
        learning_rate=0.05,
        clip_norm=0.5,
    )
    batches = step.batches((x, (x[:, 0] > 0).long()))
    for _ in range(4):
        step.step(batches)
    after = torch.cat([p.detach().flatten() for p in net.parameters()])
    assert 0 < float((after - before).norm()) <= 4 * 0.05 * 0.5
