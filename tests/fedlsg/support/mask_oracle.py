"""Weights of every kind, what a mask keeps of them, and the choice of the kept ones as a sort."""

import math

import torch
from torch import Tensor

from fedlsg.frame import Block, Coordinates, make_blocks
from fedlsg.frame.public import Public
from fedlsg.masks.mask import Mask, apply_mask

SHAPES = {
    "0.weight": (8, 6),
    "0.bias": (8,),
    "1.weight": (5, 4, 3, 3),
    "1.scale": (5,),
    "2.weight": (3, 5),
}


def weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(*shape, generator=generator) for name, shape in SHAPES.items()}


def blocks_of(now: dict[str, Tensor]) -> tuple[Block, ...]:
    return make_blocks([Coordinates(name=name, shape=tuple(W.shape)) for name, W in now.items()])


def kept_by(mask: Mask, now: dict[str, Tensor], **public) -> dict[str, list[int]]:
    """Kept flat positions of every parameter."""
    return {
        b.parameter: b.keep.positions(b.shape).tolist()
        for b in apply_mask(blocks_of(now), mask, Public(weights=now, **public))
    }


def naive(magnitudes: list[float], candidates: list[int], sparsity: float) -> list[int]:
    """The candidates but the floor(p n) smallest, the lower index frozen first, one left at
    least.
    """
    order = sorted(candidates, key=lambda i: (magnitudes[i], i))
    return sorted(order[min(math.floor(sparsity * len(order) + 1e-9), len(order) - 1) :])
