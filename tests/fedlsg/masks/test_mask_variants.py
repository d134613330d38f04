"""When a mask is redrawn and from when it freezes anything; units by other importances than the weight's."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.frame import Block, Coordinates, Frame, make_blocks
from fedlsg.lowrank import decompose
from fedlsg.masks.mask import Mask, apply_mask
from fedlsg.public import Public, RoundTime
from tests.fedlsg.support.mask_oracle import kept_by, weights

rates = st.floats(0, 0.99)


def test_per_step_masks_are_redrawn_in_every_round_at_the_rate_of_the_epoch():
    now = weights()
    mask = Mask(kind="uniform", sparsity=0.5, redraw="step", cooling=True)
    total = sum(W.numel() for W in now.values())
    seen = []
    for round in range(1, 9):  # four epochs of two rounds
        time = RoundTime(round=round, rounds=8, epoch=(round - 1) // 2, epochs=4)
        kept = kept_by(mask, now, time=time)
        assert total - sum(map(len, kept.values())) == math.floor(0.5 * time.epoch / 3 * total + 1e-9)
        seen.append(kept)
    assert (
        mask.rate(RoundTime(round=9, rounds=8, epoch=4, epochs=4)) == 0.5
    )  # after the last round, as in the last epoch
    assert seen[2] != seen[3]
    assert seen[6] != seen[7]
    by_epoch = [kept_by(replace(mask, redraw="epoch"), now, time=RoundTime(round=r, rounds=8)) for r in (1, 2)]
    assert by_epoch[0] == by_epoch[1]


@pytest.mark.parametrize("kind", ["units", "uniform", "magnitude", "drop"])
def test_sparsity_from_freezes_nothing_before_its_share_of_the_rounds(kind):
    mask = Mask(kind=kind, sparsity=0.4, sparsity_from=0.5, drop="random" if kind == "drop" else "none")
    assert [mask.rate(RoundTime(round=round, rounds=7)) for round in range(1, 8)] == [0, 0, 0, 0, 0.4, 0.4, 0.4]
    assert mask.rate(RoundTime(round=1, rounds=1)) == 0
    late = replace(mask, sparsity_from=0.3)
    rates = [late.rate(RoundTime(round=round, rounds=10)) for round in (3, 4)]
    assert rates == [0, 0.4]  # 0.3 * 10 = 3.0000000000000004
    now, dense = weights(), kind in ("magnitude", "drop")
    c = [
        Coordinates(name=n, shape=tuple(W.shape))
        if dense or W.ndim < 2
        else Coordinates(name=n, shape=tuple(W.shape), L=torch.eye(len(W), 2), R=torch.eye(2, W[0].numel()))
        for n, W in now.items()
    ]
    for round, frozen in ((3, False), (5, True)):
        public = Public(weights=now, initial=now, coordinates=c, time=RoundTime(round=round, rounds=7))
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
        return apply_mask(make_blocks(where), mask, Public(weights=now, coordinates=where, time=time))

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
