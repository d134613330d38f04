"""The functions that give a client's steps the gradients of a microbatch's rows."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedlsg.gradients import GhostGradients
from fedlsg.gradients.isolation import block_gradients, per_example_gradients


@dataclass(frozen=True, kw_only=True)
class ExampleGradients:
    """Functions with the arguments of ``per_example_gradients``: its backward pass, by default.

    An audit gives others, whose gradients it chooses; everything after them is the client's own.

    rows: the gradient of each row, one tensor (B, kept) a block.
    blocks: the same for ghost clipping, where a block may be ``GhostGradients``. None: no ghost
        clipping.
    """

    rows: Callable[..., list[Tensor]] = per_example_gradients
    blocks: Callable[..., list[Tensor | GhostGradients]] | None = block_gradients


BACKWARD = ExampleGradients()
"""Gradients by a backward pass."""
