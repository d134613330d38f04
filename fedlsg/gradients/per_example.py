"""The gradient of each example of a batch, in the coordinates of a frame.

How data flows through this package:
    batch       inputs, targets, losses
    plan        which layers get hooks, and which blocks of the frame each one computes
    hooks       one pass: forward hooks call ``remember``, backward hooks call ``form_block``
    remember    forward: what a layer keeps of its input and output
    blocks      backward: the layer's blocks, from that and from the gradient at its output
    formulas    the products that these two call, one class for each type of layer
``check`` refuses what has no such gradient, before anything is computed.

Reads private data, and what it returns is not private: clip it and add noise before anything is released.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients.activation_storage import storage_of, watch
from fedlsg.gradients.batch import Batch, LossFunction, batch_size, force_eager, losses_of
from fedlsg.gradients.formulas.ghost import GhostGradients
from fedlsg.gradients.hooks import Pass, hook_layers
from fedlsg.gradients.precision import FLOAT32, Numbers
from fedlsg.gradients.supported import Checked, check


def per_example_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    checked: Checked | None = None,
    numbers: Numbers = FLOAT32,
) -> list[Float[Tensor, "batch kept"]]:
    """Kept coordinates of each example's gradient, one tensor a block, in the order of ``frame.blocks``.

    ``inputs`` is a tensor or a dict of keyword tensors, batch first. ``loss_fn(outputs, targets)`` must give one
    loss an example, shape (B,): a mean would scale every gradient by 1 / B.
    Guarantee, for a model that treats examples independently (``check_independent``): row i is a function of example i
    alone. The (m, n) gradient of a carried weight is never formed. No parameter's ``.grad`` or ``requires_grad``
    changes, even if an error is raised. A layer that the forward pass does not reach gives zeros. An empty batch gives
    tensors of shape (0, kept), and the model is not called. A loss that is not finite affects its own row only.
    Raises UnsupportedLayerError for what ``check`` refuses, and for a layer that is called twice, whose input is
    not batch first, whose input changes in place after the call, or whose parameters are used outside its call;
    ValueError for losses of another shape.
    ``checked``: the result of ``check(model, frame)``, if neither has changed since; by default it is called here.
    ``numbers``: the precision of the pass. The blocks have the type of the parameters in any case.
    """
    found = block_gradients(model, loss_fn, inputs, targets, frame, ghost=False, checked=checked, numbers=numbers)
    return [value.flatten(1) for value in found if isinstance(value, Tensor)]


def block_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    ghost: bool = True,
    checked: Checked | None = None,
    numbers: Numbers = FLOAT32,
) -> list[Float[Tensor, "batch *kept"] | GhostGradients]:
    """As ``per_example_gradients``, but not flattened: each block has the memory order that its product gave it.

    With ``ghost=True``, blocks for which ghost clipping is cheaper are returned as ``GhostGradients``.
    """
    parameters = check(model, frame) if checked is None else checked
    batch = batch_size(inputs, targets)
    like = next(iter(parameters.values()))
    storage = storage_of(model, inputs, numbers)
    step = Pass(batch=batch, blocks=len(frame.blocks), ghost=ghost, numbers=numbers, storage=storage)
    if batch:
        with force_eager(), hook_layers(model, frame, step, parameters), watch(storage, model), torch.enable_grad():
            losses = losses_of(model, loss_fn, inputs, targets, numbers, batch=batch, like=like)
            step.backward(losses, parameters)
    return [like.new_zeros(batch, b.kept) if v is None else v for b, v in zip(frame.blocks, step.values, strict=True)]
