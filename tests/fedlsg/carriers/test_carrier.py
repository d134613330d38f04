"""Where carriers come from: of W, of W - W_0, of nothing; which layers get them, also in a head of
two layers.
"""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlsg.carriers import (
    Carrier,
    Dense,
    LowRank,
    LowRankChange,
    RandomCarriers,
    carried_parameters,
    carried_sizes,
    find_output_layer,
    step_carrier,
)
from fedlsg.carriers.base import pays
from fedlsg.carriers.probe import Probe
from fedlsg.frame import Frame, make_blocks
from fedlsg.frame.public import Public, RoundTime

KINDS = ["low-rank", "low-rank-change", "random"]
NAMES = ("0.weight",)


def weights(seed: int = 0, rank: int | None = None) -> dict[str, Tensor]:
    """A weight (of ``rank`` where given), its bias, and a kernel."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(12, 10, generator=generator, dtype=torch.float64)
    if rank is not None:
        W = W[:, :rank] @ torch.randn(rank, 10, generator=generator, dtype=torch.float64)
    return {
        "0.weight": W,
        "0.bias": torch.zeros(12),
        "1.weight": torch.randn(6, 4, 3, 3, generator=generator),
    }


def frame(
    carrier: Carrier,
    *,
    now=None,
    start=None,
    round: int = 1,
    updates: int = 0,
    seed: int = 0,
    carried=NAMES,
) -> Frame:
    now = weights() if now is None else now
    public = Public(
        weights=now,
        initial=start or {},
        carried=carried_sizes(carrier, now, carried),
        time=RoundTime(round=round),
        updates=updates,
        seed=seed,
    )
    where = carrier.coordinates(public)
    return Frame(coordinates=where, blocks=make_blocks(where))


def captured(W: Tensor, L: Tensor, R: Tensor) -> float:
    """Share of W's energy inside the carriers' two subspaces."""
    return float((L @ L.T @ W @ R.T @ R).norm() / W.norm())


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3),
        nn.GroupNorm(2, 12),
        nn.Flatten(),
        nn.Linear(48, 32),
        nn.Linear(32, 30),
        nn.Linear(30, 10),
    )


@given(m=st.integers(1, 60), n=st.integers(1, 60), r=st.integers(1, 60))
def test_a_layer_is_carried_where_it_pays(m, n, r):
    """10 r (m + n) < 8 m n, in integers."""
    assert pays(torch.zeros(m, n), RandomCarriers(rank=r)) == (
        10 * r * (m + n) < 8 * m * n and r <= min(m, n)
    )


def test_what_is_carried():
    """12 x 9: 21 r < 86.4 pays at r = 4; the classifier, biases and norms never."""
    carrier = LowRank(rank=4)
    assert carried_parameters(net(), carrier) == ("0.weight", "3.weight", "4.weight")
    assert carried_parameters(net(), LowRank(rank=5)) == ("3.weight", "4.weight")
    assert carried_parameters(net(), carrier, classifier="4") == (
        "0.weight",
        "3.weight",
        "5.weight",
    )
    assert carried_parameters(net(), Dense()) == ()


def test_frozen_and_other_layers_are_not_carried():
    model = nn.Sequential(
        nn.Embedding(50, 30),
        nn.Linear(30, 30).requires_grad_(False),
        nn.Linear(30, 30),
        nn.Linear(30, 2),
    )
    assert carried_parameters(model, LowRank(rank=2)) == ("2.weight",)


def test_a_rank_that_carries_nothing_is_refused():
    with pytest.raises(ValueError, match=r"rank=24 carries no layer of Sequential.*give rank="):
        carried_parameters(net(), LowRank(rank=24))
    with pytest.raises(
        ValueError,
        match=r"carries no layer of Linear: it has no .* before the classifier; choose another "
        r"model",
    ):
        # its only layer is the classifier
        carried_parameters(nn.Linear(50, 50), RandomCarriers(rank=1))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(128, 3)
    )


@pytest.mark.parametrize(
    "carrier",
    [LowRank(rank=24), Probe(form="core", rank=128, out_rank=64), Probe(form="core", rank=128)],
)
@pytest.mark.parametrize("build", [net, small_cnn])
def test_a_rank_that_a_refusal_names_carries_as_many_layers_as_it_says(build, carrier):
    with pytest.raises(ValueError, match="carries no layer") as refused:
        carried_parameters(build(), carrier)
    named = re.findall(r"rank=(\d+), which carries (\d+) of (\d+)", str(refused.value))
    assert named, refused.value
    for rank, count, of in named:
        found = carried_parameters(build(), replace(carrier, rank=int(rank)))
        assert len(found) == int(count) <= int(of)
        # no larger one does
        try:
            more = carried_parameters(build(), replace(carrier, rank=int(rank) + 1))
        except ValueError:
            more = ()
        assert len(more) < int(count)


@given(warmup=st.integers(1, 4), updates=st.integers(0, 6))
def test_the_change_is_decomposed_after_the_warm_up(warmup, updates):
    """W - W_0 has rank 2 and W full rank: two carriers hold all of the one and not of the other."""
    start = weights(1)
    change = weights(2, rank=2)["0.weight"]
    now = {**start, "0.weight": start["0.weight"] + change}
    carrier = LowRankChange(rank=2, warmup=warmup)
    c = frame(carrier, now=now, start=start, updates=updates).coordinates[0]
    assert (captured(change, c.L, c.R) > 1 - 1e-9) == (updates >= warmup)
    plain = frame(LowRank(rank=2), now=now).coordinates[0]
    assert torch.equal(plain.L, c.L) == (updates < warmup)


@given(
    kind=st.sampled_from(KINDS),
    rank=st.integers(1, 4),
    seed=st.integers(0, 2**40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_carriers_are_orthonormal_and_shaped_like_the_flat_weight(kind, rank, seed, dtype):
    now = {name: W.to(dtype) for name, W in weights().items()}
    f = frame(
        step_carrier(kind, rank),
        now=now,
        start=weights(1),
        updates=1,
        seed=seed,
        carried=("0.weight", "1.weight"),
    )
    for c, (m, n) in ((f.coordinates[0], (12, 10)), (f.coordinates[2], (6, 36))):
        assert (c.L.shape, c.R.shape, c.L.dtype) == ((m, rank), (rank, n), dtype)
        eye = torch.eye(rank, dtype=dtype)
        torch.testing.assert_close(c.L.T @ c.L, eye, rtol=0, atol=1e-5)
        torch.testing.assert_close(c.R @ c.R.T, eye, rtol=0, atol=1e-5)
        assert not c.L.requires_grad
    assert not f.coordinates[1].carried
    assert [b.part for b in f.blocks] == ["L", "R", "dense", "L", "R"]


HEAD = "classifier"


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.out_proj = nn.Linear(30, 30), nn.Linear(30, 20)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out_proj(torch.tanh(self.dense(x)))
        return result


def make_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential()
    for name, layer in {"body": nn.Linear(40, 30), "tanh": nn.Tanh(), HEAD: Head()}.items():
        model.add_module(name, layer)
    return model


def test_the_output_layer_is_the_last_linear_of_the_head():
    model = make_model()
    assert find_output_layer(model, HEAD) == find_output_layer(model) == "classifier.out_proj"
    assert find_output_layer(model, "body") == "body"
    assert find_output_layer(model, "tanh") == "tanh"  # a head without a Linear is left alone
    assert find_output_layer(nn.Linear(3, 2)) == find_output_layer(nn.Tanh()) == ""
    with pytest.raises(ValueError, match="classifier='head' is no module"):
        find_output_layer(model, "head")


def test_a_normalized_history_ignores_the_lengths_of_both_weights():
    """Also of a weight that is 0. The difference of the weights as they are does not (control)."""

    def of(history: str, now: float, start: float) -> Tensor:
        carrier = LowRankChange(rank=2, history=history)
        W, W_0 = (
            {name: W * scale for name, W in weights(s).items()}
            for s, scale in ((1, now), (2, start))
        )
        (c,) = (c for c in frame(carrier, now=W, start=W_0, updates=1).coordinates if c.carried)
        return torch.cat([c.L.flatten(), c.R.flatten()])

    torch.testing.assert_close(of("normalized", 1, 1), of("normalized", 4, 0.5))
    assert not torch.allclose(of("difference", 1, 1), of("difference", 4, 0.5))
    assert of("normalized", 1, 0).isfinite().all()


def test_carried_weights_alone_are_trained_with_the_head():
    net = nn.Sequential(nn.Linear(12, 10), nn.LayerNorm(10), nn.Linear(10, 3))
    for trained, names in (
        ("carried", ["0.weight", "2.weight", "2.bias"]),
        ("all", [name for name, _ in net.named_parameters()]),
    ):
        net.requires_grad_(True)
        carrier = LowRankChange(rank=2, train=trained)
        carrier.prepare(net, "2", classifier="2", seed=0)
        assert [name for name, p in net.named_parameters() if p.requires_grad] == names
