"""Rematerialized inputs of layers: the same bits, and less memory."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedlsg.gradients.rematerialize
from fedlsg.gradients.formulas.standardized import StandardizedConv2d
from fedlsg.gradients.per_example import per_example_gradients
from fedlsg.gradients.rematerialize import Rematerialization, Rematerialized
from tests.fedlsg.gradients.test_per_example_pass import cross_entropy, make_frame
from tests.fedlsg.support.gradient_oracle import TOLERANCE, error, naive

B, C = 3, 8
Forward = Callable[[nn.ModuleDict, Tensor], Tensor]


class Net(nn.Module):
    """Layers in a dict, and a forward pass of the test's own; mean over positions, ``classes`` outputs."""

    def __init__(self, forward: Forward, **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.own_forward = forward

    def forward(self, x: Tensor) -> Tensor:
        y = self.own_forward(self.layers, x)
        return y.flatten(2).mean(2) if y.ndim == 4 else y.flatten(1, -2).mean(1)


def conv(**options: object) -> nn.Conv2d:
    return nn.Conv2d(C, C, 3, padding=1, **options)  # type: ignore[arg-type]


def images(forward: Forward, **layers: nn.Module) -> tuple[nn.Module, Tensor]:
    layers = {"stem": nn.Conv2d(2, C, 3), "norm": nn.GroupNorm(2, C), "conv": conv()} | layers
    return Net(forward, **layers).double(), torch.randn(B, 2, 7, 6, dtype=torch.float64)


def texts(forward: Forward, **layers: nn.Module) -> tuple[nn.Module, Tensor]:
    layers = {"stem": nn.Linear(5, C), "norm": nn.LayerNorm(C), "linear": nn.Linear(C, C)} | layers
    return Net(forward, **layers).double(), torch.randn(B, 4, 5, dtype=torch.float64)


def shortcut(m: nn.ModuleDict, x: Tensor) -> Tensor:
    y = F.relu(m["norm"](m["stem"](x)))
    return m["conv"](y) + m["second"](y)


def attention(m: nn.ModuleDict, x: Tensor) -> Tensor:
    y = m["norm"](m["stem"](x))
    seen = F.scaled_dot_product_attention(m["linear"](y), m["key"](y), m["value"](y))
    return m["second"](F.gelu(m["widen"](y + seen), approximate="tanh"))


def changed_before(m: nn.ModuleDict, x: Tensor) -> Tensor:
    y = m["norm"](m["stem"](x))
    with torch.no_grad():
        y.mul_(2)
    return m["conv"](y)


def with_norm(activation: nn.Module) -> tuple[nn.Module, Tensor]:
    return images(lambda m, x: m["conv"](m["activation"](m["norm"](m["stem"](x)))), activation=activation)


REBUILT = {
    "norm, relu": lambda: with_norm(nn.ReLU()),
    "norm, relu in place": lambda: with_norm(nn.ReLU(inplace=True)),
    "norm, tanh": lambda: with_norm(nn.Tanh()),
    "norm": lambda: images(lambda m, x: m["conv"](m["norm"](F.relu(m["stem"](x))))),
    "a norm without parameters": lambda: images(
        lambda m, x: m["conv"](F.relu(m["norm"](m["stem"](x)))), norm=nn.GroupNorm(4, C, affine=False)
    ),
    "two readers": lambda: images(shortcut, second=nn.Conv2d(C, C, 1, padding=0)),
    "a frozen second reader": lambda: images(shortcut, second=nn.Conv2d(C, C, 1).requires_grad_(False)),
    "standardised": lambda: images(
        lambda m, x: m["conv"](m["norm"](F.relu(m["stem"](x)))), conv=StandardizedConv2d(C, C, 3, padding=1)
    ),
    "attention": lambda: texts(
        attention, key=nn.Linear(C, C), value=nn.Linear(C, C), widen=nn.Linear(C, 2 * C), second=nn.Linear(2 * C, C)
    ),
}
HELD = {
    "no norm": lambda: images(lambda m, x: m["conv"](F.relu(m["stem"](x))), norm=nn.Identity()),
    "changed behind autograd": lambda: images(changed_before),
    "a norm of another class": lambda: images(
        lambda m, x: m["conv"](m["norm"](m["stem"](x))), norm=type("Other", (nn.GroupNorm,), {})(2, C, affine=False)
    ),
}


@pytest.fixture(autouse=True)
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors, too; seeded."""
    torch.manual_seed(0)
    monkeypatch.setattr(fedlsg.gradients.rematerialize, "REMATERIALIZED_FROM", 1)


def rebuilt_values(monkeypatch: pytest.MonkeyPatch) -> list[Rematerialized]:
    """Every value that is made again from now on."""
    found: list[Rematerialized] = []
    shipped = Rematerialized.__init__

    def watched(self: Rematerialized, make: Callable[[], Tensor]) -> None:
        shipped(self, make)
        found.append(self)

    monkeypatch.setattr(Rematerialized, "__init__", watched)
    return found


@pytest.mark.parametrize("sparsity", [0.0, 0.5])
@pytest.mark.parametrize("case", REBUILT | HELD)
def test_gradients_are_the_same_bits(case, sparsity, monkeypatch):
    model, inputs = (REBUILT | HELD)[case]()
    targets = torch.arange(B)
    frame = make_frame(model, rank=2, sparsity=sparsity)
    made = rebuilt_values(monkeypatch)
    got = per_example_gradients(model, cross_entropy, inputs, targets, frame)
    assert bool(made) == (case in REBUILT)
    monkeypatch.setattr(Rematerialization, "of", lambda self, x: None)
    kept = per_example_gradients(model, cross_entropy, inputs, targets, frame)
    assert all(torch.equal(a, b) for a, b in zip(got, kept, strict=True))
    assert error(got, naive(model, cross_entropy, inputs, targets, frame)) < TOLERANCE
