"""Training next to private steps, which no epsilon counts, is refused."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

from fedlsg.privacy.trained_weights import Writer
from fedlsg.strategies.own_loop import other_gradients
from tests.strategies.own_loop import INPUTS, TARGETS, batch, private_step, weights
from tests.strategies.small_federation import model

REFUSED = "adds a gradient to .*, of a model that a PrivateStep trains"


def backward(net):
    nn.functional.cross_entropy(net(INPUTS), TARGETS).backward()


def train(net):
    """Flower's template: some steps of SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        backward(net)
        optimizer.step()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("given", [{"method": "dpsgd"}, {"method": "lsg", "rank": 2}])
def test_plain_training_after_the_start_is_refused_before_it_moves_a_weight(given, steps):
    step = private_step(**given)
    for _ in range(steps):
        step.step(batch)
    before = weights(step)
    with pytest.raises(ValueError, match=REFUSED):
        train(step.model)
    assert torch.equal(weights(step), before)
    step.step(batch)  # nothing was trained
    assert len(step._account.ledger.entries) == steps + 1


@pytest.mark.parametrize("given", [{"method": "dpsgd"}, {"method": "lora", "rank": 2}])
def test_a_frozen_part_is_watched(given):
    """It was unfrozen between two steps, and trained without noise."""
    net = model()
    if given["method"] == "dpsgd":
        net[0].requires_grad_(False)
    step = private_step(net, **given)
    frozen = [p for p in net.parameters() if not p.requires_grad]
    assert frozen
    step.step(batch)
    trained = [p.requires_grad_(False) for p in net.parameters() if p.requires_grad]
    for p in frozen:
        p.requires_grad_()
    with pytest.raises(ValueError, match=REFUSED):
        train(net)
    for p in frozen:
        p.requires_grad_(False)
    for p in trained:
        p.requires_grad_()
    step.step(batch)


def test_a_gradient_that_was_refused_is_gone():
    step = private_step(method="dpsgd")
    with pytest.raises(ValueError, match=REFUSED):
        backward(step.model)
    assert all(p.grad is None for p in step.model.parameters())


def test_a_compiled_model_is_watched():
    step = private_step(torch.compile(model(), backend="eager"), method="dpsgd", classifier=None)
    with pytest.raises(ValueError, match=REFUSED):
        backward(step.model)


def test_a_model_that_was_trained_just_before_is_refused():
    net = model()
    train(net)
    with pytest.raises(ValueError, match=r"was trained just before.*model.zero_grad\(\) first"):
        private_step(net, method="dpsgd")
    net.zero_grad()
    private_step(net, method="dpsgd").step(batch)


def test_gradients_of_zero_are_no_training():
    net = model()
    train(net)
    net.zero_grad(set_to_none=False)
    private_step(net, method="dpsgd")


def test_public_rows_are_their_owners_word():
    step = private_step(method="dpsgd")
    step.step(batch)
    with step.public_gradients():
        train(step.model)
    step.step(batch)
    with pytest.raises(ValueError, match=REFUSED):
        train(step.model)


def test_gradients_that_do_not_train_the_model_are_accepted():
    """Of inputs, of a copy, of another model, and of the model once its step is gone."""
    step = private_step(method="dpsgd")
    step.step(batch)
    inputs = INPUTS.clone().requires_grad_()
    torch.autograd.grad(step.model(inputs).sum(), inputs)
    for net in (copy.deepcopy(step.model), pickle.loads(pickle.dumps(step.model)), model()):
        train(net)
    net = step.model
    del step
    gc.collect()
    train(net)


def test_an_own_optimizer_leaves_noisy_gradients_and_they_are_no_training(tmp_path):
    net, given = model(), {"method": "dpsgd", "optimizer": sgd, "learning_rate": None}
    for _ in range(2):
        step = private_step(net, ledger=tmp_path / "ledger.jsonl", **given)
        for _ in range(2):
            step.step(batch)
        assert all(p.grad.any() for p in net.parameters())
    del step
    gc.collect()
    backward(net)  # it adds to them
    with pytest.raises(ValueError, match="was trained just before"):
        private_step(net, ledger=tmp_path / "ledger.jsonl", **given)


