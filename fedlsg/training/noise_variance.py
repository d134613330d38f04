"""Variance of the noise in each coordinate of the server's gradients, from public values alone.

The noise on kept values is independent and of one deviation s; the clip's weights, masks and what a form lifts are
linear. So the variance of a coordinate is s^2 times the sum of its squared coefficients (``Form.variances``).
"""

import torch
from torch import Tensor

from fedlsg.frame import Frame


@torch.no_grad()
def noise_variances(frame: Frame, noise_std: float, *, like: Tensor, averaged: bool = False) -> dict[str, Tensor]:
    """Variances by parameter, each in its shape: those of ``frame.gradients(values, averaged=averaged)``.

    ``noise_std``: deviation of the noise on each kept value. Frozen coordinates have none. ``like``: dtype and device.
    """
    pieces = frame.split(like.new_full((frame.kept,), noise_std**2))
    weighed = [V / b.weight**2 for b, V in zip(frame.blocks, pieces, strict=True)]
    return {
        c.name: sent[0]
        if c.L is None or c.R is None
        else c.form.variances(sent, c.L, c.R, averaged=averaged).reshape(c.shape)
        for c, sent in frame.by_parameter(weighed)
    }
