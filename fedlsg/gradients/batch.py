"""A batch of inputs and targets, and the losses that a model has on it."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.gradients.precision import Numbers

Batch = Tensor | Mapping[str, Tensor]
"""A tensor or a dict of keyword tensors, examples on the first dimension."""
LossFunction = Callable[[Any, Any], Tensor]
"""``loss_fn(outputs, targets)``: one loss for each example, shape (B,)."""


def batch_size(inputs: Batch, targets: Batch) -> int:
    """The first dimension that all tensors share. Raises ValueError if they differ in it."""
    tensors = [t for group in (inputs, targets) for t in ([group] if isinstance(group, Tensor) else group.values())]
    sizes = {t.shape[0] if t.ndim else None for t in tensors}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        shapes = [tuple(t.shape) for t in tensors]
        raise ValueError(f"expected inputs and targets that share their first dimension, the batch, got {shapes}")
    return size


def call(model: nn.Module, inputs: Batch) -> Any:
    """The model's outputs. Inputs are detached: nothing reads a gradient with respect to them."""
    if isinstance(inputs, Tensor):
        return model(inputs.detach())
    return model(**{name: t.detach() for name, t in inputs.items()})


def losses_of(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    numbers: Numbers,
    *,
    batch: int,
    like: Tensor,
) -> Float[Tensor, " batch"]:
    """The loss of each of ``batch`` examples, on the device of ``like``.

    Raises ValueError for losses of another shape than (B,): a mean would scale every gradient by 1 / B.
    """
    losses: Tensor = numbers.losses(partial(call, model, inputs), loss_fn, targets, like)
    if losses.shape != (batch,):
        raise ValueError(
            f"expected one loss an example, shape ({batch},), got shape {tuple(losses.shape)}: use "
            "reduction='none', and average within an example only"
        )
    return losses


def force_eager() -> AbstractContextManager[object]:
    """Switch torch.compile off inside the context.

    A model that is compiled with hooks is compiled again for the hooks of every pass, until torch gives up. A model
    that was compiled without hooks may skip them, and its gradients would silently be zeros.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
