"""A model or a loss that changes after the first step is checked again, or refused, before the next
charge.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedlsg.user_code.fingerprint
from fedlsg.gradients.isolation import block_gradients
from fedlsg.gradients.isolation.passes import own_model
from fedlsg.strategies.own_loop import one_round
from fedlsg.strategies.private_step import PrivateStep

EXAMPLES = 40
DRAW = torch.Generator().manual_seed(3)
INPUTS = torch.randn(EXAMPLES, 4, generator=DRAW)
TARGETS = torch.randint(3, (EXAMPLES,), generator=DRAW)


class Activation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.function, self.calls = torch.tanh, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Counting(Activation):
    """Its forward writes attributes and a buffer in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen, self.last = x.detach(), torch.zeros(1)
        return torch.tanh(x)


class Scaled:
    """A loss with an attribute."""

    def __init__(self) -> None:
        self.centred = False

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = outputs - outputs.mean(0) if self.centred else outputs
        return nn.functional.cross_entropy(outputs, targets, reduction="none")


def net(activation: type[nn.Module] = Activation) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 3))


def centre(x: Tensor) -> Tensor:
    return torch.tanh(x - x.mean(0))


class Centre(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return centre(x)


def started(model: nn.Module, loss: Any = None, **settings: Any) -> tuple[PrivateStep, Any]:
    """A step that was taken once, and its batches."""
    usual = {"learning_rate": 0.1} if "optimizer" not in settings else {}
    step = PrivateStep(
        model,
        loss or nn.CrossEntropyLoss(),
        num_examples=EXAMPLES,
        method="dpsgd",
        sample_rate=0.5,
        steps=9,
        noise_multiplier=1.0,
        delta=1e-3,
        **usual | settings,
    )
    rows = step.batches((INPUTS, TARGETS))
    step.step(rows)
    return step, rows


MIXING = {
    "hook": lambda m, l: m[0].register_forward_hook(
        lambda module, inputs, output: output - output.mean(0)
    ),
    "hook before": lambda m, l: m[1].register_forward_pre_hook(
        lambda module, inputs: (inputs[0] - inputs[0].mean(0),)
    ),
    "backward hook": lambda m, l: m[1].register_full_backward_hook(
        lambda module, inner, outer: (inner[0] - inner[0].mean(0),)
    ),
    "layer": lambda m, l: m.__setitem__(1, Centre()),
    "layer before": lambda m, l: m.__setitem__(1, nn.Sequential(Centre(), m[1])),
    "forward": lambda m, l: setattr(m[1], "forward", centre),
    "attribute": lambda m, l: setattr(m[1], "function", centre),
    "forward of the model": lambda m, l: setattr(
        m, "forward", lambda x: m[2](m[1](m[0](x - x.mean(0))))
    ),
    "class": lambda m, l: setattr(m[1], "__class__", Centre),
    "batch norm": lambda m, l: m.__setitem__(1, nn.BatchNorm1d(8, affine=False)),
    "loss": lambda m, l: setattr(l, "centred", True),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("how", MIXING)
def test_mixing_that_is_put_in_later_is_refused_free(how):
    model, loss = net(), Scaled()
    step, rows = started(model, loss)
    spent = step.epsilon()
    MIXING[how](model, loss)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"mixes examples|mixes the examples|make it a method"):
            step.step(rows)
    assert step.epsilon() == spent
    assert step.steps_taken == 1


@pytest.mark.slow
def test_mixing_in_a_class_or_in_all_modules_is_refused_free(monkeypatch):
    model = net()
    step, rows = started(model)
    spent = step.epsilon()
    with monkeypatch.context() as patched:
        patched.setattr(Activation, "forward", lambda self, x: centre(x))
        with pytest.raises(ValueError, match="mixes"):
            step.step(rows)
    step.step(rows)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: (
            output - output.mean(0) if type(module) is nn.Linear else None
        )
    )
    try:
        with pytest.raises(ValueError, match="mixes"):
            step.step(rows)
    finally:
        handle.remove()
    step.step(rows)
    assert step.steps_taken == 3
    assert step.epsilon() > spent


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[0].register_forward_hook(lambda module, inputs, output: 2 * output),
        lambda m: m.__setitem__(1, nn.ReLU()),
        lambda m: m.__setitem__(1, nn.Sequential(m[1], nn.Dropout(0.5))),
        lambda m: setattr(m[1], "function", torch.relu),
        lambda m: m.eval(),
        lambda m: m.double(),
    ],
)
def test_honest_changes_are_checked_and_train(change):
    model = net()
    step, rows = started(model)
    change(model)
    if model[0].weight.dtype == torch.float64:
        rows = step.batches((INPUTS.double(), TARGETS))
    before = [p.detach().clone() for p in model.parameters()]
    step.step(rows)
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


HEADS = {
    "head": lambda m: m.__setitem__(2, nn.Linear(8, 3)),
    "weight": lambda m: setattr(m[2], "weight", nn.Parameter(torch.randn(3, 8))),
    "copy of the weight": lambda m: setattr(
        m[2], "weight", nn.Parameter(m[2].weight.detach().clone())
    ),
    "loaded by assignment": lambda m: m.load_state_dict(
        {k: v.clone() for k, v in m.state_dict().items()}, assign=True
    ),
    "one more layer": lambda m: m.append(nn.Linear(3, 3)),
    "wrapped": lambda m: m.__setitem__(2, nn.Sequential(m[2])),
    "frozen": lambda m: m[0].requires_grad_(False),
    "gone": lambda m: setattr(m[0], "bias", None),
    "tied": lambda m: setattr(m[2], "bias", nn.Parameter(m[2].bias[:2].detach())),
    "of another shape": lambda m: setattr(m[2].bias, "data", torch.zeros(4)),
}


