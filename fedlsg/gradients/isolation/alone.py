"""The pass of each example by itself: whatever a model and a loss do, they do it to one example."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients.isolation.state import forgetting
from fedlsg.gradients.isolation.whole import kept_of_whole
from fedlsg.tensors import each


def gradients_of_rows(
    model: nn.Module,
    losses_of: Callable[..., Tensor],
    inputs: Any,
    targets: Any,
    frame: Frame,
    parameters: Mapping[str, nn.Parameter],
    count: int,
) -> list[Tensor]:
    """Kept coordinates of each example's gradient, one tensor a block, in the order of ``frame.blocks``.

    ``losses_of(inputs, targets)``: the losses of a batch of one. Autograd differentiates it: no layer is hooked.
    """
    like = next(iter(parameters.values()))
    blocks = [like.new_zeros(count, block.kept) for block in frame.blocks]
    for row in range(count):
        given, target = (each(part, partial(_row, number=row)) for part in (inputs, targets))
        with forgetting(model), torch.enable_grad():
            losses = losses_of(given, target)
            if not losses.requires_grad:
                continue
            gradients = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        of = dict(zip(parameters, gradients, strict=True))
        for coordinates in frame.coordinates:
            if (gradient := of[coordinates.name]) is None:
                continue
            for position, kept in kept_of_whole(frame, coordinates, gradient.unsqueeze(0)):
                blocks[position][row] = kept.flatten()
    return blocks


def _row(t: Tensor, number: int) -> Tensor:
    return t[number : number + 1]
