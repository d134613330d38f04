"""Blocks of a frame from whole gradients of a parameter, one for each example.

For parameters whose gradients autograd gives itself: of a row alone, or of copies for each example.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.frame import Coordinates, Frame
from fedlsg.gradients.formulas.layers import kept_values
from fedlsg.lowrank import flatten_kernel


def kept_of_whole(
    frame: Frame, coordinates: Coordinates, gradients: Float[Tensor, "batch *shape"]
) -> Iterator[tuple[int, Float[Tensor, "batch *kept"]]]:
    """Position in the frame and kept values of each block of a parameter, (B, 1) of shape ()."""
    c, count = coordinates, len(gradients)
    parts: dict[str, Tensor] = {"dense": gradients}
    if c.L is not None and c.R is not None:
        sent = [c.form.project(flatten_kernel(g), c.L, c.R) for g in gradients]
        parts = {
            part: torch.stack(list(copies))
            for part, copies in zip(c.parts, zip(*sent, strict=True), strict=True)
        }
    for position, block in enumerate(frame.blocks):
        if block.parameter == c.name:
            values = parts[block.part].reshape(count, *(block.shape or (1,)))
            yield position, kept_values(values, block.keep)
