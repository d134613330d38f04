"""Pruning before training: which weights stay, SynFlow against products of matrices, and that 0 stays 0."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg.after import After
from fedlsg.masks import Mask
from fedlsg.method import Method, Schedule, server_step
from fedlsg.pruning import Prune, keep_random, keep_top, prunable, prune_in_place
from fedlsg.standardized import StandardizedConv2d as Conv
from fedlsg.synflow import Linearised, flow, keep_public, keep_synflow, linear_model
from strategies.state import ServerState

seeds = st.integers(0, 2**32)
rates = st.floats(0, 0.99)


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (4, 3), "bias": (4,), "k": (2, 3, 2, 2), "z": (2, 2), "b": (1, 5)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    made["z"].zero_()
    made["b"][0, 2] = 0
    return made


# Which may be pruned, and which stay


def test_biases_and_what_starts_at_zero_may_not_be_pruned():
    may = prunable(tensors(0))
    assert set(may) == {"a", "k", "b"}
    assert may["b"].tolist() == [[True, True, False, True, True]]


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


def test_no_layer_is_cut_off():
    """Golden, and the negative control: without the guard the second tensor would be gone."""
    scores = {"a": torch.tensor([[9.0, 8, 7, 6]]), "b": torch.tensor([[1.0, 3, 2]])}
    may = {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
    kept = keep_top(scores, may, 4 / 7)
    assert kept["a"].tolist() == [[True, True, True, False]]
    assert kept["b"].tolist() == [[False, True, False]]
    threshold = sorted(torch.cat([s.flatten() for s in scores.values()]).tolist())[4]
    assert not bool((scores["b"] >= threshold).any())


def test_scores_that_are_not_finite_are_refused():
    scores = {"a": torch.tensor([[math.nan, 1.0]])}
    with pytest.raises(ValueError, match="not finite"):
        keep_top(scores, {"a": torch.ones(1, 2, dtype=torch.bool)}, 0.5)


@given(rate=rates, seed=seeds)
def test_random_pruning_takes_its_share_of_every_tensor(rate, seed):
    weights = tensors(0)
    kept = keep_random(weights, rate, seed=seed)
    assert set(kept) == {"a", "k", "b"}
    for name, mask in prunable(weights).items():
        n = int(mask.sum())
        assert int((mask & ~kept[name]).sum()) == min(math.floor(rate * n + 1e-9), n - 1)
        assert bool(kept[name][~mask].all())


def test_random_pruning_is_public_and_seeded():
    one, same, other = (keep_random(tensors(0), 0.5, seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


# SynFlow


def linear_net(*widths: int) -> nn.Sequential:
    torch.manual_seed(2)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*[m for layer in layers for m in (layer, nn.Tanh())][:-1])


def everything(model: nn.Module) -> dict[str, Tensor]:
    return {n: torch.ones_like(p, dtype=torch.bool) for n, p in model.named_parameters() if p.ndim >= 2}


def test_flow_is_the_product_of_magnitudes():
    """Oracle: R = 1^T abs(W3) abs(W2) abs(W1) 1, and a weight's score what it carries of it: left * abs(w) * right."""
    model = linear_net(5, 4, 3, 2)
    got = flow(linear_model(model), torch.ones(1, 5).double(), everything(model))
    W1, W2, W3 = (model[i].weight.detach().abs().double() for i in (0, 2, 4))
    right = [torch.ones(5).double(), W1.sum(1), W2 @ W1.sum(1)]
    left = [W3.sum(0) @ W2, W3.sum(0), torch.ones(2).double()]
    for name, W, before, after in zip(("0.weight", "2.weight", "4.weight"), (W1, W2, W3), right, left, strict=True):
        torch.testing.assert_close(got[name], after.unsqueeze(1) * W * before)


def test_flow_by_hand():
    """x = (1, 1), W1 = [[1, -2]], W2 = [[3]]: R = 3 (1 + 2) = 9; the scores are (3, 6) and 9."""
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -2.0]]))
        model[2].weight.fill_(3.0)
    scores = flow(linear_model(model), torch.ones(1, 2).double(), everything(model))
    assert scores["0.weight"].tolist() == [[3, 6]]
    assert scores["2.weight"].tolist() == [[9]]


