"""Gradients that reach a parameter, or a layer, on a way that no hook sees: refused by name."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.gradients.hooks import Pass
from fedlsg.gradients.per_example import per_example_gradients
from fedlsg.gradients.supported import UnsupportedLayerError
from tests.fedlsg.gradients.test_per_example_pass import assert_refused, custom
from tests.fedlsg.support.gradient_oracle import TOLERANCE, naive_error, squared_error


def tied(m: nn.Module, x: Tensor) -> Tensor:
    return F.linear(m.second(m.first(x).tanh()), m.first.weight.t())


def with_a_hidden_gradient(m: nn.Module, x: Tensor) -> Tensor:
    return m.first(x) + m.second(x + torch.zeros(4, dtype=x.dtype, requires_grad=True))


UNSOUND = {
    "read, its layer not called": (
        lambda m, x: F.linear(m.first(x), m.second.weight),
        r"^second.weight: used outside of its own layer's call.*call the layer",
    ),
    "read next to its layer's call": (tied, r"^first.weight: used outside"),
    "a forward method": (lambda m, x: m.second.forward(m.first(x)), r"^second.weight, second.bias: used outside"),
    "all by their forward methods": (
        lambda m, x: m.second.forward(m.first.forward(x)),
        r"^first.weight, first.bias, second.weight, second.bias: used outside",
    ),
    "read before a layer": (lambda m, x: m.second(m.first.forward(x)), r"second \(Linear\): its input requires"),
    "a hidden gradient next to a first layer": (with_a_hidden_gradient, r"second \(Linear\): its input requires"),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_what_no_hook_sees_is_refused(case):
    assert_refused(*UNSOUND[case])


def test_a_penalty_on_weights_is_refused():
    """Its gradient is no example's own."""
    model, x, targets, frame = custom(lambda m, x: m.second(m.first(x)))

    def penalised(outputs: Tensor, targets: Tensor) -> Tensor:
        return squared_error(outputs, targets) + model.second.weight.square().sum()

    with pytest.raises(UnsupportedLayerError, match=r"^second.weight: used outside"):
        per_example_gradients(model, penalised, x, targets, frame)


SOUND: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "looked at": lambda m, x: m.second(m.first(x.to(m.first.weight.dtype))) * len(m.second.weight),
    "used for what is dropped": lambda m, x: (m.second.weight.sum(), m.second(m.first(x)))[1],
    "used for what is detached": lambda m, x: m.second(m.first(x)) * m.first.weight.norm().detach(),
    "its layer called for what is dropped": lambda m, x: (m.second(x), m.first(x))[1],
}


@pytest.mark.parametrize("case", SOUND)
def test_without_a_gradient_it_is_nobodys_concern(case):
    model, x, targets, frame = custom(SOUND[case])
    assert naive_error(model, squared_error, x, targets, frame) < TOLERANCE


@pytest.mark.parametrize("forward", [tied, UNSOUND["read, its layer not called"][0], with_a_hidden_gradient])
def test_negative_control_unasked_they_go_wrong_without_an_error(forward, monkeypatch):
    honest = Pass.backward

    def unasked(self: Pass, losses: Tensor, parameters: object) -> None:
        honest(self, losses, {})

    model, x, targets, frame = custom(forward)
    monkeypatch.setattr(Pass, "backward", unasked)
    monkeypatch.setattr("fedlsg.gradients.hooks.leads_to", lambda end, places: False)
    assert naive_error(model, squared_error, x, targets, frame) > 0.1
