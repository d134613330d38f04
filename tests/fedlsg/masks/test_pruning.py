"""Pruning before training: which weights stay, and that 0 stays 0."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlsg.masks.mask import Mask
from fedlsg.masks.pruning import Prune, keep_random, keep_top, prunable
from fedlsg.method import Method, Schedule
from fedlsg.state.public_state import PublicState
from fedlsg.state.server_state import ServerState
from fedlsg.training.server_optimizer import ServerOptimizer

seeds = st.integers(0, 2**32)
rates = st.floats(0, 0.99)


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (4, 3), "bias": (4,), "k": (2, 3, 2, 2), "z": (2, 2), "b": (1, 5)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    made["z"].zero_()
    made["b"][0, 2] = 0
    return made


@given(rate=rates, seed=seeds, ties=st.booleans())
def test_the_top_scores_stay_over_all_tensors_together(rate, seed, ties):
    """Against a sort of (score, position) pairs; where a tensor would lose everything its best stays as well."""
    may = prunable(tensors(0))
    generator = torch.Generator().manual_seed(seed)
    scores = {n: torch.randint(0, 3 if ties else 10**6, m.shape, generator=generator).float() for n, m in may.items()}
    entries = [(n, i) for n in may for i in may[n].flatten().nonzero().squeeze(1).tolist()]
    order = sorted(range(len(entries)), key=lambda j: (float(scores[entries[j][0]].flatten()[entries[j][1]]), j))
    gone = {entries[j] for j in order[: min(math.floor(rate * len(entries) + 1e-9), len(entries) - 1)]}
    kept = keep_top(scores, may, rate)
    for name, mask in may.items():
        mine = [i for n, i in entries if n == name]
        left = [i for i in mine if (name, i) not in gone]
        if not left:
            best = max(float(scores[name].flatten()[i]) for i in mine)
            (only,) = [i for i in mine if bool(kept[name].flatten()[i])]
            assert float(scores[name].flatten()[only]) == best
        else:
            assert [i for i in mine if bool(kept[name].flatten()[i])] == left
        assert bool(kept[name][~mask].all())


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
        self.hidden, self.branch, self.classifier = nn.Linear(12, 10), nn.Linear(10, 10), nn.Linear(10, 3)
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
    """Under momentum, weight decay, an average of the weights, and a mask that is redrawn in every round."""
    torch.manual_seed(0)
    method = Method(
        name="test",
        mask=Mask(kind="drop", drop="random", sparsity=0.3),
        prune=Prune(kind="random", rate=0.6),
        server=ServerOptimizer(
            **{f: getattr(server, f) for f in ("optimizer", "learning_rate", "momentum", "weight_decay")}, ema=0.9
        ),
    )
    model = Wide()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = ServerState(
        PublicState.start(model, method, Schedule(rounds=9), seed=0, classifier="classifier"), divisor=1.0
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
