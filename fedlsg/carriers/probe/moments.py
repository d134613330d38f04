"""Second moments of the probes' gradients, layer by layer.

Symbols: g (m, n) the gradient of one example in a weight, divided by the norm of its gradient in all parameters.
The probes pass in microbatches. Of each, every layer keeps what its sums need (``products``) until the norms are known.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.probe.products import Kept, keep, values
from fedlsg.frame import Coordinates, Frame, make_blocks
from fedlsg.gradients import (
    Batch,
    Factors,
    GhostGradients,
    LossFunction,
    batch_size,
    check,
    factored_gradients,
    trainable,
)

FIRST = 2
"""Examples of the first microbatch, which shows how much one example needs."""
MOST, KEPT = 128, 2**25
"""Examples of every other microbatch at most, and numbers that all layers keep of it at most (134 MB)."""

SMALLEST = 1e-30
"""Squared norms below that count as zero: their products are too small for float32."""


class Moments(NamedTuple):
    """A = sum g^T g (n, n) and B = sum g g^T (m, m) of one weight, in float32; a kernel is flattened."""

    A: Float[Tensor, "n n"]
    B: Float[Tensor, "m m"]


def second_moments(
    model: nn.Module, loss_fn: LossFunction, inputs: Batch, targets: Batch, carried: Sequence[str]
) -> dict[str, Moments]:
    """A and B of every carried weight over a batch of probes, by name, on the weight's device.

    ``inputs`` and ``targets`` as in ``per_example_gradients``; the model is in evaluation mode. Products and sums are
    in float32, norms in float64. A probe whose gradient is zero or not finite adds nothing.
    Guarantees: A and B have one trace. The same arguments give the same bits on one kind of processor with one number
    of threads. The model is not changed. Memory does not grow with the number of probes.
    Raises ValueError if no probe has a finite gradient other than zero, and what ``per_example_gradients`` raises.
    """
    coordinates = tuple(Coordinates(name=name, shape=tuple(W.shape)) for name, W in trainable(model).items())
    frame = Frame(coordinates=coordinates, blocks=make_blocks(coordinates))
    checked = check(model, frame)
    found = {name: _zeros(W) for name, W in checked.items() if name in carried}
    count, start, size, used = batch_size(inputs, targets), 0, FIRST, 0
    while start < count:
        x, y = (part_of(batch, start, start + size) for batch in (inputs, targets))
        gradients = factored_gradients(model, loss_fn, x, y, frame, factored=carried, checked=checked)
        named = dict(zip(checked, gradients, strict=True))
        del gradients
        start += size
        size = _size(named.values())
        used += _add(found, named)
    if not used:
        raise ValueError(
            f"none of the {count} probes has a finite gradient other than zero: the carriers would be arbitrary; check "
            "the weights (did training diverge?), the probe's inputs and the loss"
        )
    return found


def _zeros(W: Tensor) -> Moments:
    sizes = W.shape[1:].numel(), W.shape[0]
    return Moments(*(torch.zeros(k, k, device=W.device) for k in sizes))


def part_of(batch: Batch, start: int, stop: int) -> Batch:
    if isinstance(batch, Tensor):
        return batch[start:stop]
    return {name: tensor[start:stop] for name, tensor in batch.items()}


def _add(found: Mapping[str, Moments], gradients: dict[str, Tensor | GhostGradients | Factors]) -> int:
    """Add the sums of one microbatch to ``found``; how many examples were used. Empties ``gradients``."""
    layers: dict[str, Kept] = {}
    squares = []
    for name in list(gradients):
        each = gradients.pop(name)
        if isinstance(each, Factors):
            layers[name] = keep(each)
            squares.append(layers[name].squares())
        else:
            norms = each.norms() if isinstance(each, GhostGradients) else _norms(each)
            squares.append(norms.square())
    total = torch.stack(squares).sum(0)
    usable = total.isfinite() & (total > SMALLEST)
    whole = bool(usable.all())
    weights = total[usable].reciprocal().float()
    for name, layer in layers.items():
        for into, sums in zip(found[name], (layer if whole else layer.of(usable)).sums(weights), strict=True):
            into += sums
    return len(weights)


def _norms(gradient: Float[Tensor, "batch *shape"]) -> Float[Tensor, " batch"]:
    norms: Tensor = torch.linalg.vector_norm(gradient.flatten(1), dim=1, dtype=torch.float64)
    return norms


def _size(gradients: Iterable[object]) -> int:
    """Examples of the next microbatch, from the gradients of this one."""
    one = sum(values(each) for each in gradients if isinstance(each, Factors))
    return min(MOST, max(1, KEPT // max(1, one)))
