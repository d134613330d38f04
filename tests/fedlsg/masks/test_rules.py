"""The mask of a whole frame: which units and coordinates stay, ranked ones among them, how often it
is redrawn.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.frame import Block, Coordinates, Frame, Keep, make_blocks
from fedlsg.frame.public import Public, RoundTime
from fedlsg.lowrank import decompose
from fedlsg.masks.mask import Mask, apply_mask
from fedlsg.masks.ranking import Memory, noisy_everywhere
from fedlsg.randomness import public_generator
from fedlsg.training import accumulated_noise
from tests.fedlsg.support.step_oracle import EMPTY, NOISY, problem

seeds = st.integers(0, 2**32)
rates = st.floats(0, 0.99)


def weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"0.weight": (8, 6), "0.bias": (8,), "1.weight": (5, 4, 3, 3), "2.weight": (3, 5)}
    return {
        name: torch.randn(*shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def coordinates(now: dict[str, Tensor], rank: int = 2) -> list[Coordinates]:
    """The first weight and the kernel carried, the rest dense."""
    carriers = {
        name: decompose(now[name], rank, generator=torch.Generator().manual_seed(1))
        for name in ("0.weight", "1.weight")
    }
    return [
        Coordinates(name=name, shape=tuple(W.shape), L=carriers[name][0], R=carriers[name][1])
        if name in carriers
        else Coordinates(name=name, shape=tuple(W.shape))
        for name, W in now.items()
    ]


def mask_frame(mask: Mask, *, now=None, epoch: int = 0, epochs: int = 1, seed: int = 0) -> Frame:
    now = weights() if now is None else now
    where = coordinates(now)
    public = Public(
        weights=now, coordinates=where, time=RoundTime(epoch=epoch, epochs=epochs), seed=seed
    )
    blocks = apply_mask(make_blocks(where), mask, public)
    return Frame(coordinates=tuple(where), blocks=blocks)


def kept_grid(block: Block) -> Tensor:
    """The block with 1 where kept, built without Keep's own arithmetic for whole units."""
    grid = torch.zeros(block.shape)
    if block.keep.index is None:
        return grid + 1
    if block.keep.axis is None:
        grid.view(-1)[block.keep.index] = 1
        return grid
    for unit in block.keep.index.tolist():
        grid.select(block.keep.axis, unit).fill_(1)
    return grid


def naive_units(block: Block, W: Tensor, sparsity: float, top: bool = True) -> Tensor:
    """Unit after unit: sums of absolute values, the floor(p * units) smallest set to zero, ties to
    the lower index.
    """
    axis = 0 if block.part == "L" else 1
    units = W.shape[axis]
    importance = [float(W.select(axis, unit).abs().sum()) for unit in range(units)]
    order = sorted(
        range(units), key=lambda unit: (importance[unit] if top else -importance[unit], unit)
    )
    grid = torch.ones(block.shape)
    for unit in order[: min(math.floor(sparsity * units + 1e-9), units - 1)]:
        grid.select(axis, unit).fill_(0)
    return grid


@given(sparsity=rates, seed=seeds, direction=st.sampled_from(["top", "bottom"]))
def test_units_equal_the_naive_loop(sparsity, seed, direction):
    now = weights(seed)
    f = mask_frame(Mask(kind="units", sparsity=sparsity, direction=direction), now=now)
    for block in f.blocks:
        if block.part == "dense":
            assert block.kept == block.size
        else:
            wanted = naive_units(block, now[block.parameter], sparsity, top=direction == "top")
            assert torch.equal(kept_grid(block), wanted)
            assert block.kept == int(wanted.sum())
    grids = torch.cat([kept_grid(block).flatten() for block in f.blocks])
    assert torch.equal(f.indices, grids.nonzero().squeeze(1))


def keeps_important_units(rule) -> bool:
    """Whether a rule on a square weight keeps rows of dL by O, and columns of dR by I."""
    now = {"w": torch.tensor([[1.0, 5.0], [2.0, 0.5]])}  # O = (6, 2.5), I = (3, 5.5)
    where = [Coordinates(name="w", shape=(2, 2), L=torch.eye(2, 1), R=torch.eye(1, 2))]
    left, right = rule(make_blocks(where), now)
    return kept_grid(left).tolist() == [[1], [0]] and kept_grid(right).tolist() == [[0, 1]]


