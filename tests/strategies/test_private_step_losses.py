"""Class weights, sums and parameters of a loss, from the user's line to the update of the model."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedlsg
from fedlsg.gradients import per_example_loss
from fedlsg.strategies import recipe
from fedlsg.strategies.step_method import is_regression, method_of, planned_steps
from tests.strategies.own_loop import INPUTS, TARGETS, TERMS, private_step, weights
from tests.strategies.small_federation import model

W = torch.tensor([0.5, 1.0, 2.0])
LABELS = F.one_hot(TARGETS, 3).float()


def own(outputs, targets):
    return F.cross_entropy(outputs, targets, W, reduction="none")


WEIGHTED = partial(F.cross_entropy, weight=W, reduction="sum")
"""Torch's loss of a batch, with which each example has the weight of its class."""
CASES = {
    "module with class weights": (nn.CrossEntropyLoss(weight=W), WEIGHTED, TARGETS),
    "partial with class weights": (partial(F.cross_entropy, weight=W), WEIGHTED, TARGETS),
    "own function with class weights": (own, WEIGHTED, TARGETS),
    "sum over labels": (
        nn.BCEWithLogitsLoss(reduction="sum"),
        nn.BCEWithLogitsLoss(reduction="sum"),
        LABELS,
    ),
    "weights of labels": (
        nn.BCEWithLogitsLoss(pos_weight=W),
        lambda o, t: nn.BCEWithLogitsLoss(pos_weight=W)(o, t) * len(t),
        LABELS,
    ),
}


@pytest.mark.thinned(7)
@pytest.mark.parametrize("method", ["sgd", "dpsgd"])
@pytest.mark.parametrize("case", CASES)
def test_the_update_is_torchs_gradient_of_the_loss_that_was_asked(case, method):
    """Of sums without a clip, and of per-example gradients under a clip that none of them
    reaches.
    """
    loss, whole, targets = CASES[case]
    clip = (
        {"clip_norm": None}
        if method == "sgd"
        else {"mechanism": "clip-only", "delta": None, "clip_norm": 1e6}
    )
    step = private_step(method=method, loss=loss, noise_multiplier=None, reproducible=True, **clip)
    drawn = []
    before = weights(step)
    step.watch(lambda plan, rows, values: drawn.append(rows))
    step.step(lambda rows: (INPUTS[rows], targets[rows]))
    rows = drawn[-1]
    net = model()
    total = torch.autograd.grad(whole(net(INPUTS[rows]), targets[rows]), list(net.parameters()))
    wanted = -0.5 * torch.cat([g.flatten() for g in total]) / (TERMS["sample_rate"] * len(INPUTS))
    torch.testing.assert_close(weights(step) - before, wanted, rtol=1e-3, atol=1e-6)


def test_a_penalty_on_the_model_s_own_weights_is_no_parameter_of_the_loss():
    """The weights that the loss reads are those that the step trains: nothing is left untrained."""
    net = nn.Linear(4, 3)

    def loss(outputs, targets):
        return (
            F.cross_entropy(outputs, targets, reduction="none") + 1e-3 * net.weight.square().sum()
        )

    fedlsg.PrivateStep(net, loss, num_examples=40, noise_multiplier=1.0, delta=1e-3)
    with pytest.raises(ValueError, match="trainable parameter"):
        fedlsg.PrivateStep(nn.Linear(4, 3), loss, num_examples=40, noise_multiplier=1.0, delta=1e-3)


@pytest.mark.parametrize(
    ("given", "planned"),
    [
        ((None, None, None), (0.5, 40)),
        ((None, None, 5), (0.125, 40)),
        ((0.1, None, None), (0.1, 200)),
        ((None, 40, None), (0.5, 40)),
        ((0.2, 7, None), (0.2, 7)),
    ],
)
def test_steps_and_rate(given, planned):
    assert planned_steps(*given) == planned


def named(method="auto", learning_rate=None, optimizer=None, **settings):
    return method_of(method, settings, learning_rate, optimizer, model=MODEL, steps=100)


MODEL = nn.Linear(99, 50)
"""Of 5,000 numbers."""


def test_the_rule_is_the_default_and_each_part_can_be_given():
    plain = named()
    assert (plain.name, plain.server.optimizer, plain.server.learning_rate) == (
        "dpsgd",
        "adam",
        0.02,
    )
    assert plain.server.layer_rates == "fan-in"
    assert (named(rank=8).name, named(rank=8).server.layer_rates) == ("lsg", "equal")
    assert named(ema=0.0).server.ema == 0.0
    assert (
        method_of("auto", {}, None, None, model=nn.Linear(1599, 50), steps=100).server.learning_rate
        == 0.01
    )
    assert named(learning_rate="auto") == plain
    assert (
        method_of(
            "auto", {}, None, None, model=MODEL, steps=100, regression=True
        ).server.learning_rate
        == 0.01
    )
    assert is_regression(per_example_loss(nn.MSELoss()))
    assert not is_regression(per_example_loss(nn.CrossEntropyLoss()))
    assert named(optimizer="AdamW").server.learning_rate == 0.02
    old = named(learning_rate=0.4, momentum=0.9)
    assert (old.server.optimizer, old.server.ema, old.server.layer_rates) == ("sgd", 0.0, "equal")
    assert named(momentum=0.9).server.optimizer == "sgd"
    made = recipe("dpsgd")
    assert named(made) is made
    own = named(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert own.server.ema == 0.0
    with pytest.raises(ValueError, match="learning_rate: your own optimizer has its own"):
        named(learning_rate=0.1, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
