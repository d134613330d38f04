"""Importance, energy and random units: the choice against goldens and naive loops; when a mask is
redrawn.
"""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.frame import Block, Coordinates, Frame, Keep, make_blocks
from fedlsg.frame.forms import FORMS
from fedlsg.frame.public import Public, RoundTime
from fedlsg.lowrank import decompose
from fedlsg.masks import Mask
from fedlsg.masks.freezing import (
    frozen_count,
    gradual_cooling,
    keep_units,
    uniform,
    unit_importance,
)
from fedlsg.masks.mask import apply_mask
from tests.fedlsg.support.mask_oracle import kept_by, weights

seeds = st.integers(0, 10_000)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(
    m=st.integers(1, 4), c=st.integers(1, 4), kh=st.integers(1, 3), kw=st.integers(1, 3), seed=seeds
)
def test_importance_of_a_kernel_sums_over_whole_kernels(m, c, kh, kw, seed):
    W = torch.randn(
        m, c, kh, kw, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    O, I = [0.0] * m, [0.0] * c
    for i, j, y, x in itertools.product(range(m), range(c), range(kh), range(kw)):
        O[i] += abs(float(W[i, j, y, x]))
        I[j] += abs(float(W[i, j, y, x]))
    got = unit_importance(W)
    assert got[0].tolist() == pytest.approx(O)
    assert got[1].tolist() == pytest.approx(I)


@pytest.mark.parametrize("shape", [(3,), (3, 4, 5), (1, 2, 3, 4, 5)])
def test_importance_of_other_shapes_is_refused(shape):
    with pytest.raises(ValueError, match=r"linear .* or convolution"):
        unit_importance(torch.ones(shape))


@given(
    importance=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    sparsity=st.floats(0, 0.999),
    direction=st.sampled_from(["top", "bottom"]),
)
def test_kept_units_equal_a_sort_written_out(importance, sparsity, direction):
    """All but the floor(p * units) least important (most, for "bottom"), the lower index frozen
    first among equals.
    """
    sign = 1 if direction == "top" else -1
    ranked = sorted(range(len(importance)), key=lambda i: (sign * importance[i], i))
    frozen = min(math.floor(sparsity * len(importance) + 1e-9), len(importance) - 1)
    kept = keep_units(torch.tensor(importance, dtype=torch.float32), sparsity, direction)
    assert kept.tolist() == sorted(ranked[frozen:])
    assert kept.dtype == torch.int64


@pytest.mark.parametrize(
    ("units", "sparsity", "frozen"),
    [(100, 0.29, 29), (10, 0.3, 3), (10, 0.7, 7), (7, 0.5, 3), (3, 0.0, 0)],
)
def test_the_count_of_frozen_units_survives_rounding(units, sparsity, frozen):
    assert frozen_count(units, sparsity) == frozen


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5, float("nan")])
def test_sparsities_outside_zero_to_one_are_refused(sparsity):
    calls = [
        lambda: keep_units(torch.ones(3), sparsity),
        lambda: uniform(3, sparsity, generator=torch.Generator()),
        lambda: gradual_cooling(sparsity, 0, 2),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="sparsity"):
            call()


@st.composite
def keeps(draw: st.DrawFn) -> tuple[tuple[int, ...], Keep]:
    shape = draw(shapes)
    axis = draw(st.sampled_from([None, *range(len(shape))]))
    total = math.prod(shape) if axis is None else shape[axis]
    index = sorted(draw(st.sets(st.integers(0, total - 1))))
    return shape, Keep(axis=axis, index=torch.tensor(index, dtype=torch.int64))


@given(case=keeps())
def test_positions_equal_a_loop_over_the_block(case):
    shape, keep = case
    chosen = set(keep.index.tolist())
    expected = []
    for flat, place in enumerate(itertools.product(*map(range, shape))):
        if (flat if keep.axis is None else place[keep.axis]) in chosen:
            expected.append(flat)
    assert keep.positions(shape).tolist() == expected
    assert keep.count(shape) == len(expected)


