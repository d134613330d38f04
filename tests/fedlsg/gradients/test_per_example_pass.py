"""What a pass leaves behind, and forward passes of unusual form: right, or refused by name."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedlsg.frame import Frame
from fedlsg.gradients.hooked_pass.hooks import Pass
from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError
from fedlsg.gradients.isolation import per_example_gradients
from tests.fedlsg.support.gradient_oracle import (
    TOLERANCE,
    cross_entropy,
    error,
    make_frame,
    naive,
    naive_error,
    squared_error,
)
from tests.fedlsg.support.problems import cnn, make, mlp, transformer

problems = pytest.mark.parametrize("problem", [mlp, cnn, transformer])


def state(model: nn.Module) -> list[object]:
    hooks = [len(m._forward_hooks) for m in model.modules()]
    return [
        hooks,
        [(p.requires_grad, p.grad, p._version) for p in model.parameters()],
        model.training,
    ]


def failing_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    raise RuntimeError("planted")


@pytest.mark.parametrize("loss", [cross_entropy, failing_loss, F.cross_entropy])
def test_a_pass_leaves_nothing_behind(loss):
    model, _, inputs, targets = make(cnn)
    inputs.requires_grad_()
    before = state(model)
    frame = make_frame(model, rank=2, sparsity=0.0)
    if loss is cross_entropy:
        per_example_gradients(model, loss, inputs, targets, frame)
    else:
        with pytest.raises((RuntimeError, ValueError)):
            per_example_gradients(model, loss, inputs, targets, frame)
    assert state(model) == before
    assert inputs.grad is None


@pytest.mark.gpu
@problems
def test_blocks_on_cuda_equal_those_on_the_cpu(problem):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model, loss_fn, inputs, targets = make(problem)
    if problem is transformer:
        pytest.skip("its positions are made on the CPU")
    frame = make_frame(model, rank=2, sparsity=0.3)
    wanted = per_example_gradients(model, loss_fn, inputs, targets, frame)
    moved = [
        replace(c, L=c.L.cuda(), R=c.R.cuda()) if c.L is not None and c.R is not None else c
        for c in frame.coordinates
    ]
    on_device = Frame(coordinates=tuple(moved), blocks=frame.blocks)
    got = per_example_gradients(model.cuda(), loss_fn, inputs.cuda(), targets.cuda(), on_device)
    assert all(t.is_cuda for t in got)
    assert error([t.cpu() for t in got], wanted) < TOLERANCE


class Custom(nn.Module):
    """Two linear layers under a forward pass that the test gives."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.route = nn.Linear(4, 4), nn.Linear(4, 4), forward

    def forward(self, x: Tensor) -> Tensor:
        return self.route(self, x)


def custom(
    forward: Callable[[nn.Module, Tensor], Tensor], dtype: torch.dtype = torch.float64
) -> tuple[nn.Module, Tensor, Tensor, Frame]:
    torch.manual_seed(2)
    model = Custom(forward).to(dtype)
    x, targets = torch.rand(3, 4, dtype=dtype), torch.randn(3, dtype=dtype)
    return model, x, targets, make_frame(model, rank=2, sparsity=0.0)


