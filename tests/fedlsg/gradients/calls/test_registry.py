"""Layers that users register: right against autograd, wrong results refused by name, one
registration a type.
"""

import pytest
import torch
from torch import Tensor, nn

import fedlsg
from fedlsg.gradients import registered_layers
from fedlsg.gradients.calls import by_torch_func
from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError, check_supported
from fedlsg.gradients.independence import check_model
from fedlsg.gradients.isolation import per_example_gradients
from tests.fedlsg.support.gradient_oracle import TOLERANCE, make_frame, naive_error, squared_error


class Bend(nn.Module):
    """y = x^2 a + x b, with a second input of keyword form, and a layer inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(4))
        self.b = nn.Parameter(torch.randn(4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        y = x.square() * self.a + x * self.b
        return self.inner(y if shift is None else y + shift)


def bend_gradients(
    module: Bend, inputs: tuple[Tensor, ...], output_gradient: Tensor
) -> dict[str, Tensor]:
    x, shift = inputs
    y = x.square() * module.a + x * module.b + shift
    g = output_gradient @ module.inner.weight
    return {
        "a": (g * x.square()).sum(1),
        "b": (g * x).sum(1),
        "inner.weight": output_gradient.mT @ y,
        "inner.bias": output_gradient.sum(1),
    }


class Around(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.before, self.layer = nn.Linear(4, 4), layer

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return self.layer(x, shift=x.detach().tanh())


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        Around(Bend()).double(),
        torch.randn(5, 3, 4, dtype=torch.float64),
        torch.randn(5, dtype=torch.float64),
    )


@pytest.mark.parametrize("gradients", [bend_gradients, by_torch_func])
def test_a_registered_layer_has_the_gradients_of_autograd(gradients):
    fedlsg.register_layer(Bend, gradients)
    assert registered_layers() == {Bend: gradients}
    model, x, y = problem()
    for sparsity in (0.0, 0.4):
        frame = make_frame(model, rank=1, sparsity=sparsity, carry=False, flat=True)
        assert naive_error(model, squared_error, x, y, frame) < TOLERANCE
    check_model(model, squared_error, [(x, y)])


WRONG = {
    "a name is missing": (lambda found: found.pop("b"), "gave no gradient for b"),
    "summed over the batch": (
        lambda found: found.update(a=found["a"].sum(0)),
        r"gradient of a of shape \(5, 4\), one row an example, got \(4,\)",
    ),
    "another shape": (
        lambda found: found.update(a=found["a"][:, :2]),
        r"gradient of a of shape \(5, 4\)",
    ),
    "integers": (lambda found: found.update(a=found["a"].long()), "got .* of torch.int64"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_result_is_refused_by_name(case):
    change, message = WRONG[case]

    def gradients(module, inputs, output_gradient):
        found = bend_gradients(module, inputs, output_gradient)
        change(found)
        return found

    fedlsg.register_layer(Bend, gradients)
    model, x, y = problem()
    with pytest.raises(UnsupportedLayerError, match=rf"^layer \(Bend\): .*{message}"):
        per_example_gradients(
            model, squared_error, x, y, make_frame(model, rank=1, sparsity=0.0, carry=False)
        )


def test_a_function_that_mixes_examples_is_found_by_the_check():
    def mixed(module, inputs, output_gradient):
        found = bend_gradients(module, inputs, output_gradient)
        return {**found, "a": found["a"] + 1e-3 * found["a"].mean(0)}

    fedlsg.register_layer(Bend, mixed)
    with pytest.raises(UnsupportedLayerError, match="its backward pass mixes"):
        check_model(*problem()[:1], squared_error, [problem()[1:]])


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


class Peeking(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


@pytest.mark.parametrize("kind", [Noisy, Peeking])
def test_what_torch_func_cannot_follow_is_refused_with_the_fix(kind):
    fedlsg.register_layer(kind)
    model, x, y = nn.Sequential(kind(4, 2)), torch.randn(5, 4), torch.randn(5)
    with pytest.raises(
        UnsupportedLayerError,
        match=rf"^0 \({kind.__name__}\): no per-example gradients.*register_layer",
    ):
        per_example_gradients(
            model, squared_error, x, y, make_frame(model, rank=1, sparsity=0.0, carry=False)
        )


class OwnNorm(nn.LayerNorm):
    pass


def test_registration():
    model = nn.Sequential(OwnNorm(4))
    check_supported(model)
    fedlsg.register_layer(OwnNorm)
    check_supported(model)
    with pytest.raises(ValueError, match="OwnNorm is registered already"):
        fedlsg.register_layer(OwnNorm, by_torch_func)
    for built_in in (nn.Linear, nn.LSTM, nn.Embedding):
        with pytest.raises(
            ValueError, match=f"{built_in.__name__} has built-in gradients; register a subclass"
        ):
            fedlsg.register_layer(built_in, by_torch_func)
    for wrong in (model, int, "OwnNorm"):
        with pytest.raises(TypeError, match=r"expected a subclass of torch.nn.Module"):
            fedlsg.register_layer(wrong, by_torch_func)
    with pytest.raises(TypeError, match="expected a function"):
        fedlsg.register_layer(Bend, {"a": 1})


def test_a_registered_layer_that_mixes_by_type_stays_refused():
    class OwnBatchNorm(nn.BatchNorm1d):
        pass

    fedlsg.register_layer(OwnBatchNorm)
    with pytest.raises(UnsupportedLayerError, match="mixes the examples of a batch"):
        check_supported(nn.Sequential(OwnBatchNorm(4)))
