"""Faster ways to the same numbers: u through the output, Eq. 3 in place, kernels in
channels_last.
"""

import pytest
import torch
from torch import Tensor, nn

import fedlsg.gradients.hooked_pass.hooked_layers as planning
from fedlsg.gradients.hooked_pass import model_facts
from fedlsg.gradients.hooked_pass.model_facts import prepare
from fedlsg.gradients.hooked_pass.precision import FLOAT32
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.privacy.clip import clipped_sum
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.training.server_round import ServerOptimizer, make_optimizer, server_step
from tests.fedlsg.support.gradient_oracle import (
    TOLERANCE,
    error,
    make_frame,
    naive,
    naive_error,
    squared_error,
)


def test_microbatches_share_the_shortcuts_of_their_step(monkeypatch):
    """Until the weights move: then the next pass looks at them again."""
    model, x, y = wide()
    frame = make_frame(model, rank=2, sparsity=0.0)
    apart = [
        per_example_gradients(model, squared_error, x[i : i + 1], y[i : i + 1], frame)
        for i in range(3)
    ]
    looked: list[int] = []
    honest = model_facts.through_outputs
    monkeypatch.setattr(
        model_facts, "through_outputs", lambda layers: looked.append(len(layers)) or honest(layers)
    )
    with model_facts.same_weights(frame):
        shared = [
            per_example_gradients(model, squared_error, x[i : i + 1], y[i : i + 1], frame)
            for i in range(3)
        ]
    assert len(looked) == 1
    assert all(
        torch.equal(a, b)
        for one, other in zip(apart, shared, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    with torch.no_grad():
        model[0].weight.mul_(1.5).add_(0.1)
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE
    assert len(looked) == 2


def wide() -> tuple[nn.Module, Tensor, Tensor]:
    """Layers whose output is narrower than their input under the kernel, with biases."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1),
        nn.GroupNorm(2, 6),
        nn.ReLU(True),
        nn.Flatten(),
        nn.Linear(96, 5),
    )
    model = model.double()
    return model, torch.randn(3, 4, 4, 4, dtype=torch.float64), torch.randn(3, dtype=torch.float64)


def through(model: nn.Module, frame) -> list[bool]:
    return [
        layer.carried is not None and layer.carried.A is not None
        for layer in prepare(model, frame, FLOAT32, ()).layers
    ]


def test_u_comes_through_the_output_where_the_carriers_are_those_of_the_weight():
    model, x, y = wide()
    frame = make_frame(model, rank=2, sparsity=0.0)
    assert through(model, frame) == [True, False, True]
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE


@pytest.mark.parametrize("change", ["moved", "singular"])
def test_and_not_where_the_weight_moved_or_has_too_low_a_rank(change):
    model, x, y = wide()
    if change == "singular":
        nn.init.ones_(model[0].weight)
    frame = make_frame(model, rank=2, sparsity=0.0)
    if change == "moved":
        with torch.no_grad():
            model[0].weight.add_(0.01 * torch.randn_like(model[0].weight))
    assert through(model, frame) == [False, False, True]
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE


def error_under_a_long_bias() -> tuple[list[bool], float]:
    """Of tiny weights with ordinary biases, as a zero-initialised layer has them soon after its
    start.
    """
    model, x, y = wide()
    with torch.no_grad():
        model[4].weight.mul_(1e-12)
    frame = make_frame(model, rank=2, sparsity=0.0)
    got = per_example_gradients(model, squared_error, x, y, frame)
    return through(model, frame), error(got, naive(model, squared_error, x, y, frame))


def test_negative_control_the_carriers_alone_do_not_tell(monkeypatch):
    monkeypatch.setattr(planning, "bias_error", lambda bias, A: 0.0)
    used, found = error_under_a_long_bias()
    assert used == [True, False, True]
    assert found > 100 * TOLERANCE


def moves_by_eq3(model: nn.Module, *, sparsity: float = 0.0, entry: str = "move") -> bool:
    """Whether half a gradient is taken off every weight, by Eq. 3 of the frame."""
    frame = make_frame(model, rank=2, sparsity=sparsity)
    parameters = dict(model.named_parameters())
    before = {name: p.detach().clone() for name, p in parameters.items()}
    values = torch.randn(frame.kept, dtype=torch.float64)
    wanted = frame.gradients(values)
    if entry == "move":
        frame.add_to(parameters, values, dict.fromkeys(parameters, -0.5))
    else:
        server = ServerOptimizer(learning_rate=0.5, momentum=0.0)
        optimizer, scheduler = make_optimizer(parameters, server, updates=2)
        server_step(
            model, optimizer, scheduler, 3 * values, frame=frame, divisor=3.0, server=server
        )
    return all(
        torch.allclose(p, before[name] - 0.5 * wanted[name], atol=1e-12)
        for name, p in parameters.items()
    )


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_eq3_in_place_is_eq3(turned, sparsity):
    model, _, _ = wide()
    if turned:
        model = model.to(memory_format=torch.channels_last)
    places = [p.data_ptr() for p in model.parameters()]
    assert moves_by_eq3(model, sparsity=sparsity)
    assert [p.data_ptr() for p in model.parameters()] == places


def turned_block(batch: int = 3) -> Tensor:
    """Rows of a kernel gradient as the product leaves them: taps in front of in channels in
    memory.
    """
    return torch.randn(batch, 9, 2, 5, dtype=torch.float64)[:, 1:].permute(0, 2, 3, 1)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_the_clipped_sum_knows_no_memory_order(precision):
    block, other = turned_block(), torch.randn(3, 4, dtype=torch.float64)
    mechanism = Mechanism(kind="clip-only", clip_norm=1.0)
    torch.set_float32_matmul_precision(precision)
    try:
        got = clipped_sum([block, other], mechanism)
        assert torch.allclose(got, clipped_sum([block.flatten(1), other], mechanism), atol=1e-12)
    finally:
        torch.set_float32_matmul_precision("highest")
