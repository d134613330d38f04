"""SynFlow against products of matrices, its conservation law, and what it refuses."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg.gradients.formulas.standardized import StandardizedConv2d as Conv
from fedlsg.masks.pruning import Prune
from fedlsg.masks.synflow import Linearised, flow, keep_public, keep_synflow, linear_model


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


class Differences(nn.Module):
    """A fixed front end without weights: an image of ones gives 0, as every band-pass filter does."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x - x.roll(1, dims=1)], dim=1)


def test_fixed_features_in_front_of_the_weights_are_ones(monkeypatch):
    """Else every weight behind a band-pass filter would be pruned first, whatever it is worth."""

    def kept_behind_the_filter() -> float:
        torch.manual_seed(2)
        model = nn.Sequential(Differences(), *linear_net(24, 10, 3))
        return float(keep_synflow(model, torch.zeros(1, 12), 0.4, iterations=20)["1.weight"][:, 12:].double().mean())

    assert kept_behind_the_filter() > 0.4
    monkeypatch.setattr("fedlsg.masks.synflow.ones_before_all_weights", lambda module, args: None)
    assert kept_behind_the_filter() < 0.2  # negative control


def test_frozen_weights_pass_the_flow_on():
    """A frozen layer is no fixed feature: what is trained behind it sees its magnitudes."""
    model = linear_net(5, 4, 3)
    everything_trained = flow(linear_model(model), torch.ones(1, 5).double(), everything(model))
    model[0].weight.requires_grad_(False)
    behind = {"2.weight": torch.ones(3, 4, dtype=torch.bool)}
    got = flow(linear_model(model), torch.ones(1, 5).double(), behind)
    torch.testing.assert_close(got["2.weight"], everything_trained["2.weight"])


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
