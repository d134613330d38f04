"""The sum of a batch's gradients when no example is clipped: one ordinary backward pass."""

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients.activation_storage import storage_of, watch
from fedlsg.gradients.batch import Batch, LossFunction, batch_size, force_eager, losses_of
from fedlsg.gradients.precision import FLOAT32, Numbers
from fedlsg.gradients.supported import Checked, check


def summable(frame: Frame) -> bool:
    """Whether the frame's coordinates are the parameters themselves, and none of them is weighted."""
    return not any(c.carried for c in frame.coordinates) and all(b.weight == 1 for b in frame.blocks)


def summed_gradient(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    checked: Checked | None = None,
    numbers: Numbers = FLOAT32,
) -> Float[Tensor, " kept"]:
    """Kept coordinates of the sum of the examples' gradients: the sum over rows of ``per_example_gradients``.

    Guarantees and errors as ``summed_gradients``.
    """
    each = summed_gradients(model, loss_fn, inputs, targets, frame, checked=checked, numbers=numbers)
    flat = torch.cat([g.flatten() for g in each])
    return flat if frame.kept == frame.size else flat[frame.indices.to(flat.device)]


def summed_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    checked: Checked | None = None,
    numbers: Numbers = FLOAT32,
) -> list[Tensor]:
    """The sum of the examples' gradients, one tensor for each whole parameter, in model order.

    Guarantee: no parameter's ``.grad`` changes. An empty batch, and a layer that is not reached, give zeros.
    Raises the errors of ``per_example_gradients`` for the model, and ValueError for losses of another shape than (B,).
    ``checked`` and ``numbers`` as there.
    """
    parameters = list((check(model, frame) if checked is None else checked).values())
    batch = batch_size(inputs, targets)
    if not batch:
        return [torch.zeros_like(p, requires_grad=False) for p in parameters]
    storage = storage_of(model, inputs, numbers)
    as_hooked = nullcontext() if storage is None else force_eager()
    with as_hooked, watch(storage, model), torch.enable_grad():
        losses = losses_of(model, loss_fn, inputs, targets, numbers, batch=batch, like=parameters[0])
        found = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
