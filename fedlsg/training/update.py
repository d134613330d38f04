"""Step the weights by kept values without ever building a carried weight's gradient where its form knows how."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.frame import Frame


@torch.no_grad()
def move(
    parameters: Mapping[str, nn.Parameter],
    frame: Frame,
    values: Float[Tensor, " kept"],
    scales: Mapping[str, float],
    *,
    averaged: bool = False,
) -> None:
    """Add scale times the gradient that ``frame.gradients(values)`` would give to every parameter of the frame."""
    for c, sent in frame.by_parameter(frame.unflatten(values)):
        W, scale = parameters[c.name], scales[c.name]
        if c.L is None or c.R is None:
            W.add_(sent[0], alpha=scale)
        else:
            c.form.add(W, sent, c.L, c.R, scale, averaged=averaged)
