"""Blocks of a frame, from gradients of a whole parameter that autograd gave for each example.

Such gradients come from a row alone, or from copies of the parameter for each example.
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
    """Position in the frame and kept values (B, *kept) of each block of a parameter.

    coordinates: of the parameter.
    gradients: (B, *shape of the parameter).
    A parameter of shape () has values (B, 1).
    """
    c, count = coordinates, len(gradients)
    parts: dict[str, Tensor] = {"dense": gradients}
    if c.L is not None and c.R is not None:
        projected = [c.form.project(flatten_kernel(g), c.L, c.R) for g in gradients]
        by_part = zip(c.parts, zip(*projected, strict=True), strict=True)
        parts = {part: torch.stack(list(of_examples)) for part, of_examples in by_part}
    for position, block in enumerate(frame.blocks):
        if block.parameter == c.name:
            values = parts[block.part].reshape(count, *(block.shape or (1,)))
            yield position, kept_values(values, block.keep)