def test_per_step_masks_are_redrawn_in_every_round_at_the_rate_of_the_epoch():
    now = weights()
    mask = Mask(kind="uniform", sparsity=0.5, redraw="step", cooling=True)
    total = sum(W.numel() for W in now.values())
    seen = []
    for round in range(1, 9):  # four epochs of two rounds
        time = RoundTime(round=round, rounds=8, epoch=(round - 1) // 2, epochs=4)
        kept = kept_by(mask, now, time=time)
        assert total - sum(map(len, kept.values())) == math.floor(
            0.5 * time.epoch / 3 * total + 1e-9
        )
        seen.append(kept)
    assert (
        mask.rate(RoundTime(round=9, rounds=8, epoch=4, epochs=4)) == 0.5
    )  # after the last round, as in the last epoch
    assert seen[2] != seen[3]
    assert seen[6] != seen[7]
    by_epoch = [
        kept_by(replace(mask, redraw="epoch"), now, time=RoundTime(round=r, rounds=8))
        for r in (1, 2)
    ]
    assert by_epoch[0] == by_epoch[1]


def test_one_mask_an_epoch_is_redraw_epoch_and_k_of_them_are_others():
    """The rate rises over all masks of the run; the control is another number of masks."""
    now, seen = weights(), {}
    for redraw in ("epoch", "1", 2, "4"):
        mask = Mask(kind="uniform", sparsity=0.5, redraw=redraw, cooling=True)
        times = [
            RoundTime(round=r, rounds=8, epoch=(r - 1) // 4, epochs=2, per_round=0.25)
            for r in range(1, 9)
        ]
        seen[str(redraw)] = [kept_by(mask, now, time=time) for time in times]
    assert seen["1"] == seen["epoch"] != seen["2"]
    counts = {name: len({str(kept) for kept in masks}) for name, masks in seen.items()}
    assert counts == {"epoch": 2, "1": 2, "2": 4, "4": 8}


@pytest.mark.parametrize("redraw", ["0", "-1", "2.5", "often", "", 0])
def test_another_redraw_is_refused_and_named(redraw):
    with pytest.raises(ValueError, match="redraw"):
        Mask(kind="uniform", sparsity=0.5, redraw=redraw)


def test_ranked_masks_are_drawn_once_an_epoch():
    with pytest.raises(ValueError, match="redraw='epoch'"):
        Mask(kind="uniform", sparsity=0.5, redraw="2", ranking="gradients")


def test_convolutions_alone_without_any_is_refused():
    mask = Mask(kind="magnitude", sparsity=0.5, convolutions_alone=True)
    now = weights()
    dense = {name: W for name, W in now.items() if W.ndim < 3}
    with pytest.raises(ValueError, match="convolutions_alone=true would freeze nothing"):
        kept_by(mask, dense, initial=dense)
    kept = kept_by(mask, now, initial=now)
    sizes = {name: W.numel() for name, W in now.items() if len(kept[name]) < W.numel()}
    assert list(sizes) == ["1.weight"]


@pytest.mark.parametrize("kind", ["units", "uniform", "magnitude", "drop"])
def test_sparsity_from_freezes_nothing_before_its_share_of_the_rounds(kind):
    mask = Mask(
        kind=kind, sparsity=0.4, sparsity_from=0.5, drop="random" if kind == "drop" else "none"
    )
    assert [mask.rate(RoundTime(round=round, rounds=7)) for round in range(1, 8)] == [
        0,
        0,
        0,
        0,
        0.4,
        0.4,
        0.4,
    ]
    assert mask.rate(RoundTime(round=1, rounds=1)) == 0
    late = replace(mask, sparsity_from=0.3)
    rates = [late.rate(RoundTime(round=round, rounds=10)) for round in (3, 4)]
    assert rates == [0, 0.4]  # 0.3 * 10 = 3.0000000000000004
    now, dense = weights(), kind in ("magnitude", "drop")
    c = [
        Coordinates(name=n, shape=tuple(W.shape))
        if dense or W.ndim < 2
        else Coordinates(
            name=n, shape=tuple(W.shape), L=torch.eye(len(W), 2), R=torch.eye(2, W[0].numel())
        )
        for n, W in now.items()
    ]
    for round, frozen in ((3, False), (5, True)):
        public = Public(
            weights=now, initial=now, coordinates=c, time=RoundTime(round=round, rounds=7)
        )
        f = Frame(coordinates=tuple(c), blocks=apply_mask(make_blocks(c), mask, public))
        assert (f.kept < f.size) == frozen


def carried(now: dict[str, Tensor], rank: int = 2) -> list[Coordinates]:
    out = []
    for name in ("0.weight", "1.weight"):
        L, R = decompose(now[name], rank, generator=torch.Generator().manual_seed(1))
        out.append(Coordinates(name=name, shape=tuple(now[name].shape), L=L, R=R))
    return out


def test_random_units_are_as_many_redrawn_every_epoch_and_blind():
    def draw(now: dict[str, Tensor], epoch: int, importance: str = "random") -> tuple[Block, ...]:
        where = carried(now)
        mask = Mask(kind="units", sparsity=0.5, importance=importance)
        time = RoundTime(epoch=epoch, epochs=9)
        return apply_mask(
            make_blocks(where), mask, Public(weights=now, coordinates=where, time=time)
        )

    def index(blocks: tuple[Block, ...]) -> list[list[int]]:
        return [block.keep.index.tolist() for block in blocks]

    important = draw(weights(), 0, "weights")
    assert [b.kept for b in draw(weights(), 0)] == [b.kept for b in important]
    assert [b.keep.axis for b in draw(weights(), 0)] == [0, 1, 0, 1]
    assert index(draw(weights(0), 3)) == index(draw(weights(9), 3))
    assert len({str(index(draw(weights(), epoch))) for epoch in range(9)}) == 9
    assert index(draw(weights(), 0)) != index(important)
    alike = draw({"0.weight": torch.ones(40, 40), "1.weight": torch.ones(40, 40)}, 0)
    assert len({str(rows) for rows in index(alike)}) == 4  # each block has units of its own


OUT, IN = torch.tensor([4.0, 2.0, 1.0]), torch.tensor([8.0, 4.0, 3.0, 0.0])
CORE = Coordinates(
    name="W", shape=(6, 5), L=torch.zeros(6, 3), R=torch.zeros(4, 5), form=FORMS["core"]
)
KERNEL = Coordinates(name="W", shape=(3, 4, 2, 2), L=torch.zeros(3, 2), R=torch.zeros(2, 16))
BIAS = Coordinates(name="b", shape=(6,))


def kept(mask: Mask, c: Coordinates) -> list[Tensor]:
    public = Public(
        weights={"W": torch.zeros(c.shape), "b": torch.zeros(6)}, energies={"W": (OUT, IN)}
    )
    return [
        block.keep.positions(block.shape)
        for block in apply_mask(make_blocks([c, BIAS]), mask, public)
    ]


@pytest.mark.parametrize("sparsity", [0.0, 0.25, 0.5, 0.9])
def test_entries_of_the_largest_product_of_energies_are_kept(sparsity):
    core, bias = kept(Mask(kind="energy", sparsity=sparsity), CORE)
    energy = (OUT.unsqueeze(1) * IN).flatten()
    frozen = int(sparsity * 12 + 1e-9)
    left = torch.ones(12, dtype=torch.bool).index_fill(0, core, False)
    assert (len(core), len(bias)) == (12 - frozen, 6)
    if frozen:
        assert energy[core].min() >= energy[left].max()
        assert energy[core].sum() == pytest.approx(
            float(energy.sort(descending=True).values[: 12 - frozen].sum())
        )


def test_units_by_predicted_energy():
    """Rows of dL by the out units' energy, channels of dR with all of their taps by the in
    units'.
    """
    left, right, bias = kept(Mask(kind="units", sparsity=0.5, importance="energy"), KERNEL)
    assert left.tolist() == [0, 1, 2, 3]
    assert right.tolist() == [*range(8), *range(16, 24)]
    assert len(bias) == 6
    bottom, _, _ = kept(
        Mask(kind="units", sparsity=0.5, importance="energy", direction="bottom"), KERNEL
    )
    assert bottom.tolist() == [2, 3, 4, 5]
