"""Gradient embedding (Yu, Zhang, Chen and Liu 2021, GEP): a dense gradient as an embedding and a rest.

Symbols: g (m,) one example's gradient of one parameter, flattened; L (m, k) orthonormal columns, public;
    w = L^T g embedding    g - L w rest    C clip norm, sigma noise multiplier, of both together
The paper clips embeddings to C_1 and rests to C_2, and adds noise s C_1 and s C_2, so that a batch is released twice.
Here rests are first multiplied by C_1 / C_2 (``Block.weight``) and both are clipped to C_1 = C / sqrt(2). What follows
is the joint clip to C, which changes nothing any more, and noise sigma C. So s = sqrt(2) sigma, and both releases
together are one Gaussian release of noise multiplier 1 / sqrt(1 / s^2 + 1 / s^2) = sigma, exactly. Two subsampled
releases composed as if each had a Poisson batch of its own would be another mechanism: these share one. What the ledger
is charged with rests on the joint clip alone, not on this module.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.frame import Frame


def embed(gradients: Sequence[Float[Tensor, "batch m"]], frame: Frame) -> list[Float[Tensor, "batch kept"]]:
    """What is clipped of each example, one tensor a block of ``frame``: all embeddings, then all rests.

    ``gradients``: dense, one tensor a parameter in the order of ``frame.coordinates``; ``frame`` keeps all coordinates.
    Guarantee: row i is a function of row i alone, and L w + rest is g to rounding.
    """
    found = {}
    for c, g in zip(frame.coordinates, gradients, strict=True):
        assert c.L is not None, "a frame of embeddings embeds every parameter"
        w = g @ c.L
        found[c.name, "core"] = w
        if "rest" in c.parts:
            found[c.name, "rest"] = g - w @ c.L.mT
    return [found[block.parameter, block.part] for block in frame.blocks]


def clip_parts(units: Sequence[Float[Tensor, "batch kept"]], frame: Frame) -> list[Float[Tensor, "batch kept"]]:
    """An example's embeddings, and its rests, scaled to ``frame.part_norm`` at most; where that is None, unchanged.

    ``units``: one tensor a block, times the blocks' weights. Rows that are not finite stay so: the joint clip drops
    them.
    """
    if frame.part_norm is None:
        return list(units)
    is_rest = [block.part == "rest" for block in frame.blocks]
    squares = [torch.linalg.vector_norm(u, dim=1, dtype=torch.float64).square() for u in units]
    scale = {}
    for rest in (False, True):
        norm = sum(s for s, own in zip(squares, is_rest, strict=True) if own is rest) ** 0.5
        scale[rest] = (frame.part_norm / norm.clamp_min(frame.part_norm)).unsqueeze(1)
    return [u * scale[rest].to(u) for u, rest in zip(units, is_rest, strict=True)]
