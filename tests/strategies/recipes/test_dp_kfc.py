"""DP-KFC by its formula: U_G g U_A, clipped and noisy, is the gradient that the server applies."""

import pytest
import torch
from torch import nn

from fedlsg.carriers import carried_parameters
from fedlsg.gradients import trainable
from strategies import recipe
from tests.strategies.small_federation import model, server_state

CHOICES = {"probes": 40, "learning_rate": 0.5}


def test_every_layer_before_the_classifier_is_preconditioned_whole():
    """Also where no low rank would pay: it sends as many values as dense DP-SGD."""
    method = recipe("dp-kfc")
    assert carried_parameters(model(), method.carrier, classifier="classifier") == ("0.weight",)
    frame = server_state("dp-kfc", **CHOICES).frame()
    assert frame.kept == frame.dense_size == sum(p.numel() for p in trainable(model()).values())
    with pytest.raises(ValueError, match="no Linear or Conv2d layer before the classifier to precondition"):
        carried_parameters(nn.Sequential(nn.Linear(3, 2)), method.carrier)


def test_the_server_applies_what_was_sent():
    """W <- W - lr S / divisor: neither preconditioner nor clip is undone."""
    state = server_state("dp-kfc", **CHOICES, divisor=4.0)
    frame, before = state.frame(), state.weights
    values = torch.randn(frame.kept, generator=torch.Generator().manual_seed(1))
    state.finish_round(frame, [values])
    torch.testing.assert_close(state.weights, before - 0.5 * values / 4.0)


def test_power_0_is_dense_dp_sgd():
    """With power 0 both preconditioners are I; with the paper's 1/2 they are not (control)."""
    for power, same in ((0.0, True), (0.5, False)):
        frame = server_state("dp-kfc", **CHOICES, power=power).frame()
        where = next(c for c in frame.coordinates if c.carried)
        assert torch.allclose(where.L, torch.eye(10), atol=1e-5) is same
        assert torch.allclose(where.R, torch.eye(12), atol=1e-5) is same
