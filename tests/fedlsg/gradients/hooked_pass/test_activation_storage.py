"""What a pass stores: rounded activations, inputs that are made again; no gradient changes beyond
its rounding.
"""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.gradients.formulas.standardized import StandardizedConv2d
from fedlsg.gradients.hooked_pass import activation_storage, rematerialization
from fedlsg.gradients.hooked_pass.activation_storage import ActivationStorage
from fedlsg.gradients.hooked_pass.rematerialization import Rematerialization, Rematerialized
from fedlsg.gradients.isolation import per_example_gradients
from tests.fedlsg.gradients.hooked_pass.test_precision import STORED
from tests.fedlsg.gradients.test_per_example_pass import failing_loss, state
from tests.fedlsg.support.gradient_oracle import TOLERANCE, cross_entropy, error, make_frame, naive
from tests.fedlsg.support.problems import make, mlp, standardised

VIEWS = {
    "as it is": lambda t: t,
    "transposed": lambda t: t.mT,
    "rows": lambda t: t[1:],
    "flat": lambda t: t.flatten(1),
    "a small part": lambda t: t[:, :1, 2:5],
    "every other": lambda t: t[..., ::2],
    "repeated": lambda t: t[:, :, :1].expand(-1, -1, 9),
    "channels last": lambda t: t.unsqueeze(1).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("view", VIEWS)
def test_what_comes_back_is_what_was_stored_rounded(view):
    t = VIEWS[view](torch.randn(4, 6, 8))
    storage = ActivationStorage([])
    rounded = storage.pack(t)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(storage.unpack(rounded), t.bfloat16().float())
    assert torch.equal(storage.unpack(rounded), t.bfloat16().float())  # from memory


def stored_by(
    build: Callable[..., object], monkeypatch: pytest.MonkeyPatch, copies: int = 1
) -> list[torch.Size]:
    """Shapes of what one pass rounds, of one example; its batch ``copies`` times over."""
    model, loss_fn, x, y = make(build, torch.float32)
    frame = make_frame(model, rank=2, sparsity=0.0)
    shapes: list[torch.Size] = []
    honest = ActivationStorage.pack
    with monkeypatch.context() as patch:
        patch.setattr(
            ActivationStorage,
            "pack",
            lambda self, t: (shapes.append(t.shape[1:]), honest(self, t))[1],
        )
        per_example_gradients(
            model,
            loss_fn,
            x.repeat(copies, *[1] * (x.ndim - 1)),
            y.repeat(copies),
            frame,
            precision=STORED,
        )
    return shapes


def test_activations_are_rounded_but_no_weight_no_statistic_and_no_batch(monkeypatch):
    shapes = stored_by(standardised, monkeypatch)
    # outputs of convolutions and what becomes of them
    assert set(shapes) == {(6, 8, 8), (5, 3, 3), (45,)}


def test_what_is_rounded_depends_on_no_one_elses_presence(monkeypatch):
    """Batches as large as a kernel's first dimension, or as a statistic's, are treated as all
    others.
    """
    alone = stored_by(standardised, monkeypatch)
    assert all(stored_by(standardised, monkeypatch, copies) == alone for copies in (2, 3, 5, 100))


@pytest.mark.parametrize("loss", [cross_entropy, failing_loss])
def test_a_pass_leaves_nothing_behind(loss, monkeypatch):
    model, _, inputs, targets = make(mlp, torch.float32)
    frame, before = make_frame(model, rank=2, sparsity=0.0), state(model)
    seen: list[weakref.ref[object]] = []
    made = lambda left: (s := ActivationStorage(left), seen.append(weakref.ref(s)))[0]  # noqa: E731
    monkeypatch.setattr(activation_storage, "ActivationStorage", made)
    model[2].register_forward_hook(lambda module, args, output: seen.append(weakref.ref(args[0])))
    hooks = [len(m._forward_hooks) for m in model.modules()]
    try:
        per_example_gradients(model, loss, inputs, targets, frame, precision=STORED)
    except RuntimeError:
        assert loss is failing_loss
    gc.collect()
    assert len(seen) > 1
    assert [ref() for ref in seen] == [None] * len(seen)
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert state(model)[1:] == before[1:]


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU(inplace=True), nn.Tanh()])
def test_an_example_has_the_same_gradient_in_any_company_where_inputs_are_made_again(
    activation, monkeypatch
):
    """64 values of an example are made again, and 63 are not, however many examples there are."""
    monkeypatch.setattr(rematerialization, "REMATERIALIZED_FROM", 64)
    torch.manual_seed(0)
    for units in (64, 63):
        layers = [
            nn.Linear(9, units),
            nn.LayerNorm(units),
            activation,
            nn.Linear(units, 3),
            nn.Flatten(),
        ]
        model, x, y = nn.Sequential(*layers), torch.randn(128, 9), torch.randint(3, (128,))
        frame = make_frame(model, rank=2, sparsity=0.0)
        together = per_example_gradients(model, cross_entropy, x, y, frame, precision=STORED)
        alone = per_example_gradients(model, cross_entropy, x[:1], y[:1], frame, precision=STORED)
        unrounded = per_example_gradients(model, cross_entropy, x, y, frame)
        for a, b, exact in zip(alone, together, unrounded, strict=True):
            assert (a[0] - b[0]).norm() <= 1e-5 * b[0].norm()
            # a ReLU made again may have a sign of its own near 0
            assert (b - exact).norm() <= 2**-5 * exact.norm()


