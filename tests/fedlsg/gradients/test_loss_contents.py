"""Tensors that a loss holds follow the outputs, in a copy; trainable parameters in a loss are
refused by name.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError
from fedlsg.gradients.independence import check_model
from fedlsg.gradients.loss_contents import held_tensors
from fedlsg.gradients.losses import per_example_loss

W = torch.tensor([0.5, 1.0, 2.0])
GLOBAL = W * 2
SCALE = nn.Parameter(torch.tensor(1.5))
FROZEN = nn.Linear(3, 3).requires_grad_(False)
ELSEWHERE = SimpleNamespace(scale=nn.Parameter(torch.tensor(1.5)))
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 2, 1])


def weighted(outputs: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, weight, reduction="none")


class Module(nn.Module):
    """Class weights as a buffer, as an attribute, inside a module, or in a list of modules."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        if how == "buffer":
            self.register_buffer("w", W.clone())
        elif how == "attribute":
            self.w = W.clone()
        elif how == "nested":
            self.inner = nn.CrossEntropyLoss(weight=W.clone(), reduction="none")
        else:
            self.all = [nn.CrossEntropyLoss(weight=W.clone(), reduction="none")]

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.how == "nested":
            return self.inner(outputs, targets)
        return (
            self.all[0](outputs, targets)
            if self.how == "list"
            else weighted(outputs, targets, self.w)
        )


class Focal:
    """A callable object, and a bound method, that hold class weights."""

    def __init__(self) -> None:
        self.w = {"classes": W.clone()}

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return weighted(outputs, targets, self.w["classes"])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self(outputs, targets)


def closure() -> Callable[[Tensor, Tensor], Tensor]:
    w = W.clone()
    return lambda o, t: weighted(o, t, w)


def by_global(outputs: Tensor, targets: Tensor) -> Tensor:
    return weighted(outputs, targets, GLOBAL) / 2 + FROZEN(outputs).sum(1) * 0


def by_default(outputs: Tensor, targets: Tensor, weight: Tensor = W) -> Tensor:
    return weighted(outputs, targets, weight)


def written_inside(outputs: Tensor, targets: Tensor) -> Tensor:
    return weighted(outputs, targets, torch.tensor([0.5, 1.0, 2.0]))


HOLDERS: dict[str, Any] = {
    "CrossEntropyLoss": nn.CrossEntropyLoss(weight=W.clone()),
    "NLLLoss of an own module": Module("nested"),
    "buffer": Module("buffer"),
    "attribute": Module("attribute"),
    "list of modules": Module("list"),
    "partial": partial(F.cross_entropy, weight=W.clone()),
    "partial of an own function": partial(weighted, weight=W.clone()),
    "callable object": Focal(),
    "bound method": Focal().loss,
    "closure": closure(),
    "global": by_global,
    "default": by_default,
    "written inside": written_inside,
}
CONVERTED = [
    name for name in HOLDERS if name not in ("closure", "global", "default", "written inside")
]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", HOLDERS)
def test_a_loss_with_float32_tensors_passes_the_check_and_weighs_each_example(name):
    own = HOLDERS[name]
    before = [(place, t.clone()) for place, t in held_tensors(own)]
    loss = per_example_loss(own)
    check_model(model(), loss, [(X, Y)])
    outputs = model()(X)
    torch.testing.assert_close(loss(outputs, Y), F.cross_entropy(outputs, Y, W, reduction="none"))
    for (place, t), (same, now) in zip(before, held_tensors(own), strict=True):
        assert (place, t.dtype) == (same, now.dtype)
        assert torch.equal(t, now)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("strength", [1e-4, 1e-2])
@pytest.mark.parametrize("name", HOLDERS)
def test_a_loss_that_mixes_next_to_its_tensors_is_refused(name, strength):
    """Negative control: the check has power over each of these losses."""
    inner = per_example_loss(HOLDERS[name])
    mixing = per_example_loss(lambda o, t: inner(o + strength * o.mean(0), t))
    with pytest.raises(UnsupportedLayerError, match=r"^the loss function: mixes examples"):
        check_model(model(), mixing, [(X, Y)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "make", [nn.CrossEntropyLoss, lambda weight: partial(F.cross_entropy, weight=weight)]
)
def test_class_weights_of_another_type_are_those_of_the_outputs(make, dtype):
    """numpy's weights are float64; torch refuses them next to float32 outputs."""
    loss = per_example_loss(make(weight=W.to(dtype)))
    outputs = model()(X)
    torch.testing.assert_close(loss(outputs, Y), F.cross_entropy(outputs, Y, W, reduction="none"))
    check_model(model(), loss, [(X, Y)])


@pytest.mark.parametrize("name", CONVERTED)
def test_held_tensors_follow_the_device_of_the_outputs(name):
    """On the device "meta", which has shapes alone, torch refuses tensors of the CPU."""
    outputs = torch.empty(5, 3, device="meta")
    assert per_example_loss(HOLDERS[name])(outputs, Y.to("meta")).device.type == "meta"
    assert all(t.device.type == "cpu" for _, t in held_tensors(HOLDERS[name]))


class Memory(nn.Module):
    """Compares with the outputs of the call before."""

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.last: Any = None
        if buffer:
            self.register_buffer("mean", torch.zeros(3))
        self.buffer = buffer

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        before = self.mean if self.buffer else 0 if self.last is None else self.last
        losses = F.cross_entropy(outputs + 0.1 * before, targets, reduction="none")
        self.last = outputs.detach().mean(0)
        if self.buffer:
            self.mean = outputs.detach().mean(0)
        return losses


@pytest.mark.parametrize("buffer", [True, False])
def test_a_loss_with_a_memory_is_refused_and_the_check_leaves_no_trace_in_it(buffer):
    own = Memory(buffer=buffer)
    with pytest.raises(
        UnsupportedLayerError, match="the loss function: depends on earlier batches"
    ):
        check_model(model(), per_example_loss(own), [(X, Y)])
    assert own.last is None
    assert not buffer or not own.mean.any()


def test_a_weight_that_its_owner_changes_counts_from_then_on():
    own = nn.CrossEntropyLoss(weight=W.double())
    loss, outputs = per_example_loss(own), model()(X)
    before = loss(outputs, Y)
    own.weight *= 2
    torch.testing.assert_close(loss(outputs, Y), 2 * before)
    own.weight = torch.ones(3)
    torch.testing.assert_close(loss(outputs, Y), F.cross_entropy(outputs, Y, reduction="none"))


class Scaled(nn.Module):
    def __init__(self, *, trained: bool = True) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5), requires_grad=trained)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs * self.scale, targets, reduction="none")