class Bounded(nn.Module):
    """What our networks are made of: convolutions, norms, bounded activations, pooling, a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.first(x)))
        h = F.max_pool2d(F.gelu(self.second(h)), 2)
        return self.classifier(2 * torch.sigmoid(2 * h).mean((2, 3)))


def test_flow_is_conserved_through_norms_and_activations():
    """Tanaka et al. 2020, Theorem 2: without biases every cut of the network carries the same flow, R."""
    torch.manual_seed(1)
    model = Bounded()
    scores = flow(linear_model(model), torch.ones(1, 2, 6, 6).double(), everything(model))
    totals = [float(score.sum()) for score in scores.values()]
    assert totals[0] > 0
    assert totals == pytest.approx([totals[0]] * 3)


def test_flow_through_standardised_convolutions_is_that_of_plain_ones():
    torch.manual_seed(1)
    plain, standardised = (nn.Sequential(kind(2, 3, 3), nn.Flatten(), nn.Linear(12, 2)) for kind in (nn.Conv2d, Conv))
    standardised.load_state_dict(plain.state_dict())
    ones = torch.ones(1, 2, 4, 4).double()
    one, other = (flow(linear_model(m), ones, everything(m)) for m in (plain, standardised))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert type(standardised[0]) is Conv
    W = standardised[0].weight.detach().abs().double()  # negative control: as it is, the flow is 0
    standardised.double()[0].weight.data.copy_(W)
    standardised(ones).sum().backward()
    assert float((standardised[0].weight.grad * W).sum()) == pytest.approx(0, abs=1e-12)


def test_without_linearising_the_flow_is_not_conserved(monkeypatch):
    """Negative control: the norm and the bounded activations swallow it."""
    monkeypatch.setattr(
        Linearised, "__torch_function__", lambda self, f, types, args=(), kw=None: f(*args, **(kw or {}))
    )
    torch.manual_seed(1)
    model = Bounded()
    scores = flow(linear_model(model), torch.ones(1, 2, 6, 6).double(), everything(model))
    totals = [float(score.sum()) for score in scores.values()]
    assert max(totals) > 1.5 * min(totals)


@given(rate=st.sampled_from([0.0, 0.3, 0.9, 0.99]))
def test_synflow_keeps_its_share_and_a_path(rate):
    model = linear_net(30, 20, 20, 10)
    kept = keep_synflow(model, torch.zeros(1, 30), rate, iterations=20)
    n = sum(mask.numel() for mask in kept.values())
    assert sum(int(mask.sum()) for mask in kept.values()) == n - math.floor(rate * n + 1e-9)
    path = torch.ones(30).double()
    for name in kept:
        path = kept[name].double() @ path
    assert float(path.sum()) > 0


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


def test_synflow_reads_the_shape_of_its_probe_and_leaves_the_model_alone():
    model = linear_net(5, 4, 3)
    before = [p.detach().clone() for p in model.parameters()]
    one, other = (keep_synflow(model, probe, 0.5) for probe in (torch.zeros(2, 5), torch.randn(7, 5)))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


@pytest.mark.parametrize("probe", [torch.zeros(1, 5, dtype=torch.int64), {"input_ids": torch.zeros(1, 5)}, None])
def test_synflow_refuses_words(probe):
    with pytest.raises(ValueError, match=r"input of ones.*prune='random'"):
        keep_public(linear_net(5, 3), Prune(kind="synflow", rate=0.5), probe, seed=0)


# 0 stays 0


class Wide(nn.Module):
    """A hidden layer, and a layer that starts at 0, as the last one of a residual branch does."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.branch, self.classifier = nn.Linear(12, 10), nn.Linear(10, 10), nn.Linear(10, 3)
        nn.init.zeros_(self.branch.weight)


@pytest.mark.parametrize(
    "after",
    [
        After(learning_rate=0.5, momentum=0.9, weight_decay=0.1),
        After(optimizer="adam", learning_rate=0.1, weight_decay=0.1),
    ],
    ids=["sgd", "adam"],
)
def test_pruned_weights_stay_exactly_zero_and_all_others_move(after):
    """Under momentum, weight decay, an average of the weights, and a mask that is redrawn in every round."""
    torch.manual_seed(0)
    method = Method(
        name="test",
        mask=Mask(kind="drop", drop="random", sparsity=0.3),
        prune=Prune(kind="random", rate=0.6),
        after=After(
            **{f: getattr(after, f) for f in ("optimizer", "learning_rate", "momentum", "weight_decay")}, ema=0.9
        ),
    )
    model = Wide()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = ServerState(model, method, Schedule(rounds=9), divisor=1.0, seed=0, classifier="classifier")
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


def test_a_zero_that_is_not_masked_would_move():
    """Negative control: the same server step with a mask that forgets what was pruned."""
    model = nn.Linear(4, 2)
    method = Method(name="test", prune=Prune(kind="random", rate=0.5))
    state = ServerState(model, method, Schedule(rounds=1), divisor=1.0, seed=0, classifier=None)
    assert int((model.weight == 0).sum()) == 4
    forgetful = ServerState(nn.Linear(4, 2), Method(name="t"), Schedule(rounds=1), divisor=1.0, seed=0, classifier=None)
    frame = forgetful.frame()
    server_step(
        model, state.optimizer, state.scheduler, torch.ones(frame.kept), frame=frame, divisor=1.0, after=After()
    )
    assert int((model.weight == 0).sum()) == 0


def test_pruning_in_place_golden():
    W = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    prune_in_place({"w": W}, {"w": torch.tensor([[True, False], [False, True]])})
    assert W.tolist() == [[1, 0], [0, 4]]


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ({"kind": "snip"}, "prune in"),
        ({"kind": "random", "rate": 1.0}, "prune_rate=1.0"),
        ({"rate": 0.5}, "needs a kind"),
        ({"kind": "dp-snip", "epsilon_share": 0.0}, "prune_epsilon_share"),
        ({"kind": "dp-snip", "epsilon_share": 1.0}, "training needs the rest"),
        ({"kind": "dp-snip", "clip_norm": math.inf}, "prune_clip_norm"),
        ({"kind": "dp-snip", "clip_norm": 0.0}, "prune_clip_norm"),
    ],
)
def test_wrong_settings_are_refused(setting, part):
    with pytest.raises(ValueError, match=part):
        Prune(**setting)
