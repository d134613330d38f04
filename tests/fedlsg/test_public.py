"""The record that a user's functions see: public values and nothing else, and copies that change
nothing.
"""

from dataclasses import FrozenInstanceError
from functools import partial

import pytest
import torch
from torch import nn

from fedlsg.frame.public import Public, call
from fedlsg.method import Method, Schedule
from fedlsg.randomness import public_generator
from fedlsg.state.public_state import PublicState
from tests.fedlsg.support.own_methods import CORE, scaled


class Remembers(nn.Module):
    """A model that keeps what it saw, as models that show their attention do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(9))
        self.body, self.head = nn.Linear(9, 8), nn.Linear(8, 3)
        self.last = None

    def forward(self, x):
        self.last = x.detach()
        self.seen += x.detach().sum(0)
        return self.head(torch.tanh(self.body(x)))


def records(model: nn.Module, count: int = 2) -> list[Public]:
    """What a carrier's function is called with, in two rounds with a private batch and a step in
    between.
    """
    given: list[Public] = []

    def make(public: Public):
        given.append(public)
        return scaled(public)

    method = Method(name="own", carrier=CORE.__class__(make=make, form="core", rank=2))
    state = PublicState.start(
        model, method, Schedule(rounds=3, sample_rate=0.5), seed=7, classifier="head"
    )
    for round in range(1, count + 1):
        state.frame(round, updates=round - 1)
        model(torch.full((4, 9), 100.0 * round)).sum().backward()
        with torch.no_grad():
            model.body.weight += 1
    return given


def test_the_record_by_hand():
    torch.manual_seed(0)
    model = Remembers()
    start = model.body.weight.detach().clone()
    first, second = records(model)
    assert list(second.weights) == ["body.weight", "body.bias", "head.weight", "head.bias"]
    assert torch.equal(second.initial["body.weight"], start)
    assert second.initial.keys() == second.weights.keys()
    assert second.carried == {"body.weight": (8, 2, 2, 9)}
    assert (
        second.time.round,
        second.time.rounds,
        second.time.epoch,
        second.updates,
        second.seed,
    ) == (2, 3, 0, 1, 7)
    drawn = torch.rand(3, generator=second.generator("a", 1))
    assert torch.equal(drawn, torch.rand(3, generator=public_generator(7, "a", 1)))
    assert first.coordinates == ()


def test_there_is_no_way_from_the_record_to_a_batch():
    """Everything that a record holds, or makes, is what a process that never saw the batches has,
    too.
    """
    torch.manual_seed(0)
    trained = records(Remembers())[1]
    torch.manual_seed(0)
    fresh = Remembers()
    state = PublicState.start(
        fresh, Method(name="own", carrier=CORE), Schedule(rounds=3), seed=7, classifier="head"
    )
    with torch.no_grad():
        fresh.body.weight += 1
    assert all(
        torch.equal(W, state.parameters[name]) for name, W in list(trained.weights.items())[1:]
    )
    assert not any(W.requires_grad or W.grad is not None for W in trained.weights.values())
    model = trained.model()
    assert model.last is None
    assert not model.seen.any()
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert model.body.weight.data_ptr() != trained.weights["body.weight"].data_ptr()


def test_a_changed_copy_changes_nothing():
    torch.manual_seed(0)
    (public,) = records(Remembers(), 1)
    with torch.no_grad():
        public.model().body.weight.zero_()
    assert public.weights["body.weight"].any()
    assert public.model().body.weight.any()
    with pytest.raises(FrozenInstanceError):
        public.seed = 1
    with pytest.raises(TypeError):
        public.weights["body.weight"] = torch.zeros(8, 9)


def test_a_weight_changed_in_place_is_refused():
    def careless(public):
        public.weights["w"].mul_(2)

    with pytest.raises(
        ValueError, match=r"careless changed w in place: let it work on a copy \(W.clone\(\)\)"
    ):
        call(careless, public=Public(weights={"w": torch.ones(2)}))


def test_a_function_that_fails_is_named_with_its_own_line():
    def careless(factor, public):
        torch.ones(2) @ (factor * torch.ones(3))

    with pytest.raises(
        ValueError, match=r"careless failed in line \d+: RuntimeError: .*size"
    ) as caught:
        call(partial(careless, 2), public=Public(weights={}))
    assert caught.value.__cause__ is not None
