"""Carriers and masks as a user writes them: plain functions of public values."""

import torch
from torch import Tensor

from fedlsg.carriers.carrier import Carrier
from fedlsg.frame import Block
from fedlsg.lowrank import orthonormal_columns
from fedlsg.masks.mask import Mask
from fedlsg.public import Public


def orthonormal(public: Public) -> dict[str, tuple[Tensor, Tensor]]:
    """Random orthonormal L and R of each carried weight, drawn again each round."""
    pairs = {}
    for name, (m, r, s, n) in public.carried.items():
        generator = public.generator("toy", name, public.time.round)
        L, R = torch.randn(m, r, generator=generator).double(), torch.randn(n, s, generator=generator).double()
        pairs[name] = orthonormal_columns(L), orthonormal_columns(R).mT
    return pairs


def scaled(public: Public) -> dict[str, tuple[Tensor, Tensor]]:
    """The same with columns of L and rows of R of very different lengths, in any memory order."""
    return {
        name: (L * torch.logspace(-1, 1, L.shape[1]), R * torch.linspace(0.5, 2, len(R)).unsqueeze(1))
        for name, (L, R) in orthonormal(public).items()
    }


def long_weights(block: Block, public: Public) -> Tensor:
    """Every other coordinate of a block, and of a bias those of positive weight, or the first one."""
    if block.part == "dense" and len(block.shape) == 1:
        kept = public.weights[block.parameter] > 0
        kept[0] = True
        return kept
    return (torch.arange(block.size) % 2 == 0).reshape(block.shape)


CORE = Carrier(kind="own", make=scaled, form="core", rank=3, out_rank=2)
TANGENT = Carrier(kind="own", make=orthonormal, rank=2)
OWN_MASK = Mask(kind="own", choose=long_weights)
