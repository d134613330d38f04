"""The server's part of a round: sum, divide by a constant, Eq. 3, optimizer."""

import math
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.masks import frozen_count
from fedlsg.training.server_optimizer import ServerOptimizer
from fedlsg.training.update import move

AT_ONCE = 2**16


def aggregate(updates: Sequence[Float[Tensor, " kept"]]) -> Float[Tensor, " kept"]:
    """Sum of the clients' values, in the order given (client order), in float64.

    Raises ValueError for no update, or updates of different lengths.
    """
    lengths = {len(update) for update in updates}
    if len(lengths) != 1:
        raise ValueError(f"expected updates of one length, got {sorted(lengths)}")
    total = updates[0].cpu().to(torch.float64, copy=True)
    for update in updates[1:]:
        for sum_, piece in zip(total.split(AT_ONCE), update.cpu().split(AT_ONCE), strict=True):
            sum_ += piece.double()  # within the cache: twice as fast as a sum of two types
    return total


def sparsify(gradient: Tensor, W: Tensor, sparsity: float) -> Tensor:
    """The gradient of a weight without its floor(p size) entries of smallest abs(W) (Ito et al. 2023, sec. 4.4)."""
    if W.ndim < 2 or not sparsity:
        return gradient
    smallest = torch.argsort(W.detach().abs().flatten(), stable=True)[: frozen_count(W.numel(), sparsity)]
    return gradient.flatten().index_fill(0, smallest, 0.0).reshape(gradient.shape)


def server_step(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    total: Float[Tensor, " kept"],
    *,
    frame: Frame,
    divisor: float,
    server: ServerOptimizer,
) -> None:
    """One server update: divide by a configured constant, rebuild dW (Ito et al. 2023, Eq. 3), step the optimizer.

    ``divisor`` is public and fixed before the run (clients a round times q times the declared mean N_k): it must not
    depend on which clients reply, or on a batch. Raises ValueError unless it is positive.
    ``scheduler=None`` is for any torch optimizer: every parameter's ``.grad`` is written before its step and stays.
    """
    if not 0 < divisor < math.inf:
        raise ValueError(f"expected 0 < {divisor=} < inf")
    parameters = trainable(model)
    example = next(iter(parameters.values()))
    values = torch.empty(total.shape, dtype=widest(parameters.values()), device=example.device)
    for own, part in zip(values.split(AT_ONCE), total.split(AT_ONCE), strict=True):
        own.copy_(part / divisor)  # in runs: a second vector in float64 would be a step's largest tensor
    averaged = server.estimator == "averaged"
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        p.grad = None  # a stale gradient of the user's, of a frozen parameter too, would move it
    if scheduler is not None and linear_in_the_gradient(optimizer) and not server.sparsify_update:
        rates = {id(p): -float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        move(parameters, frame, values, {name: rates[id(p)] for name, p in parameters.items()}, averaged=averaged)
    else:
        for name, gradient in frame.gradients(values, averaged=averaged).items():
            p = parameters[name]
            p.grad = sparsify(gradient, p, server.sparsify_update).to(p.dtype)
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)


def widest(parameters: Iterable[Tensor]) -> torch.dtype:
    """The type that holds numbers of all parameters: theirs, where they have one."""
    return reduce(torch.promote_types, {p.dtype for p in parameters})


def linear_in_the_gradient(optimizer: Optimizer) -> bool:
    """Whether a step is W -= lr dW and no more, so that dW need not be formed: SGD without memory or decay."""
    return isinstance(optimizer, SGD) and not any(
        group["momentum"] or group["weight_decay"] or group["maximize"] for group in optimizer.param_groups
    )
