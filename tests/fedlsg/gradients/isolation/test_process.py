"""What torch keeps for the whole process is put back like a model's own, or refused."""

import operator
import sys
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as of_all_modules
from torch.nn.utils import parametrize
from torch.optim import optimizer as of_all_optimizers
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.privacy import rare_forms, true_epsilon
from fedlsg.gradients import per_example_loss
from fedlsg.gradients.isolation import batched
from fedlsg.gradients.isolation.passes import per_example_gradients
from fedlsg.gradients.isolation.state import forgetting
from fedlsg.gradients.isolation.trial import dense_frame, why_rows
from fedlsg.user_code import process
from fedlsg.user_code.library import own_code
from fedlsg.user_code.objects import restored

BOTH = pytest.mark.parametrize("keeping", [forgetting, restored])
FOR_ALL = {
    name.removeprefix("register_module_"): register
    for name, register in vars(of_all_modules).items()
    if name.startswith("register_module_") and name != "register_module_backward_hook"
} | {
    name: getattr(of_all_optimizers, f"register_optimizer_step_{name}")
    for name in ("pre_hook", "post_hook")
}


@BOTH
@pytest.mark.parametrize("kind", FOR_ALL)
def test_a_hook_for_all_of_the_process_leaves_nothing(kind, keeping):
    model, total = nn.Linear(2, 2), []
    handle = FOR_ALL[kind](lambda *given: total.append(1))
    try:
        with keeping(model):
            total.append(2)
            other = FOR_ALL[kind](lambda *given: None)
            assert other.id in other.hooks_dict_ref(), "negative control: it is there"
        assert total == []
        assert other.id not in other.hooks_dict_ref()
        assert handle.id in handle.hooks_dict_ref()
    finally:
        handle.remove()
        other.remove()


class Operators(TorchDispatchMode):
    pass


LEFT_ON = {
    "gradients": lambda: torch.set_grad_enabled(False),
    "type": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "type of autocast": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "a mode of functions": lambda: BaseTorchFunctionMode().__enter__(),
    "a mode of operators": lambda: Operators().__enter__(),
    "hooks on saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(
        torch.neg, torch.neg
    ).__enter__(),
}


@BOTH
@pytest.mark.parametrize("name", LEFT_ON)
def test_what_was_left_on_is_put_back(name, keeping):
    def seen():
        on = [process._identities(read()) for read, _, _ in process.STACKS]
        return on, [read() for read, _ in process.SETTINGS]

    before = seen()
    with keeping(nn.Linear(2, 2)):
        LEFT_ON[name]()
        assert seen() != before, "negative control: it is on"
    assert seen() == before


def test_a_mode_that_was_left_is_entered_again():
    model = nn.Sequential()
    with BaseTorchFunctionMode() as mode:
        with forgetting(model):
            torch.overrides._pop_mode()
        assert torch.overrides._get_current_function_mode_stack() == [mode]


@contextmanager
def replaced(owner, name):
    """A function of torch that counts in its closure."""
    calls, original = [], getattr(owner, name)

    def counting(*given):
        calls.append(1)
        return original(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, counting)
        yield calls


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def helper(self, x):
        return torch.tanh(x)

    def forward(self, x):
        return self.helper(self.first(x))


PLACES = {
    "F.linear": (F, "linear"),
    "a forward": (nn.Linear, "forward"),
    "what a helper calls": (torch, "tanh"),
}


@BOTH
@pytest.mark.parametrize("place", PLACES)
def test_a_function_of_torch_that_was_replaced_leaves_nothing(place, keeping):
    model = Own()
    with replaced(*PLACES[place]) as calls:
        with keeping(model):
            model(torch.ones(2, 4))
            assert calls, "negative control: it was called"
        assert calls == []


def test_a_function_of_torch_that_code_replaces_is_put_back():
    class Replaces(Own):
        def helper(self, x):
            torch.tanh = torch.sin
            return x

    tanh = torch.tanh
    with forgetting(model := Replaces()):
        model(torch.ones(2, 4))
        assert torch.tanh is not tanh, "negative control"
    assert torch.tanh is tanh


@BOTH
def test_a_parametrization_that_forward_adds_is_taken_off(keeping):
    model = Own()
    with keeping(model):
        parametrize.register_parametrization(model.first, "weight", nn.Identity())
        assert type(model.first) is not nn.Linear, "negative control"
    assert type(model.first) is nn.Linear
    assert [name for name, _ in model.named_parameters()] == ["first.weight", "first.bias"]
    model(torch.ones(2, 4))


