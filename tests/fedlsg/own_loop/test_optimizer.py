"""An own optimizer is new: no average of gradients that the ledger does not count moves the
weights.
"""

import inspect

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from fedlsg.strategies.own_loop.user_inputs import make_own

CLASSES = {
    name: one
    for name, one in vars(torch.optim).items()
    if inspect.isclass(one)
    and issubclass(one, Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
}
REMEMBER = {name: one for name, one in CLASSES.items() if name != "SGD"}


def net() -> nn.Module:
    return nn.Linear(3, 2)


def step(model: nn.Module, optimizer: Optimizer) -> Optimizer:
    """A step on raw gradients."""
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("one", CLASSES.values(), ids=list(CLASSES))
def test_a_new_optimizer_is_taken(one):
    model = net()
    optimizer = one(model.parameters(), lr=0.1)
    assert make_own(optimizer, model) is optimizer
    assert isinstance(make_own(lambda parameters: one(parameters, lr=0.1), model), one)


@pytest.mark.parametrize("one", REMEMBER.values(), ids=list(REMEMBER))
def test_one_that_has_stepped_is_refused(one):
    model = net()
    optimizer = step(model, one(model.parameters(), lr=0.1))
    for given in (optimizer, lambda parameters: optimizer):
        with pytest.raises(
            ValueError, match=r"a state of earlier steps \(.* of weight\).*give a new optimizer"
        ):
            make_own(given, model)


def test_momentum_is_refused_and_none_is_not():
    model = net()
    assert make_own(step(model, SGD(model.parameters(), lr=0.1)), model)
    with pytest.raises(ValueError, match="momentum_buffer of weight"):
        make_own(step(model, SGD(model.parameters(), lr=0.1, momentum=0.9)), model)


def test_a_state_that_was_loaded_is_refused():
    model = net()
    saved = step(model, Adam(model.parameters())).state_dict()
    optimizer = Adam(model.parameters())
    optimizer.load_state_dict(saved)
    with pytest.raises(ValueError, match="to resume load PrivateStep's own state_dict"):
        make_own(optimizer, model)


class Wrapper(Optimizer):
    """An optimizer around another one, as Lookahead is."""

    def __init__(self, parameters, inner, **more):
        super().__init__(parameters, {})
        self.inner = inner
        vars(self).update(more)

    def step(self, closure=None):
        return self.inner.step()


def test_a_memory_that_is_no_state_is_refused_as_well():
    model = net()
    inner = SGD(model.parameters(), lr=0.1, momentum=0.9)
    slow = [p.detach().clone() for p in model.parameters()]
    assert make_own(
        Wrapper(model.parameters(), inner, slow=slow, zeros={"a": torch.zeros(3)}), model
    )
    with pytest.raises(ValueError, match="optimizer's buffers has numbers of earlier steps"):
        make_own(Wrapper(model.parameters(), inner, buffers=[{"m": torch.ones(2, 3)}]), model)
    step(model, inner)
    with pytest.raises(ValueError, match="momentum_buffer"):
        make_own(Wrapper(model.parameters(), inner), model)


def test_schedulers_and_settings_of_groups_are_free():
    model = net()
    optimizer = SGD(
        [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2, "mine": "kept"}]
    )
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    assert make_own(optimizer, model) is optimizer
