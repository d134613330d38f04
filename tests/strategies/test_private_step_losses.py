"""Class weights, sums and parameters of a loss, from the user's line to the update of the model."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedlsg
from tests.strategies.own_loop import INPUTS, TARGETS, TERMS, batch, private_step, weights
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
    "sum over labels": (nn.BCEWithLogitsLoss(reduction="sum"), nn.BCEWithLogitsLoss(reduction="sum"), LABELS),
    "weights of labels": (
        nn.BCEWithLogitsLoss(pos_weight=W), lambda o, t: nn.BCEWithLogitsLoss(pos_weight=W)(o, t) * len(t), LABELS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", ["sgd", "dpsgd"])
@pytest.mark.parametrize("case", CASES)
def test_the_update_is_torchs_gradient_of_the_loss_that_was_asked(case, method):
    """Of sums without a clip, and of per-example gradients under a clip that none of them reaches."""
    loss, whole, targets = CASES[case]
    clip = {"clip_norm": None} if method == "sgd" else {"mechanism": "clip-only", "delta": None, "clip_norm": 1e6}
    step = private_step(method=method, loss=loss, noise_multiplier=None, reproducible=True, **clip)
    drawn = []
    before = weights(step)
    step.step(lambda rows: drawn.append(rows) or (INPUTS[rows], targets[rows]))
    rows = drawn[-1]
    net = model()
    total = torch.autograd.grad(whole(net(INPUTS[rows]), targets[rows]), list(net.parameters()))
    wanted = -0.5 * torch.cat([g.flatten() for g in total]) / (TERMS["sample_rate"] * len(INPUTS))
    torch.testing.assert_close(weights(step) - before, wanted, rtol=1e-3, atol=1e-6)


class Scaled(nn.Module):
    """Cross-entropy of outputs times a learned scale."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs * self.scale, targets, reduction="none")


@pytest.mark.parametrize("method", ["sgd", "dpsgd"])
def test_a_trainable_parameter_of_the_loss_is_refused_by_name(method):
    noise = {"noise_multiplier": None} if method == "sgd" else {}
    with pytest.raises(ValueError, match=r"the loss has trainable parameters \(scale\)"):
        private_step(method=method, loss=Scaled(), **noise)
    private_step(method="dpsgd", loss=Scaled().requires_grad_(False)).step(batch)


def test_a_penalty_on_the_model_s_own_weights_is_no_parameter_of_the_loss():
    """The weights that the loss reads are those that the step trains: nothing is left untrained."""
    net = nn.Linear(4, 3)

    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none") + 1e-3 * net.weight.square().sum()

    fedlsg.PrivateStep(net, loss, num_examples=40, noise_multiplier=1.0, delta=1e-3)
    with pytest.raises(ValueError, match="trainable parameter"):
        fedlsg.PrivateStep(nn.Linear(4, 3), loss, num_examples=40, noise_multiplier=1.0, delta=1e-3)