def without_gradient(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return layer(x)


SOUND = {
    "a layer is not reached": lambda m, x: m.first(x),
    "no layer is reached": lambda m, x: 2 * x,
    "two first layers": lambda m, x: m.first(x) + m.second(x),
    "the gradient is cut": lambda m, x: m.second(m.first(x).detach()),
    "the first layer runs without gradient": lambda m, x: m.second(without_gradient(m.first, x)),
    "an output is dropped": lambda m, x: (m.first(x), m.second(x).tanh())[1],
    "the output changes in place": lambda m, x: m.second(m.first(x).relu_()).mul_(3),
    "the network input changes in place before": lambda m, x: m.first(x.clone().mul_(2)),
    "an extra call without gradient": lambda m, x: m.first(x) + without_gradient(m.first, 2 * x),
    "the result is a view": lambda m, x: m.first(x)[:, 1:].t().contiguous().t(),
    "a second call": lambda m, x: m.first(m.first(x).tanh()) + m.second(x),
    "a third call, of positions": lambda m, x: (
        m.first(m.first(x)) + m.first(torch.stack([x, 2 * x], 1)).sum(1)
    ),
    "positions in the batch, one example after another": lambda m, x: m.second(
        m.first(x.repeat_interleave(2, 0)).tanh()
    ).view(len(x), -1),
    "positions first": lambda m, x: m.second(m.first(torch.stack([x, 2 * x]))).tanh().sum(0),
    "an input with positions": lambda m, x: m.second(
        m.first(x.unsqueeze(1).expand(-1, 2, -1)).relu_().flatten(1)[:, :4]
    ),
}


@pytest.mark.parametrize("case", SOUND)
def test_sound_forward_passes(case):
    model, x, targets, frame = custom(SOUND[case])
    got = per_example_gradients(model, squared_error, x, targets, frame)
    if case == "no layer is reached":
        assert error(got, [torch.zeros(3, b.kept, dtype=torch.float64) for b in frame.blocks]) == 0
    else:
        assert error(got, naive(model, squared_error, x, targets, frame)) < TOLERANCE


def in_place_after_the_call(m: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    z = m.first(y)
    y.zero_()
    return m.second(z)


def hidden_gradient(m: nn.Module, x: Tensor) -> Tensor:
    return m.first(x + torch.zeros(4, dtype=x.dtype, requires_grad=True))


UNSOUND = {
    "checkpointing": (
        lambda m, x: checkpoint(
            lambda y: m.second(m.first(y)).tanh().exp(), x, use_reentrant=False
        ),
        "checkpointing",
    ),
    "batch dimension 1": (
        lambda m, x: m.first(x[:1]) + m.second(x),
        r"batch of 3, got shape \(1, 4\)",
    ),
    "positions in the batch": (
        lambda m, x: m.first(x.repeat(2, 1)).view(3, -1),
        r"batch of 3, got shape \(6, 4\)",
    ),
    "no batch dimension": (
        lambda m, x: torch.stack([m.first(x[:, 0].repeat(2)[:4])] * 3),
        "first dimension",
    ),
    "an input changed in place": (
        in_place_after_the_call,
        r"first \(Linear\): its input was changed in place",
    ),
    "a hidden gradient": (
        hidden_gradient,
        r"requires a gradient, but no call of a trainable layer comes before it",
    ),
}


def assert_refused(forward: Callable[..., Tensor], message: str) -> None:
    """By name, and the model is left as it was."""
    model, x, targets, frame = custom(forward)
    before = state(model)
    with pytest.raises(UnsupportedLayerError, match=message):
        per_example_gradients(model, squared_error, x, targets, frame)
    assert state(model) == before


@pytest.mark.parametrize("case", UNSOUND)
def test_unsound_forward_passes_are_refused(case):
    assert_refused(*UNSOUND[case])


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        (torch.ones(3, 4), torch.ones(2)),
        (torch.ones(()), torch.ones(())),
        ({}, {}),
        ({"x": torch.ones(3, 4)}, torch.ones(1)),
    ],
)
def test_inputs_and_targets_need_one_batch(inputs, targets):
    model, _, _, frame = custom(lambda m, x: m.first(x))
    with pytest.raises(ValueError, match="share their first dimension"):
        per_example_gradients(model, squared_error, inputs, targets, frame)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("how", ["in place", "a layer", "wrapped", "a function"])
def test_a_compiled_model_gives_the_same_gradients_before_and_after_it_has_run(how):
    model, loss_fn, inputs, targets = make(cnn)
    frame = make_frame(model, rank=2, sparsity=0.5)
    expected = per_example_gradients(model, loss_fn, inputs, targets, frame)
    if how == "in place":
        model.compile(backend="aot_eager")
    elif how == "a layer":
        model[0].compile(backend="aot_eager")
    elif how == "a function":
        model.forward = torch.compile(model.forward, backend="aot_eager")
    else:
        model = torch.compile(model, backend="aot_eager")
        frame = make_frame(model, rank=2, sparsity=0.5)
    for _ in range(2):
        found = per_example_gradients(model, loss_fn, inputs, targets, frame)
        for value, value_expected in zip(found, expected, strict=True):
            torch.testing.assert_close(value, value_expected, rtol=0, atol=0)
        loss_fn(model(inputs), targets).sum().backward()  # as compiled, without hooks
        model.zero_grad()