class Around(nn.Module):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.part(outputs, targets)


def in_closure(part: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda o, t: part(o, t)


def helper(outputs: Tensor) -> Tensor:
    return outputs * SCALE


def through_helper(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(helper(outputs), targets, reduction="none")


def leaf() -> Any:
    w = torch.ones(3, requires_grad=True)
    return lambda o, t: F.cross_entropy(o * w, t, reduction="none")


PARAMETERS: dict[str, tuple[Any, str]] = {
    "module": (Scaled(), "scale"),
    "nested": (Around(Scaled()), "part.scale"),
    "list": (Around({"a": [Scaled()]}), "part.a.0.scale"),
    "closure": (in_closure(Scaled()), "part.scale"),
    "partial": (partial(lambda o, t, of: of(o, t), of=Scaled()), "of.scale"),
    "bound method": (Scaled().forward, "scale"),
    "global of a helper": (through_helper, "helper.SCALE"),
    "tensor that requires a gradient": (leaf(), "w"),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_trainable_parameters_of_a_loss_are_refused_by_name(case):
    loss, name = PARAMETERS[case]
    with pytest.raises(
        ValueError, match=rf"the loss has trainable parameters \({name}\).*move them into the model"
    ):
        per_example_loss(loss)


def test_frozen_parameters_and_those_of_the_model_are_no_fault():
    net = model()
    for part in (
        Scaled(trained=False),
        Around(Scaled(trained=False)),
        in_closure(Scaled(trained=False)),
    ):
        check_model(net, per_example_loss(part), [(X, Y)])
    per_example_loss(
        lambda o, t: F.cross_entropy(o, t, reduction="none") + 0 * net[0].weight.sum(), net
    )
    with pytest.raises(ValueError, match=r"trainable parameters \(net.0.weight, net.0.bias"):
        per_example_loss(
            lambda o, t: F.cross_entropy(o, t, reduction="none") + 0 * net[0].weight.sum()
        )


def test_a_parameter_that_only_the_graph_shows_is_refused():
    loss = per_example_loss(lambda o, t: F.cross_entropy(o * ELSEWHERE.scale, t, reduction="none"))
    with pytest.raises(
        UnsupportedLayerError, match=r"trainable parameters .*\(one of shape \(\)\)"
    ):
        check_model(model(), loss, [(X, Y)])


def penalised(net: nn.Module) -> Any:
    def loss(outputs: Any, targets: Tensor) -> Tensor:
        size = sum(p.square().sum() for p in net.parameters())
        return F.cross_entropy(outputs, targets, reduction="none") + size

    return loss


def test_a_penalty_on_the_model_is_named_and_passes_if_forward_returns_it():
    net = model()
    with pytest.raises(
        UnsupportedLayerError, match=r"reads the model's parameters \(0.weight.*weight_decay"
    ):
        check_model(net, penalised(net), [(X, Y)])

    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: Tensor) -> tuple[Tensor, Any]:
            return self.net(x), sum(p.square().sum() for p in self.parameters())

    check_model(
        Returns(),
        lambda o, t: F.cross_entropy(o[0], t, reduction="none") + o[1],
        [(X, Y)],
        level="isolated",
    )


REST = nn.Linear(4, 4)


class Unregistered(nn.Module):
    """Layers that torch does not see, in three ways, and a tensor."""

    def __init__(self, way: str) -> None:
        super().__init__()
        layer = nn.Linear(4, 4)
        self.way, self.last = way, nn.Linear(4, 3)
        self.held: Any = {
            "list": [layer],
            "dict": {"a": layer},
            "tensor": torch.ones(4, requires_grad=True),
            "module list": nn.ModuleList([layer]),
        }.get(way)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "tensor":
            return self.last(x * self.held)
        layer = REST if self.way == "global" else self.held["a" if self.way == "dict" else 0]
        return self.last(layer(x))


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("list", "held.0.weight"),
        ("dict", "held.a.weight"),
        ("tensor", "held"),
        ("global", "REST.weight"),
    ],
)
def test_layers_that_the_model_has_not_registered_are_named(way: str, name: str) -> None:
    loss = per_example_loss(nn.CrossEntropyLoss())
    with pytest.raises(UnsupportedLayerError, match=rf"\({name}[,)].*nn.ModuleList"):
        check_model(Unregistered(way), loss, [(X, Y)], level="rows")


def test_registered_layers_pass() -> None:
    loss = per_example_loss(nn.CrossEntropyLoss())
    check_model(Unregistered("module list"), loss, [(X, Y)], level="rows")