def test_what_a_view_is_a_part_of_is_put_back_after_a_check():
    holder, base = Own(), torch.zeros(2, 3)
    holder.part, holder.many = base[0], [base, *[None] * 100_001]
    with restored(holder):
        base.add_(1)
    assert base.count_nonzero() == 0
    with restored(holder, data=True):
        base[1].add_(1)
    assert base.count_nonzero() == 3, "rows of data are left alone"


@pytest.fixture
def library():
    made = torch.library.Library("aten", "IMPL")
    yield made
    made._destroy()


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_in_place_of_an_operators_is_refused_by_name(library):
    model, x, y = nn.Linear(4, 3), torch.ones(2, 4), torch.zeros(2).long()
    gradients = [model, per_example_loss(nn.CrossEntropyLoss()), x, y, dense_frame(model)]
    per_example_gradients(*gradients, isolation="rows")
    assert own_code(model) is None
    library.impl("tanh", torch.sin, "CPU")
    assert "aten::tanh" in str(own_code(model))
    for level in ("rows", "isolated"):
        with pytest.raises(ValueError, match=r"aten::tanh \(CPU, .*test_process.py.*custom_op"):
            per_example_gradients(*gradients, isolation=level)


@pytest.mark.parametrize("name", ["trace", "profile"])
def test_a_trace_function_is_refused(name, monkeypatch):
    """It sees the frames of library code, which hold the whole batch."""
    model, x, y = nn.Linear(4, 3), torch.ones(2, 4), torch.zeros(2).long()
    gradients = [model, per_example_loss(nn.CrossEntropyLoss()), x, y, dense_frame(model)]

    def tracer(frame, event, argument):
        return None

    before = getattr(sys, f"get{name}")()
    try:
        getattr(sys, f"set{name}")(tracer)
        assert "tracer" in str(own_code(model))
        for level in ("rows", "isolated"):
            with pytest.raises(ValueError, match=r"tracer.*sys\.setprofile"):
                per_example_gradients(*gradients, isolation=level)
    finally:
        getattr(sys, f"set{name}")(before)
    assert own_code(model) is None
    per_example_gradients(*gradients, isolation="rows")


@pytest.mark.parametrize("name", ["by its function", "by torch.ops"])
def test_an_operator_of_ones_own_runs_by_rows(name, monkeypatch):
    call = rare_forms.shift if name == "by its function" else torch.ops.fedlsg_forms.shift
    x, y = torch.ones(3, 4), torch.zeros(3).long()
    x[0] = 1e7
    loss = per_example_loss(nn.CrossEntropyLoss())
    model = true_epsilon.net(lambda self, h: call(h))()
    rare_forms.GLOBAL["v"] = torch.zeros(32)
    assert "operator of your own" in why_rows(model, loss, x, y)

    def second(level):
        frame = dense_frame(model)
        found = torch.cat(per_example_gradients(model, loss, x, y, frame, isolation=level), 1)
        return float((found[1] - found[2]).abs().max()), float(rare_forms.GLOBAL["v"].abs().max())

    assert second("rows") == (0.0, 0.0)
    monkeypatch.setattr(process, "own_operators", list)
    for module in ("state", "batched"):
        monkeypatch.setattr(f"fedlsg.gradients.isolation.{module}.own_operators", list)
    if name == "by torch.ops":
        assert second("rows")[1] > 0, "negative control: nothing else reaches the operator"


FORM = operator.itemgetter("Hooks, modes, settings and operators of the process")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["F.linear with a state, replaced before"])
def test_one_example_moves_a_step_by_one_clip_norm(name):
    with ExitStack() as stack:
        stack.callback(rare_forms.clear_hooks)
        assert FORM(true_epsilon.FORMS)[name]().startswith("right")


@pytest.mark.parametrize("read", [repr, torch._C._functorch.get_unwrapped, *batched.UNWRAP_NAMES])
def test_what_leaves_vmap_is_refused_inside(read):
    def of_one(x):
        way = getattr(torch._C._functorch, read) if isinstance(read, str) else read
        way(x)
        return x

    x = torch.ones(3, 4)
    if read is torch._C._functorch.get_unwrapped:  # a name of before: the user's word
        assert batched.for_each_example(of_one)(x).shape == x.shape
    else:
        with pytest.raises(RuntimeError, match="all examples"):
            batched.for_each_example(of_one)(x)
    assert "3., " not in repr(x), "and everything is as before"


def test_the_state_of_a_generator_is_no_trace():
    model = Own()
    model.own = np.random.PCG64(3)
    before = model.own.state
    with forgetting(model) as put_back:
        chosen = before | {"state": before["state"] | {"state": 7}}
        model.own.state = chosen
        assert model.own.state == chosen, "negative control"
        put_back()
        assert model.own.state["state"] not in (chosen["state"], before["state"])
    assert model.own.state == before