@pytest.mark.thinned(10)
@pytest.mark.parametrize("optimizer", ["rate", "AdamW", "own"])
@pytest.mark.parametrize("change", HEADS)
def test_other_trainable_parameters_are_refused_free(change, optimizer):
    model = net()
    given: dict[str, Any] = (
        {"optimizer": "AdamW", "learning_rate": 0.01} if optimizer == "AdamW" else {}
    )
    if optimizer == "own":
        given = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    step, rows = started(model, **given)
    spent = step.epsilon()
    HEADS[change](model)
    with pytest.raises(
        ValueError, match=r"trainable parameters are not those.*new PrivateStep on the same ledger"
    ):
        step.step(rows)
    assert step.epsilon() == spent


def test_a_head_that_came_before_the_first_step_is_refused_free():
    model = net()
    step = PrivateStep(
        model,
        nn.CrossEntropyLoss(),
        num_examples=EXAMPLES,
        noise_multiplier=1.0,
        delta=1e-3,
        steps=3,
    )
    model[2] = nn.Linear(8, 3)
    with pytest.raises(ValueError, match=r"replaced: 2\.bias, 2\.weight"):
        step.step(step.batches((INPUTS, TARGETS)))
    assert step.epsilon() == 0


def test_weights_that_become_half_are_refused_free_with_their_type():
    model = net()
    step, rows = started(model)
    spent = step.epsilon()
    model.half()
    with pytest.raises(ValueError, match="float16"):
        step.step(rows)
    assert step.epsilon() == spent


@pytest.mark.slow
def test_the_level_of_isolation_is_that_of_what_runs_now():
    """Also after a state that was checked before, after a refusal, and for code that is in an
    attribute.
    """
    model, tanh = net(nn.Tanh), nn.Tanh()
    step, rows = started(model)
    mine, levels = Activation(), list[object]()
    for activation in (tanh, mine, tanh, mine, nn.BatchNorm1d(8, affine=False), mine, tanh):
        model[1] = activation
        try:
            step.step(rows)
        except ValueError:
            levels.append("refused")
        else:
            levels.append((step.isolation, own_model(model)))
    library, isolated = ("checked", False), ("isolated", True)
    assert levels == [library, isolated, library, isolated, "refused", isolated, library]


def count_rehearsals(monkeypatch) -> list[int]:
    """The list gets one more entry with each rehearsal."""
    done: list[int] = []
    own = one_round.Release.rehearse

    def counted(self, *args, **given):
        done.append(1)
        return own(self, *args, **given)

    monkeypatch.setattr(one_round.Release, "rehearse", counted)
    return done


@pytest.mark.slow
def test_what_a_forward_writes_is_not_checked_again(monkeypatch):
    done = count_rehearsals(monkeypatch)
    step, rows = started(net(Counting))
    for _ in range(4):
        step.step(rows)
        step.step(step.batches((INPUTS, TARGETS)))
    assert len(done) == 1


@pytest.mark.slow
def test_modes_that_alternate_are_checked_once_each(monkeypatch):
    done = count_rehearsals(monkeypatch)
    model = net()
    step, rows = started(model)
    for _ in range(3):
        model.eval()
        step.step(rows)
        model.train()
        step.step(rows)
    assert len(done) == 2


def moved_by_one_example(step: PrivateStep, model: nn.Module) -> float:
    """How far one example moves the gradients of the others, as they are clipped now."""
    frame = step._state.plan(step._rounds.local).frame
    blocks = []
    for rows in (slice(0, EXAMPLES), slice(1, EXAMPLES)):
        given = block_gradients(model, step._loss, INPUTS[rows], TARGETS[rows], frame, ghost=False)
        blocks.append(torch.cat([block.flatten(1)[-EXAMPLES + 1 :] for block in given], 1))
    return float((blocks[0] - blocks[1]).norm())


@pytest.mark.parametrize("planted", ["hooks", "nothing is ever changed"])
def test_negative_control_a_gate_that_forgets_lets_examples_mix(planted, monkeypatch):
    """Without the fingerprint, or without hooks in it, the step above is charged and mixes."""
    if planted == "hooks":
        monkeypatch.setattr(
            fedlsg.user_code.fingerprint._Walk, "hooks", lambda self, space, names: ()
        )
    else:
        monkeypatch.setattr(one_round.Followed, "now", lambda self: self.checked)
    model = net()
    step, rows = started(model)
    assert moved_by_one_example(step, model) < 1e-5
    spent = step.epsilon()
    MIXING["hook"](model, None)
    step.step(rows)
    assert step.epsilon() > spent
    assert moved_by_one_example(step, model) > 1e-2


def test_negative_control_a_head_that_nobody_compares_is_charged_and_not_trained(monkeypatch):
    monkeypatch.setattr(one_round, "check_trained", lambda start, model: None)
    model = net()
    step, rows = started(model, optimizer="AdamW", learning_rate=0.01)
    spent = step.epsilon()
    model[2] = nn.Linear(8, 3)
    before = model[2].weight.detach().clone()
    step.step(rows)
    assert step.epsilon() > spent
    assert torch.equal(model[2].weight, before)
