"""Pruning before training: SynFlow against products of matrices; which weights stay, and that 0
stays 0.
"""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlsg.masks.mask import Mask
from fedlsg.masks.pruning import Prune, keep_random, prunable
from fedlsg.masks.synflow import flow, keep_synflow, linear_model
from fedlsg.method import Method, Schedule
from fedlsg.state.public_state import PublicState
from fedlsg.state.server_state import ServerState
from fedlsg.training.server_round import ServerOptimizer

seeds = st.integers(0, 2**32)
rates = st.floats(0, 0.99)


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (4, 3), "bias": (4,), "k": (2, 3, 2, 2), "z": (2, 2), "b": (1, 5)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    made["z"].zero_()
    made["b"][0, 2] = 0
    return made


@given(rate=rates, seed=seeds)
def test_random_pruning_takes_its_share_of_every_tensor(rate, seed):
    weights = tensors(0)
    kept = keep_random(weights, rate, seed=seed)
    assert set(kept) == {"a", "k", "b"}
    for name, mask in prunable(weights).items():
        n = int(mask.sum())
        assert int((mask & ~kept[name]).sum()) == min(math.floor(rate * n + 1e-9), n - 1)
        assert bool(kept[name][~mask].all())


class Wide(nn.Module):
    """A hidden layer, and a layer that starts at 0, as the last one of a residual branch does."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(12, 10)
        self.branch = nn.Linear(10, 10)
        self.classifier = nn.Linear(10, 3)
        nn.init.zeros_(self.branch.weight)


@pytest.mark.parametrize(
    "server",
    [
        ServerOptimizer(learning_rate=0.5, momentum=0.9, weight_decay=0.1),
        ServerOptimizer(optimizer="adam", learning_rate=0.1, weight_decay=0.1),
    ],
    ids=["sgd", "adam"],
)
def test_pruned_weights_stay_exactly_zero_and_all_others_move(server):
    """Under momentum, weight decay, an average of the weights, and a mask that is redrawn in every
    round.
    """
    torch.manual_seed(0)
    method = Method(
        name="test",
        mask=Mask(kind="drop", drop="random", sparsity=0.3),
        prune=Prune(kind="random", rate=0.6),
        server=ServerOptimizer(
            **{
                f: getattr(server, f)
                for f in ("optimizer", "learning_rate", "momentum", "weight_decay")
            },
            ema=0.9,
        ),
    )
    model = Wide()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = ServerState(
        PublicState.start(model, method, Schedule(rounds=9), seed=0, classifier="classifier"),
        divisor=1.0,
    )
    pruned = {n: (p == 0) & (start[n] != 0) for n, p in model.named_parameters()}
    assert {n: int(mask.sum()) for n, mask in pruned.items() if mask.any()} == {
        "hidden.weight": 72,
        "classifier.weight": 18,
    }
    for round in range(9):
        frame = state.frame()
        noise = torch.randn(frame.kept, generator=torch.Generator().manual_seed(round))
        state.finish_round(frame, [noise])
        for name, parameter in model.named_parameters():
            assert bool((parameter[pruned[name]] == 0).all()), name
    for name, parameter in model.named_parameters():
        assert bool((parameter != start[name])[~pruned[name]].all()), name
    with state.evaluated() as averaged:
        assert all(bool((p[pruned[n]] == 0).all()) for n, p in averaged.named_parameters())


def linear_net(*widths: int) -> nn.Sequential:
    torch.manual_seed(2)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*[m for layer in layers for m in (layer, nn.Tanh())][:-1])


def everything(model: nn.Module) -> dict[str, Tensor]:
    return {
        n: torch.ones_like(p, dtype=torch.bool) for n, p in model.named_parameters() if p.ndim >= 2
    }


def test_flow_is_the_product_of_magnitudes():
    """Oracle: R = 1^T abs(W3) abs(W2) abs(W1) 1, and a weight's score what it carries of it: left *
    abs(w) * right.
    """
    model = linear_net(5, 4, 3, 2)
    got = flow(linear_model(model), torch.ones(1, 5).double(), everything(model))
    W1, W2, W3 = (model[i].weight.detach().abs().double() for i in (0, 2, 4))
    right = [torch.ones(5).double(), W1.sum(1), W2 @ W1.sum(1)]
    left = [W3.sum(0) @ W2, W3.sum(0), torch.ones(2).double()]
    for name, W, before, after in zip(
        ("0.weight", "2.weight", "4.weight"), (W1, W2, W3), right, left, strict=True
    ):
        torch.testing.assert_close(got[name], after.unsqueeze(1) * W * before)


def test_pruning_in_one_shot_leaves_no_path_where_iterations_do():
    """Why it is iterative. Negative control: one iteration at this rate cuts the network."""

    def flows(iterations: int) -> bool:
        model = linear_net(64, 64, 64, 64, 10)
        kept = keep_synflow(model, torch.zeros(1, 64), 0.995, iterations=iterations)
        path = torch.ones(64).double()
        for name in kept:
            path = kept[name].double() @ path
        return float(path.sum()) > 10

    assert flows(100)
    assert not flows(1)
