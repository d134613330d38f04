"""The mask of a whole frame: which units and coordinates stay, how often it is redrawn, and what it does to dW."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.frame import Block, Coordinates, Frame, make_blocks
from fedlsg.lowrank import decompose
from fedlsg.masks.mask import Mask, apply_mask
from fedlsg.public import Public, RoundTime
from fedlsg.randomness import public_generator

seeds = st.integers(0, 2**32)
rates = st.floats(0, 0.99)


def weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"0.weight": (8, 6), "0.bias": (8,), "1.weight": (5, 4, 3, 3), "2.weight": (3, 5)}
    return {name: torch.randn(*shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


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
    public = Public(weights=now, coordinates=where, time=RoundTime(epoch=epoch, epochs=epochs), seed=seed)
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
    """Unit after unit: sums of absolute values, the floor(p * units) smallest set to zero, ties to the lower index."""
    axis = 0 if block.part == "L" else 1
    units = W.shape[axis]
    importance = [float(W.select(axis, unit).abs().sum()) for unit in range(units)]
    order = sorted(range(units), key=lambda unit: (importance[unit] if top else -importance[unit], unit))
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
        return apply_mask(blocks, Mask(kind="units", sparsity=0.5, direction=direction), Public(weights=now))

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