@pytest.mark.parametrize("ends_first", ["first", "second"])
def test_two_steps_on_one_model_are_watched_until_the_last_one_ends(ends_first, tmp_path):
    net, given = model(), {"method": "dpsgd", "ledger": tmp_path / "ledger.jsonl"}
    steps = {name: private_step(net, **given) for name in ("first", "second")}
    for step in steps.values():
        step.step(batch)
    del step, steps[ends_first]
    gc.collect()
    with pytest.raises(ValueError, match=REFUSED):
        train(net)
    steps.clear()
    gc.collect()
    train(net)
    assert not any(p._post_accumulate_grad_hooks for p in net.parameters())


def by_hand(net):
    """Training that no hook sees."""
    parameters = list(net.parameters())
    loss = nn.functional.cross_entropy(net(INPUTS), TARGETS)
    for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.data.sub_(0.1 * g)


@pytest.mark.parametrize("given", [{}, {"ema": 0.9}])
@pytest.mark.parametrize("steps", [0, 1])
def test_an_evaluation_hides_no_change_of_other_code(steps, given, monkeypatch):
    """It noted the weights that it found as those of the step."""

    def changes():
        step = private_step(method="dpsgd", **given)
        received = copy.deepcopy(step.model.state_dict())
        for _ in range(steps):
            step.step(batch)
        by_hand(step.model)
        with step.evaluated() as net:
            net(INPUTS)
        step.step(batch)
        return step.other_changes(received)

    assert set(changes()) == set(dict(model().named_parameters()))
    monkeypatch.setattr(Writer, "look", lambda *_: None)  # the negative control
    assert steps == 0 or not changes()


def test_a_change_within_an_evaluation_is_noticed():
    step = private_step(method="dpsgd")
    received = copy.deepcopy(step.model.state_dict())
    step.step(batch)
    with step.evaluated() as net:
        by_hand(net)
    assert step.other_changes(received)


@pytest.mark.parametrize("given", [{}, {"ema": 0.9}, {"method": "lsg", "rank": 2}])
def test_evaluations_are_no_changes(given):
    step = private_step(**{"method": "dpsgd", **given})
    received = copy.deepcopy(step.model.state_dict())
    for _ in range(3):
        with step.evaluated() as net, torch.no_grad():
            net(INPUTS)
        step.step(batch)
    with step.evaluated():
        pass
    assert step.other_changes(received) == []


def test_a_part_that_is_trained_after_the_steps_is_a_change():
    """It was a KeyError."""
    step = private_step(method="linear-probe")
    received = copy.deepcopy(step.model.state_dict())
    step.step(batch)
    step.model.requires_grad_()
    step.model[0].weight.data.add_(1)
    assert step.other_changes(received) == ["0.weight"]


def test_the_hooks_are_no_own_code():
    step = private_step(method="dpsgd")
    step.step(batch)
    assert step.isolation == private_step(method="dpsgd").isolation


@pytest.mark.parametrize("planted", ["refuse_gradients", "check_no_gradient"])
def test_a_planted_mistake_is_found(planted, monkeypatch):
    monkeypatch.setattr(f"fedlsg.strategies.private_step.{planted}", lambda *_: None)
    net = model()
    if planted == "check_no_gradient":
        train(net)
    step = private_step(net, method="dpsgd")
    if planted == "refuse_gradients":
        train(net)
    step.step(batch)
    assert not other_gradients._PUBLIC


def test_a_hook_of_the_user_is_own_code():
    """The control of the test above."""
    net = model()
    net.classifier.weight.register_post_accumulate_grad_hook(lambda p: None)
    step = private_step(net, method="dpsgd")
    step.step(batch)
    assert step.isolation != private_step(method="dpsgd").isolation
