"""A fingerprint changes with everything that a user can change between two steps, and with nothing
else.
"""

import copy
import time
from functools import partial
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from fedlsg.gradients import per_example_loss
from fedlsg.user_code import fingerprint as module
from fedlsg.user_code.fingerprint import Followed, Watching, fingerprint


class Activation(nn.Module):
    """A module of a user, with an attribute of each kind and a method that its forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.mode, self.function = 1.0, "tanh", torch.tanh
        self.register_buffer("shift", torch.zeros(1))
        self.register_buffer("nothing", None)

    def helper(self, x: Tensor) -> Tensor:
        return self.function(x * self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(x)


class Loss:
    """A loss that is an object."""

    def __init__(self) -> None:
        self.scale, self.inner = 1.0, nn.CrossEntropyLoss(reduction="none")

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.scale * self.inner(outputs, targets)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), Activation(), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    )


def ignore(*args: Any) -> None:
    pass


def centred(self: Any, x: Tensor) -> Tensor:
    return x - x.mean(0)


CHANGES = {
    "forward hook": lambda m, l: m[0].register_forward_hook(ignore),
    "hook before": lambda m, l: m[1].register_forward_pre_hook(ignore),
    "backward hook": lambda m, l: m[2][0].register_full_backward_hook(ignore),
    "hook before backward": lambda m, l: m[2][0].register_full_backward_pre_hook(ignore),
    "hook of a gradient": lambda m, l: m[0].weight.register_hook(ignore),
    "hook of a sum": lambda m, l: m[0].weight.register_post_accumulate_grad_hook(ignore),
    "another hook in place": lambda m, l: m[2][1]._forward_hooks.update({0: partial(ignore)}),
    "layer": lambda m, l: m.__setitem__(1, Activation()),
    "layer inside": lambda m, l: m[2].__setitem__(1, nn.Dropout(0.5)),
    "one more layer": lambda m, l: m.append(nn.Identity()),
    "order": lambda m, l: m._modules.update({"0": m[1], "1": m[0]}),
    "class": lambda m, l: setattr(m[1], "__class__", nn.Tanh),
    "forward of an object": lambda m, l: setattr(m[1], "forward", lambda x: x),
    "method of an object": lambda m, l: setattr(m[1], "helper", lambda x: x),
    "mode": lambda m, l: m[2][1].eval(),
    "parameter": lambda m, l: setattr(m[0], "bias", nn.Parameter(m[0].bias.detach().clone())),
    "tied": lambda m, l: setattr(m[2][0], "bias", m[0].bias),
    "untied": lambda m, l: setattr(m[2][0], "bias", None),
    "frozen": lambda m, l: m[0].bias.requires_grad_(False),
    "type": lambda m, l: m.half(),
    "shape": lambda m, l: setattr(m[0].bias, "data", torch.zeros(9)),
    "number": lambda m, l: setattr(m[1], "scale", 2.0),
    "word": lambda m, l: setattr(m[1], "mode", "relu"),
    "function": lambda m, l: setattr(m[1], "function", torch.relu),
    "setting of torch": lambda m, l: setattr(m[2][1], "p", 0.1),
    "buffer": lambda m, l: setattr(m[1], "shift", torch.zeros(1)),
    "first buffer": lambda m, l: setattr(m[1], "nothing", torch.zeros(1)),
    "new attribute": lambda m, l: setattr(m[0], "note", 1),
    "number of the loss": lambda m, l: setattr(l, "scale", 2.0),
    "layer of the loss": lambda m, l: setattr(l, "inner", nn.NLLLoss(reduction="none")),
    "setting in the loss": lambda m, l: setattr(l.inner, "label_smoothing", 0.5),
    "hook of the loss": lambda m, l: l.inner.register_forward_hook(ignore),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_changes_with_a(change):
    model, loss = net(), Loss()
    model[2][1].register_forward_hook(ignore)
    model[2][1]._forward_hooks = {0: ignore}
    form = per_example_loss(loss)
    before = fingerprint(model, form)
    assert fingerprint(model, form) == before
    assert hash(fingerprint(model, form)) == hash(before)
    CHANGES[change](model, loss)
    assert fingerprint(model, form) != before


@pytest.mark.parametrize("name", ["forward", "helper", "__call__", "other"])
def test_it_changes_with_a_method_of_a_class(name, monkeypatch):
    model = net()
    before = fingerprint(model)
    monkeypatch.setattr(Activation, name, centred, raising=False)
    assert fingerprint(model) != before
    monkeypatch.undo()
    assert fingerprint(model) == before


def test_it_changes_with_hooks_of_all_modules():
    model = net()
    before = fingerprint(model)
    handle = register_module_forward_hook(ignore)
    assert fingerprint(model) != before
    handle.remove()
    assert fingerprint(model) == before


def test_it_changes_with_functions_that_forwards_name(monkeypatch):
    model = net()
    before = fingerprint(model)
    monkeypatch.setattr(nn.functional, "linear", lambda x, W, b=None: x @ W.T)
    assert fingerprint(model) != before
    monkeypatch.undo()
    assert fingerprint(model) == before


@pytest.mark.parametrize(
    "around", [TorchDispatchMode, lambda: saved_tensors_hooks(lambda t: t, lambda t: t)]
)
def test_it_changes_with_modes_and_hooks_on_saved_tensors(around):
    model = net()
    before = fingerprint(model)
    with around():
        assert fingerprint(model) != before
    assert fingerprint(model) == before


def test_a_class_whose_methods_are_made_anew_from_the_same_code_is_no_change(monkeypatch):
    """As cloudpickle makes those of a script or a notebook for each message of Flower."""
    model = net()
    before = fingerprint(model)
    for name in ("forward", "helper"):
        method = vars(Activation)[name]
        anew = FunctionType(method.__code__, method.__globals__)
        monkeypatch.setattr(Activation, name, anew)
    assert fingerprint(model) == before


def test_it_changes_with_the_loss_and_with_what_a_function_holds():
    model, weights = net(), [1.0]
    loss = partial(lambda outputs, targets, factor: outputs * weights[0], factor=2.0)
    before = fingerprint(model, loss)
    loss.keywords["factor"] = 3.0
    assert fingerprint(model, loss) != before
    loss.keywords["factor"] = 2.0
    assert fingerprint(model, loss) == before
    assert fingerprint(model, nn.MSELoss()) != before


def test_values_and_what_fedlsg_places_are_no_part_of_it():
    model, loss = net(), Loss()
    before = fingerprint(model, loss)
    optimizer = torch.optim.Adam(model.parameters())
    loss(model(torch.randn(3, 4)), torch.tensor([0, 1, 2])).sum().backward()
    optimizer.step()
    model[1].shift.add_(1)
    model[0].register_forward_hook(Watching(ignore))
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    assert fingerprint(model, loss) == before


def test_an_attribute_that_was_set_first_counts():
    class Early(nn.Module):
        def __init__(self) -> None:
            self.__dict__["early"] = 1
            super().__init__()

    model = Early()
    before = fingerprint(model)
    model.__dict__["early"] = 2
    assert fingerprint(model) != before


@pytest.mark.slow
def test_compiled_and_scripted_modules_have_one():
    scripted = nn.Sequential(torch.jit.script(nn.Linear(3, 3)), torch.compile(nn.Linear(3, 3)))
    assert fingerprint(scripted) == fingerprint(scripted)


def test_what_a_pass_writes_is_no_change_and_what_its_owner_writes_is():
    model, loss = net(), Loss()
    followed = Followed(model, loss)
    model[1].scale, model[1].cache = 3.0, torch.zeros(2)
    followed.passed()
    assert followed.now() is followed.checked
    assert followed.change() == ""
    model[1].scale = 4.0
    assert followed.now() != followed.checked
    followed.accept()
    assert followed.change() == ""


def test_a_pass_that_changes_the_structure_is_a_change():
    model = net()
    followed = Followed(model, Loss())
    model[1] = nn.Tanh()
    followed.passed()
    assert followed.change() == "layers of the model (Sequential); 1 (Tanh) is new"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("forward hook", "hooks of 0 (Linear)"),
        ("mode", "mode of 2.1 (Dropout)"),
        ("parameter", "parameters of 0 (Linear)"),
        ("number", "the loss, or what modules and their classes keep"),
    ],
)
def test_a_change_is_named(change, words):
    model, loss = net(), Loss()
    followed = Followed(model, loss)
    CHANGES[change](model, loss)
    assert followed.change() == words


def test_twelve_layers_take_about_a_millisecond():
    """.6 ms on a free core; ten times as much on a busy one."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model, loss = nn.TransformerEncoder(layer, 12), per_example_loss(nn.CrossEntropyLoss())
    seconds = []
    for _ in range(20):
        start = time.thread_time()
        fingerprint(model, loss)
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 6e-3


@pytest.mark.parametrize("forgotten", ["hooks", "parameter", "values"])
def test_negative_control_a_walk_that_forgets_something_is_found(forgotten, monkeypatch):
    """The table above fails for a fingerprint without hooks, without parameters, without
    attributes.
    """
    monkeypatch.setattr(module._Walk, forgotten, lambda self, *args: ())
    found = []
    for change in ("forward hook", "frozen", "number"):
        model, loss = net(), Loss()
        before = fingerprint(model, loss)
        CHANGES[change](model, loss)
        found.append(fingerprint(model, loss) == before)
    assert sum(found) == 1
