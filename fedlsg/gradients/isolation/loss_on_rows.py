"""The losses of a batch from a loss function that sees the outputs of one example at a time."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedlsg.gradients.isolation.alone import row_of
from fedlsg.gradients.isolation.batched import for_each_example
from fedlsg.gradients.isolation.state import forgetting
from fedlsg.tensors import each, fields_of


def loss_of_one(loss_fn: Callable[[Any, Any], Tensor], outputs: Any, target: Any) -> Tensor:
    """The loss of one example, a number, from its outputs as a batch of one."""
    losses = loss_fn(outputs, target)
    if losses.shape != (1,):
        raise ValueError(
            f"expected one loss an example, got shape {tuple(losses.shape)} for one example: use "
            "reduction='none', and average within an example only"
        )
    return losses.squeeze(0)


_by_rows: WeakSet[Any] = WeakSet()
"""Losses that torch has no rule for under ``vmap``."""


def losses_on_outputs(loss_fn: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor:
    """The loss of each example, (B,), of a user's loss that sees the outputs of one example.

    It runs under ``vmap``, or on one row after the other where torch has no rule for the loss.
    Raises ValueError for outputs that are not tensors with the batch first.
    """
    leaves, spec = tree_flatten(outputs)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    count = len(next(iter(fields_of(targets).values())))
    if not tensors or any(t.ndim == 0 or len(t) != count for t in tensors):
        raise ValueError(
            "expected outputs of the model with the examples on their first dimension, so that the "
            "loss can get those of one example: set isolation='rows'"
        )

    def of_one(rows: list[Tensor], y: Any) -> Tensor:
        remaining = iter(rows)
        parts = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return loss_of_one(loss_fn, tree_unflatten(parts, spec), y)

    if not _needs_rows(loss_fn):
        batches_of_one = [t.unsqueeze(1) for t in tensors], each(targets, lambda t: t.unsqueeze(1))
        for _ in range(2):  # a library that the first call imports may make generators
            with suppress(RuntimeError), forgetting(loss_fn, together=True):
                at_once: Tensor = for_each_example(of_one)(*batches_of_one)
                return at_once
        with suppress(TypeError):
            _by_rows.add(loss_fn)
    return _one_by_one(loss_fn, of_one, tensors, targets)


def _needs_rows(loss_fn: Callable[[Any, Any], Tensor]) -> bool:
    """Whether torch is known to have no rule for a loss under ``vmap``."""
    try:
        return loss_fn in _by_rows
    except TypeError:  # an object without a hash, or without weak references, is not kept
        return False


def _one_by_one(
    loss_fn: Callable[[Any, Any], Tensor],
    of_one: Callable[[list[Tensor], Any], Tensor],
    outputs: list[Tensor],
    targets: Any,
) -> Tensor:
    """The loss of each example, (B,), of one row of outputs after the other."""
    losses: list[Tensor] = []
    slopes = [torch.zeros_like(t) for t in outputs]  # gradients of the losses
    with forgetting(loss_fn) as put_back:
        for b in range(len(outputs[0])):
            target = each(targets, partial(row_of, number=b))
            rows = [row_of(t.detach(), b).requires_grad_(t.requires_grad) for t in outputs]
            loss = of_one(rows, target)
            needed = [i for i, row in enumerate(rows) if row.requires_grad and loss.requires_grad]
            if needed:
                gradients = torch.autograd.grad(loss, [rows[i] for i in needed], allow_unused=True)
                for i, gradient in zip(needed, gradients, strict=True):
                    if gradient is not None:
                        slopes[i][b] = gradient[0]
            losses.append(loss.detach())
            put_back()
    total: Tensor = _WithSlopes.apply(torch.stack(losses), *slopes, *outputs)
    return total


class _WithSlopes(torch.autograd.Function):
    """Losses with gradients (slopes) that were computed before.

    So no code of the loss runs in backward, after what it wrote was put back.
    """

    @staticmethod
    def forward(ctx: Any, losses: Tensor, *slopes_and_tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*slopes_and_tensors[: len(slopes_and_tensors) // 2])
        return losses

    @staticmethod
    def backward(ctx: Any, *scales: Tensor) -> Any:
        (scale,) = scales
        of_tensors = [
            slope * scale.view(-1, *[1] * (slope.ndim - 1)) for slope in ctx.saved_tensors
        ]
        return None, *[None] * len(of_tensors), *of_tensors
