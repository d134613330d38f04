"""The sum of a batch's gradients where no example is clipped: one ordinary backward pass, nobody's own gradient."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.persample import Batch, LossFunction, batch_size, call
from fedlsg.supported import Checked, check


def summable(frame: Frame) -> bool:
    """Whether the frame's coordinates are those of the parameters themselves, none of them weighted."""
    return not any(c.carried for c in frame.coordinates) and all(b.weight == 1 for b in frame.blocks)


def summed_gradient(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    checked: Checked | None = None,
) -> Float[Tensor, " kept"]:
    """Kept coordinates of the sum of the examples' gradients: the sum over rows of ``per_example_gradients``.

    Guarantees and errors as ``summed_gradients``.
    """
    each = summed_gradients(model, loss_fn, inputs, targets, frame, checked=checked)
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
) -> list[Tensor]:
    """The same of whole parameters, each in its own shape, in model order.

    Guarantee: no parameter's ``.grad`` changes. An empty batch, and a layer that is not reached, give zeros. Raises
    what ``per_example_gradients`` raises for the model, and ValueError for losses of another shape than (B,).
    ``checked`` as there.
    """
    parameters = list((check(model, frame) if checked is None else checked).values())
    batch = batch_size(inputs, targets)
    if not batch:
        return [torch.zeros_like(p, requires_grad=False) for p in parameters]
    with torch.enable_grad():
        losses = loss_fn(call(model, inputs), targets)
        if losses.shape != (batch,):
            raise ValueError(f"expected one loss an example, shape ({batch},), got shape {tuple(losses.shape)}")
        found = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
