"""Code that seeds random draws inside a pass is refused; dropout, checkpoints and draws from torch's
generator pass.
"""

import random
from collections.abc import Callable
from random import seed as seed_of_python

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import default_generator
from torch.utils.checkpoint import checkpoint

from fedlsg.gradients.independence import check_model
from fedlsg.gradients.isolation.levels import LEVELS
from fedlsg.gradients.isolation.secret_seeds import OwnDrawsError, own_seeds_refused
from tests.fedlsg.support.gradient_oracle import cross_entropy

ROWS = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 3
WORDS = "seed|generator"


class Model(nn.Module):
    """Two layers with something between them, which gets the module and the hidden numbers (B,
    16).
    """

    def __init__(self, between: Callable[["Model", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, 16), nn.Linear(16, 3), between
        self.generator, self.state = torch.Generator(), torch.get_rng_state()
        self.numpy, self.python = np.random.default_rng(0), random.Random(0)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, torch.tanh(self.first(x))))


def after(seed: Callable[[Model], object]) -> Callable[[Model, Tensor], Tensor]:
    """Dropout by place in the batch, after something that seeds."""

    def between(m: Model, h: Tensor) -> Tensor:
        seed(m)
        return F.dropout(h, 0.5)

    return between


def by_fork(m: Model, h: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return F.dropout(h, 0.5)


def from_first_call(m: Model, h: Tensor) -> Tensor:
    m.kept = torch.get_rng_state() if m.kept is None else m.kept
    torch.set_rng_state(m.kept)
    return F.dropout(h, 0.5)


def by_numpy(m: Model, h: Tensor) -> Tensor:
    np.random.seed(0)
    return h + torch.from_numpy(np.random.standard_normal(tuple(h.shape))).to(h)


def by_python(m: Model, h: Tensor) -> Tensor:
    return h * torch.tensor([[random.Random(0).random()] for _ in h]).to(h) + m.python.random() * h


def seeded_by_name(m: Model, h: Tensor) -> Tensor:
    seed_of_python(0)
    return h * torch.tensor([[random.random()] for _ in h]).to(h)


SEEDED = {
    "torch.manual_seed": after(lambda m: torch.manual_seed(0)),
    "a state": after(lambda m: torch.set_rng_state(m.state)),
    "a state of the first call": from_first_call,
    "fork_rng": by_fork,
    "default_generator.manual_seed": after(lambda m: torch.default_generator.manual_seed(0)),
    "the generator itself": after(lambda m: default_generator.manual_seed(0)),
    "a generator": lambda m, h: (
        h + torch.randn(h.shape, generator=m.generator.manual_seed(0)).to(h)
    ),
    "a generator without a seed": lambda m, h: (
        h + torch.randn(h.shape, generator=torch.Generator()).to(h)
    ),
    "a generator that goes on": lambda m, h: (
        h * torch.empty_like(h).bernoulli_(0.5, generator=m.generator)
    ),
    "random.seed": after(lambda m: random.seed(0)),
    "random.seed by name": seeded_by_name,
    "np.random.seed": by_numpy,
    "np.random.default_rng": lambda m, h: (
        h + torch.from_numpy(np.random.default_rng(0).random(tuple(h.shape))).to(h)
    ),
    "a generator of numpy": lambda m, h: h + torch.from_numpy(m.numpy.random(tuple(h.shape))).to(h),
    "random.Random": by_python,
}


@pytest.mark.thinned(31)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", SEEDED)
def test_a_model_that_seeds_its_draws_is_refused(case, level):
    with pytest.raises(ValueError, match=WORDS):
        check_model(Model(SEEDED[case]), cross_entropy, [ROWS], level=level)


@pytest.mark.parametrize("case", ["torch.manual_seed", "a generator", "np.random.seed"])
def test_a_loss_that_seeds_its_draws_is_refused(case):
    between, inner = SEEDED[case], Model(SEEDED[case])

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(between(inner, outputs), targets)

    with pytest.raises(ValueError, match=WORDS):
        check_model(nn.Linear(4, 3), loss, [ROWS])


def test_the_layer_is_named():
    model = nn.Sequential(nn.Linear(4, 4), Model(SEEDED["torch.manual_seed"]))
    with pytest.raises(ValueError, match=r"^1 \(Model\): .*torch.manual_seed.*remove the seed"):
        check_model(model, cross_entropy, [ROWS])


HONEST = {
    "dropout": lambda m, h: F.dropout(h, 0.5),
    "no dropout": lambda m, h: F.dropout(h, 0.0),
    "all dropped": lambda m, h: F.dropout(h, 1.0) + h,
    "a draw": lambda m, h: h + torch.rand(h.shape).to(h) + torch.randn_like(h),
    "certain": lambda m, h: h * torch.empty_like(h).bernoulli_(1.0),
    "a state of this pass": lambda m, h: h + 0 * (torch.set_rng_state(torch.get_rng_state()) or 1),
    "checkpoint": lambda m, h: checkpoint(
        lambda x: F.dropout(m.last.weight.sum() * x, 0.5), h, use_reentrant=False
    ),
}


@pytest.mark.parametrize("case", HONEST)
def test_draws_that_follow_from_the_seed_of_a_step_pass(case):
    check_model(Model(HONEST[case]), cross_entropy, [ROWS], level="isolated")


CALLS = {
    "torch.manual_seed": lambda: torch.manual_seed(0),
    "torch.seed": lambda: torch.seed(),
    "torch.set_rng_state": lambda: torch.set_rng_state(
        torch.Generator().manual_seed(3).get_state()
    ),
    "default_generator": lambda: torch.default_generator.manual_seed(0),
    "imported by name": lambda: default_generator.manual_seed(0),
    "random.seed": lambda: random.seed(0),
    "random.setstate": lambda: random.setstate(random.getstate()),
    "np.random.seed": lambda: np.random.seed(0),
    "np.random.set_state": lambda: np.random.set_state(np.random.get_state()),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_that_seeds_raises_inside_and_works_outside(case):
    torch.manual_seed(5)
    with pytest.raises(OwnDrawsError, match="remove the seed"), own_seeds_refused():
        CALLS[case]()
    CALLS[case]()


def test_inside_draws_and_their_states_go_on_as_outside():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with own_seeds_refused(), own_seeds_refused():
        drawn = torch.rand(3)
        torch.set_rng_state(before)
        assert torch.equal(torch.rand(3), drawn)
        assert torch.initial_seed() == 5
        assert random.random() != random.random()
        with torch.random.fork_rng():
            torch.rand(9)
    assert torch.random.default_generator is default_generator


def test_an_error_inside_puts_everything_back():
    functions = (
        torch.default_generator,
        random.seed,
        random.setstate,
        np.random.seed,
        np.random.set_state,
    )
    with pytest.raises(ZeroDivisionError), own_seeds_refused():
        1 / 0  # noqa: B018
    assert functions == (
        torch.default_generator,
        random.seed,
        random.setstate,
        np.random.seed,
        np.random.set_state,
    )
