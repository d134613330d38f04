"""Passes of each example by itself: whatever a model and a loss do, they do it to one example."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedlsg.gradients.isolation.state import forgetting
from fedlsg.gradients.isolation.whole import kept_of_whole
from fedlsg.gradients.per_example import Given, losses_of
from fedlsg.tensors import each


def gradients_of_rows(given: Given) -> list[Tensor]:
    """Kept coordinates of each example's gradient, one tensor for each block of the frame.

    Autograd differentiates the losses of batches of one: no layer is hooked.
    """
    frame, parameters, like = given.frame, given.parameters, given.like
    blocks = [like.new_zeros(given.batch, block.kept) for block in frame.blocks]
    with torch.enable_grad(), forgetting(given.model, given.loss_fn) as put_back:
        for row in range(given.batch):
            inputs, targets = (
                each(part, partial(row_of, number=row)) for part in (given.inputs, given.targets)
            )
            losses = losses_of(
                given.model, given.loss_fn, inputs, targets, given.precision, batch=1, like=like
            )
            gradients: Sequence[Tensor | None] = [None] * len(parameters)
            if losses.requires_grad:
                gradients = torch.autograd.grad(
                    losses.sum(), list(parameters.values()), allow_unused=True
                )
            del losses, inputs, targets  # frees the graph, which may run code of its objects
            put_back()
            by_name = dict(zip(parameters, gradients, strict=True))
            for coordinates in frame.coordinates:
                if (gradient := by_name[coordinates.name]) is None:
                    continue
                for position, kept in kept_of_whole(frame, coordinates, gradient.unsqueeze(0)):
                    blocks[position][row] = kept.flatten()
    return blocks


def row_of(batch: Any, number: int) -> Any:
    """A row of a tensor, as a batch of one, in memory of its own."""
    return batch[number : number + 1].clone()
