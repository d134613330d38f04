"""Blocks of embedded parameters: a dense gradient as an embedding and a rest.

After Yu, Zhang, Chen and Liu 2021 (GEP). Symbols: g (m,) one example's gradient of one parameter,
flattened; L (m, k) orthonormal columns, public; w = L^T g the embedding, g - L w the rest; C clip
norm and sigma noise multiplier of both together.

Differs from the paper: it clips embeddings to C_1 and rests to C_2, and adds noise s C_1 and s C_2,
so that a batch is released twice. Here rests are first multiplied by C_1 / C_2 (``Block.weight``)
and both are clipped to C_1 = C / sqrt(2). The joint clip to C follows, which changes nothing any
more, and noise sigma C. So s = sqrt(2) sigma, and both releases together are one Gaussian release
of noise multiplier 1 / sqrt(1 / s^2 + 1 / s^2) = sigma, exactly. Two subsampled releases composed
as if each had a Poisson batch of its own would be another mechanism: these share one. What the
ledger is charged with rests on the joint clip alone, not on this module.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from fedlsg.frame import Frame


def embed(
    gradients: Sequence[Float[Tensor, "batch _"]], frame: Frame
) -> list[Float[Tensor, "batch _"]]:
    """Kept coordinates of each block of a frame of embeddings, (B, kept), in the frame's order.

    gradients: dense (B, m), one tensor a parameter in the order of ``frame.coordinates``.
    Guarantee: row i is a function of row i alone, and L w + rest is g to rounding where the frame
    keeps all coordinates. The mask is applied here, before any clip.
    """
    blocks = {}
    for c, g in zip(frame.coordinates, gradients, strict=True):
        assert c.L is not None, "a frame of embeddings embeds every parameter"
        w = g @ c.L
        blocks[c.name, "core"] = w
        if "rest" in c.parts:
            blocks[c.name, "rest"] = g - w @ c.L.mT
    kept = []
    for block in frame.blocks:
        value = blocks[block.parameter, block.part]
        if block.keep.index is not None:
            value = value[:, block.keep.positions(block.shape).to(value.device)]
        kept.append(value)
    return kept
