"""Variance of the noise in each coordinate of the server's gradients, from public values alone.

The noise on kept values is independent and of one deviation s; the clip's weights, masks, Eq. 3, the averaged core and
L S R are linear. So the variance of a coordinate is s^2 times the sum of its squared coefficients.

Symbols: V variances of the values of a block; X^(2) the matrix of squared entries. P = L L^T, Q = R^T R.
    core              dW = L S R                              L^(2) V R^(2)
    embedding         dW = L S + rest                         L^(2) V + V_rest
    Eq. 3             dW = (I - P) dL R + L dR                (I - P)^(2) V_L R^(2) + L^(2) V_R
    averaged core     dW = (I - P/2) dL R + L dR (I - Q/2)    (I - P/2)^(2) V_L R^(2) + L^(2) V_R (I - Q/2)^(2)
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.frame import Coordinates, Frame, Part


@torch.no_grad()
def noise_variances(frame: Frame, noise_std: float, *, like: Tensor, averaged: bool = False) -> dict[str, Tensor]:
    """Variances by parameter, each in its shape: those of ``frame.gradients(values, averaged=averaged)``.

    ``noise_std``: deviation of the noise on each kept value. Frozen coordinates have none. ``like``: dtype and device.
    """
    pieces = frame.split(like.new_full((frame.kept,), noise_std**2))
    parts = {(b.parameter, b.part): V / b.weight**2 for b, V in zip(frame.blocks, pieces, strict=True)}
    return {c.name: _lifted(c, parts, averaged=averaged) for c in frame.coordinates}


def _lifted(c: Coordinates, parts: dict[tuple[str, Part], Tensor], *, averaged: bool) -> Tensor:
    if c.L is None or c.R is None:
        return parts[c.name, "dense"]
    L, R = c.L.square(), c.R.square()
    if c.form == "preconditioned":
        return parts[c.name, "core"].reshape(c.shape)
    if c.form != "tangent":
        lifted = (L @ parts[c.name, "core"] @ R).reshape(c.shape)
        return lifted + parts[c.name, "rest"] if c.form == "embedding" else lifted
    half = 0.5 if averaged else 1.0
    left = _complement(c.L, half) @ parts[c.name, "L"] @ R
    right = L @ parts[c.name, "R"].flatten(1)
    return (left + (right @ _complement(c.R.mT, half) if averaged else right)).reshape(c.shape)


def _complement(L: Float[Tensor, "m r"], share: float) -> Float[Tensor, "m m"]:
    """Squared entries of I - share L L^T."""
    return (torch.eye(len(L), dtype=L.dtype, device=L.device) - share * L @ L.mT).square()