def tied(m: nn.Module, x: Tensor) -> Tensor:
    return F.linear(m.second(m.first(x).tanh()), m.first.weight.t())


def with_a_hidden_gradient(m: nn.Module, x: Tensor) -> Tensor:
    return m.first(x) + m.second(x + torch.zeros(4, dtype=x.dtype, requires_grad=True))


HIDDEN = {
    "read, its layer not called": (
        lambda m, x: F.linear(m.first(x), m.second.weight),
        r"^second.weight: used outside of its own layer's call.*call the layer",
    ),
    "read next to its layer's call": (tied, r"^first.weight: used outside"),
    "a forward method": (
        lambda m, x: m.second.forward(m.first(x)),
        r"^second.weight, second.bias: used outside",
    ),
    "all by their forward methods": (
        lambda m, x: m.second.forward(m.first.forward(x)),
        r"^first.weight, first.bias, second.weight, second.bias: used outside",
    ),
    "read before a layer": (
        lambda m, x: m.second(m.first.forward(x)),
        r"second \(Linear\): its input requires",
    ),
    "a hidden gradient next to a first layer": (
        with_a_hidden_gradient,
        r"second \(Linear\): its input requires",
    ),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_what_no_hook_sees_is_refused(case):
    assert_refused(*HIDDEN[case])


def test_a_penalty_on_weights_is_refused():
    """Its gradient is no example's own."""
    model, x, targets, frame = custom(lambda m, x: m.second(m.first(x)))

    def penalised(outputs: Tensor, targets: Tensor) -> Tensor:
        return squared_error(outputs, targets) + model.second.weight.square().sum()

    with pytest.raises(UnsupportedLayerError, match=r"^second.weight: used outside"):
        per_example_gradients(model, penalised, x, targets, frame)


NOT_HIDDEN: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "looked at": lambda m, x: m.second(m.first(x.to(m.first.weight.dtype))) * len(m.second.weight),
    "used for what is dropped": lambda m, x: (m.second.weight.sum(), m.second(m.first(x)))[1],
    "used for what is detached": lambda m, x: m.second(m.first(x)) * m.first.weight.norm().detach(),
    "its layer called for what is dropped": lambda m, x: (m.second(x), m.first(x))[1],
}


@pytest.mark.parametrize("case", NOT_HIDDEN)
def test_without_a_gradient_it_is_nobodys_concern(case):
    model, x, targets, frame = custom(NOT_HIDDEN[case])
    assert naive_error(model, squared_error, x, targets, frame) < TOLERANCE


@pytest.mark.parametrize(
    "forward", [tied, HIDDEN["read, its layer not called"][0], with_a_hidden_gradient]
)
def test_negative_control_unasked_they_go_wrong_without_an_error(forward, monkeypatch):
    honest = Pass.backward

    def unasked(self: Pass, losses: Tensor) -> None:
        self.parameters = {}
        honest(self, losses)

    model, x, targets, frame = custom(forward)
    monkeypatch.setattr(Pass, "backward", unasked)
    monkeypatch.setattr("fedlsg.gradients.hooked_pass.hooks.ancestors", lambda end: ())
    assert naive_error(model, squared_error, x, targets, frame) > 0.1


def test_a_pass_keeps_no_output_of_a_layer_alive():
    """The hook of a node held the output of its layer, and the output holds the node."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 5, 3, padding=1), nn.Flatten())
    outputs: list[weakref.ref[Tensor]] = []
    model[1].register_forward_hook(lambda module, args, y: outputs.append(weakref.ref(y)))
    x, targets = torch.randn(3, 4, 4), torch.randn(3, 20)
    frame = make_frame(model, rank=1, sparsity=0.0)
    per_example_gradients(model, lambda y, t: (y - t).square().sum(1), x, targets, frame)
    gc.collect()
    assert [output() for output in outputs] == [None] * len(outputs) != []