def test_planted_rules_are_caught():
    def shipped(blocks, now, direction="top"):
        return apply_mask(
            blocks, Mask(kind="units", sparsity=0.5, direction=direction), Public(weights=now)
        )

    def transposed(blocks, now):
        return shipped(blocks, {name: W.T for name, W in now.items()})

    assert keeps_important_units(shipped)
    assert not keeps_important_units(transposed)
    assert not keeps_important_units(lambda blocks, now: shipped(blocks, now, "bottom"))
    assert not keeps_important_units(lambda blocks, now: blocks)


@given(sparsity=rates, epoch=st.integers(0, 5), seed=seeds)
def test_uniform_freezes_exactly_its_share_of_all_coordinates(sparsity, epoch, seed):
    f = mask_frame(Mask(kind="uniform", sparsity=sparsity), epoch=epoch, epochs=6, seed=seed)
    assert f.size - f.kept == math.floor(sparsity * f.size + 1e-9)
    order = torch.randperm(f.size, generator=public_generator(seed, "mask", epoch))
    assert f.indices.tolist() == sorted(order[f.size - f.kept :].tolist())
    grids = torch.cat([kept_grid(block).flatten() for block in f.blocks])
    assert torch.equal(f.indices, grids.nonzero().squeeze(1))


def test_with_unit_masks_every_entry_of_dw_moves():
    """The same in general position: rows and columns frozen, and yet no entry of dW is zero."""
    f = mask_frame(Mask(kind="units", sparsity=0.5))
    assert f.blocks[0].kept == 4 * 2
    assert f.blocks[1].kept == 2 * 3
    values = torch.randn(f.kept, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(f.gradients(values)["0.weight"].abs().min()) > 1e-6


@given(
    updates=st.lists(st.integers(0, 6), max_size=12),
    rate=st.floats(0, 0.99),
    seed=st.integers(0, 99),
)
def test_the_ranking_is_that_of_the_last_epoch_with_updates(updates, rate, seed):
    generator = torch.Generator().manual_seed(seed)
    memory, by_epoch = Memory(), {}
    for epoch in sorted(updates):
        gradient = torch.randn(9, generator=generator)
        memory = memory.add(gradient, epoch)
        by_epoch.setdefault(epoch, []).append(gradient)
    for epoch in range(max(updates, default=0), 8):
        before = [e for e in by_epoch if e < epoch]
        kept = memory.kept(rate, epoch)
        if not before:
            assert kept is None
            continue
        mean = torch.stack(by_epoch[max(before)]).mean(0).abs()
        frozen = min(math.floor(rate * 9 + 1e-9), 8)
        assert kept.tolist() == sorted(mean.argsort(stable=True)[frozen:].tolist())


def frame(kept: list[int], size: int = 4000, weight: float = 1.0) -> Frame:
    keep = Keep(index=torch.tensor(kept))
    return Frame(
        coordinates=(),
        blocks=(Block(parameter="w", part="dense", shape=(size,), keep=keep, weight=weight),),
    )


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_frozen_coordinates_get_the_noise_that_kept_ones_have(weight):
    """On the scale of the gradient: a block of weight 4 in the clip has a quarter of the noise."""
    f = frame(list(range(0, 4000, 2)), weight=weight)
    values = 3.0 * torch.randn(
        f.kept, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    full = noisy_everywhere(values, f, 3.0, generator=torch.Generator().manual_seed(1))
    assert torch.equal(full[::2], values / weight)
    assert abs(float(full[1::2].std()) / float(full[::2].std()) - 1) < 0.06
    assert abs(float(full[1::2].mean())) < 0.3 / weight


def come_back(noise_std: float) -> bool:
    """Whether frozen coordinates ever rank among the kept again."""
    f = frame([0, 1], size=4)
    values = torch.tensor([0.5, -0.5]).double()
    seen = set()
    for draw in range(30):
        full = noisy_everywhere(values, f, noise_std, generator=torch.Generator().manual_seed(draw))
        seen |= set(Memory().add(full, 0).kept(0.5, 1).tolist())
    return seen == {0, 1, 2, 3}


def test_without_noise_a_frozen_coordinate_never_comes_back():
    """Negative control, and why the paper noises coordinates that it does not update."""
    assert come_back(1.0)
    assert not come_back(0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "momentum"), [(1, 0.0), (1, 0.9), (4, 0.0), (4, 0.9)])
def test_the_deviation_is_that_of_a_real_step(steps, momentum):
    p = problem()
    local = replace(EMPTY, steps=steps, momentum=momentum)
    noise = torch.cat([p.step(NOISY, local, seed) for seed in range(200)])
    assert float(noise.std()) == pytest.approx(
        accumulated_noise(NOISY.noise_std, steps, momentum), rel=0.03
    )