B, C = 3, 8
Forward = Callable[[nn.ModuleDict, Tensor], Tensor]


class Net(nn.Module):
    """Layers in a dict, and a forward pass of the test's own; mean over positions, ``classes``
    outputs.
    """

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
    return images(
        lambda m, x: m["conv"](m["activation"](m["norm"](m["stem"](x)))), activation=activation
    )


REBUILT = {
    "norm, relu": lambda: with_norm(nn.ReLU()),
    "norm, relu in place": lambda: with_norm(nn.ReLU(inplace=True)),
    "norm, tanh": lambda: with_norm(nn.Tanh()),
    "norm": lambda: images(lambda m, x: m["conv"](m["norm"](F.relu(m["stem"](x))))),
    "a norm without parameters": lambda: images(
        lambda m, x: m["conv"](F.relu(m["norm"](m["stem"](x)))),
        norm=nn.GroupNorm(4, C, affine=False),
    ),
    "two readers": lambda: images(shortcut, second=nn.Conv2d(C, C, 1, padding=0)),
    "a frozen second reader": lambda: images(
        shortcut, second=nn.Conv2d(C, C, 1).requires_grad_(False)
    ),
    "standardised": lambda: images(
        lambda m, x: m["conv"](m["norm"](F.relu(m["stem"](x)))),
        conv=StandardizedConv2d(C, C, 3, padding=1),
    ),
    "attention": lambda: texts(
        attention,
        key=nn.Linear(C, C),
        value=nn.Linear(C, C),
        widen=nn.Linear(C, 2 * C),
        second=nn.Linear(2 * C, C),
    ),
}
HELD = {
    "no norm": lambda: images(lambda m, x: m["conv"](F.relu(m["stem"](x))), norm=nn.Identity()),
    "changed behind autograd": lambda: images(changed_before),
    "a norm of another class": lambda: images(
        lambda m, x: m["conv"](m["norm"](m["stem"](x))),
        norm=type("Other", (nn.GroupNorm,), {})(2, C, affine=False),
    ),
}


@pytest.fixture(autouse=True)
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors, too; seeded."""
    torch.manual_seed(0)
    monkeypatch.setattr(rematerialization, "REMATERIALIZED_FROM", 1)


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
    monkeypatch.setattr(Rematerialization, "value_of", lambda self, x: None)
    kept = per_example_gradients(model, cross_entropy, inputs, targets, frame)
    assert all(torch.equal(a, b) for a, b in zip(got, kept, strict=True))
    assert error(got, naive(model, cross_entropy, inputs, targets, frame)) < TOLERANCE
