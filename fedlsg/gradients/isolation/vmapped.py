"""The pass of a model whose code sees one example: ``vmap`` runs it on a batch of one, once for all
examples.

Under ``vmap`` a module, hook or loss gets the tensors of ONE example: a mean over dimension 0 is
the mean of one row, whatever the code does. Autograd records the pass outside of ``vmap``, so that
hooks and formulas of ``hooked_pass.hooks`` get the inputs and output gradients of known layers as
they get them in a pass over the batch.

known layers      (``KNOWN``: their code is torch's) run on the batch itself, at the cost of a pass
                  over the batch
other parameters  are copied for each example: autograd gives the gradient of each copy
attributes        that forward writes are put back after the pass (``state``)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedlsg.gradients.calls.registry import Place, ReadElsewhereError
from fedlsg.gradients.calls.torch_func import map_tensors
from fedlsg.gradients.hooked_pass.call_layers import CallLayer, watch_call
from fedlsg.gradients.hooked_pass.hooked_layers import Layer
from fedlsg.gradients.hooked_pass.hooks import Pass, freeze
from fedlsg.gradients.hooked_pass.model_facts import Prepared
from fedlsg.gradients.hooked_pass.precision import without_autocast
from fedlsg.gradients.isolation.alone import row_of
from fedlsg.gradients.isolation.batched import (
    examples_alone,
    for_each_example,
    of_batch,
    of_example,
    outside,
)
from fedlsg.gradients.isolation.state import forgetting
from fedlsg.gradients.per_example import Given
from fedlsg.tensors import each, fields_of

RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)
"""Known layers that torch has no rule for under ``vmap``."""
CALLS = (nn.Embedding, *RECURRENT, nn.Conv1d, nn.Conv3d)
"""Known layers whose gradients are a function of one call; others are copied."""


def layers_of(prepared: Prepared) -> list[Layer | CallLayer]:
    """The layers that run on the batch."""
    return [*prepared.layers, *(call for call in prepared.calls if type(call.module) in CALLS)]


@contextmanager
def known_layers(step: Pass, prepared: Prepared) -> Iterator[None]:
    """Inside, known layers run on the batch, and give their blocks to the pass."""
    layers = layers_of(prepared)
    try:
        for layer in layers:
            layer.module.__dict__["forward"] = _forward(step, layer)
        yield
    finally:
        for layer in layers:
            layer.module.__dict__.pop("forward", None)
            for p in layer.parameters:
                p.requires_grad_(True)
        step.due.clear()  # nodes hold their hooks, and the hooks hold the pass
        step.memories.clear()


def _forward(step: Pass, layer: Layer | CallLayer) -> Callable[..., Any]:
    """What stands in for the ``forward`` of a known layer: it runs on the tensors of the batch.

    Raises ReadElsewhereError, so that the parameters are copied in another pass, where that is not
    possible: of a value that all examples share, inside another ``vmap``, or of several images of
    one example.
    """
    names = [slot.block.parameter for slot in slots_of(layer)]

    def forward(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs["input"]
        if not examples_alone(x):
            raise ReadElsewhereError(names)
        with outside() as level:
            batch = partial(of_batch, level=level, size=step.batch)
            result = _on_batch(
                step, layer, names, map_tensors(batch, args), map_tensors(batch, kwargs)
            )
            return map_tensors(partial(of_example, level=level), result)

    return forward


def slots_of(layer: Layer | CallLayer) -> Sequence[Any]:
    return layer.slots if isinstance(layer, Layer) else list(layer.slots.values())


def _on_batch(
    step: Pass, layer: Layer | CallLayer, names: list[str], args: Any, kwargs: Any
) -> Any:
    """The outputs of a layer, (B, *output of one example), from its inputs, (B, *input of one
    example).
    """
    module = layer.module
    freeze(layer)
    if isinstance(module, RECURRENT):
        assert isinstance(layer, CallLayer)
        return _recurrent(step, layer, *args, **kwargs)
    x = args[0] if args else kwargs["input"]
    alone = has_batch_of_one(module, x.shape[1:])
    # an example became several images: each copy of the weight sees those of its own
    if alone is None:
        _unfreeze(layer)
        raise ReadElsewhereError(names)
    given = x.squeeze(1) if alone else x
    output = _watched(step, layer, given, type(module).forward(module, given))
    return output.unsqueeze(1) if alone else output


def has_batch_of_one(module: nn.Module, example: torch.Size) -> bool | None:
    """Whether the first dimension of one example's input is a batch of one; None for a batch of
    several images.

    Layers on positions take any dimensions before their last ones.
    """
    if not isinstance(module, nn.GroupNorm | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        least = len(module.normalized_shape) if isinstance(module, nn.LayerNorm) else 1
        return len(example) > least and example[0] == 1
    if not isinstance(module, nn.GroupNorm) and len(example) == len(module.kernel_size) + 1:
        return False
    return True if example[0] == 1 else None


def _watched(step: Pass, layer: Layer | CallLayer, x: Tensor, output: Tensor) -> Tensor:
    if isinstance(layer, Layer):
        watched = step.on_output(layer, layer.module, (x,), {}, output)
        return output if watched is None else watched
    called: Tensor = _watched_call(step, layer, (x.detach(),), output)
    return called


def _watched_call(step: Pass, layer: CallLayer, inputs: tuple[Any, ...], output: Any) -> Any:
    _unfreeze(layer)
    if not torch.is_grad_enabled():
        return output
    step.count(layer)
    return watch_call(step, layer, inputs, output)


def _unfreeze(layer: Layer | CallLayer) -> None:
    for p in layer.parameters:
        p.requires_grad_(True)


def _recurrent(step: Pass, layer: CallLayer, x: Tensor, hx: Any = None) -> Any:
    """LSTM, GRU and RNN: x (B, 1, T, n) or (B, T, 1, n), states (B, layers, 1, h)."""
    module: Any = layer.module
    example = 1 if module.batch_first else 2
    if x.ndim != 4 or x.shape[example] != 1:
        _unfreeze(layer)
        raise ValueError(
            f"{layer.path} ({type(module).__name__}): expected one example with a batch dimension, "
            f"got shape {tuple(x.shape[1:])}; set isolation='rows'"
        )
    rows = x.squeeze(example)
    rows = rows if module.batch_first else rows.transpose(0, 1)
    states = map_tensors(lambda h: h.squeeze(2).transpose(0, 1).contiguous(), hx)
    given = (rows,) if hx is None else (rows, states)
    output = type(module).forward(module, *given)
    inputs = map_tensors(Tensor.detach, given)
    out, last = _watched_call(step, layer, inputs, output)
    out = (out if module.batch_first else out.transpose(0, 1)).unsqueeze(example)
    return out, map_tensors(lambda h: h.transpose(0, 1).unsqueeze(2), last)


def copied_places(prepared: Prepared) -> dict[str, list[Place]]:
    """Parameters that are copied for each example, with the modules that own them."""
    places = {name: list(of_name) for name, of_name in prepared.ways.uses.items()}
    for call in prepared.calls:
        if type(call.module) not in CALLS:
            for inner, slot in call.slots.items():
                path, _, attribute = inner.rpartition(".")
                places[slot.block.parameter] = [(call.module.get_submodule(path), attribute)]
    return places


def read_with(prepared: Prepared, places: Mapping[str, list[Place]]) -> set[str]:
    """Other parameters of known layers of which one is copied: such a layer does not run on the
    batch.
    """
    copied = {id(module) for of_name in places.values() for module, _ in of_name}
    known: list[Layer | CallLayer] = [*prepared.layers, *prepared.calls]
    layers = [layer for layer in known if id(layer.module) in copied]
    return {slot.block.parameter for layer in layers for slot in slots_of(layer)} - places.keys()


@contextmanager
def own_copies(places: Mapping[str, list[Place]], batch: int) -> Iterator[dict[str, Tensor]]:
    """Copies (B, *shape) of parameters, leaves of the graph; inside, the modules may hold one
    example's copy.
    """
    saved = [
        (module, name, module._parameters[name])
        for of_name in places.values()
        for module, name in of_name
    ]
    copies = {}
    for name, of_name in places.items():
        p = of_name[0][0]._parameters[of_name[0][1]]
        assert p is not None
        copies[name] = p.detach().expand(batch, *p.shape).requires_grad_()
    try:
        yield copies
    finally:
        for module, name, p in saved:
            module._parameters[name] = p


def isolated_losses(
    given: Given, places: Mapping[str, list[Place]], copies: Mapping[str, Tensor], *, own_loss: bool
) -> Tensor:
    """The loss of each example, (B,), from passes of one example each.

    ``own_loss``: whether the loss is a user's code, which sees one example as well. torch's own
    losses get the outputs of the batch where these are one tensor with the batch first.
    """
    model, loss_fn = given.model, given.loss_fn
    whole: list[bool] = []

    def of_one(copy: Mapping[str, Tensor], x: Any, y: Any) -> Tensor:
        for name, found in places.items():
            for module, attribute in found:
                module._parameters[attribute] = copy[name]  # type: ignore[assignment]

        def ending(outputs: Any, one_target: Any) -> Tensor:
            whole[:] = [not own_loss and isinstance(outputs, Tensor) and _one_row(outputs)]
            made: Tensor = outputs if whole[0] else _one_loss(loss_fn, outputs, one_target)
            return made

        inputs, target = (each(part, lambda t: t.unsqueeze(0)) for part in (x, y))
        forward = (lambda: model(**inputs)) if isinstance(inputs, dict) else (lambda: model(inputs))
        made: Tensor = given.precision.losses(forward, ending, target, given.like)
        return made

    detached = each(given.inputs, Tensor.detach)
    with sdpa_kernel(SDPBackend.MATH):
        made: Tensor = for_each_example(of_one)(dict(copies), detached, given.targets)
    if not whole[0]:
        return made
    with without_autocast(made.device.type):
        return loss_fn(made.squeeze(1), given.targets)


def _one_row(outputs: Tensor) -> bool:
    return outputs.ndim > 0 and outputs.shape[0] == 1


def _one_loss(loss_fn: Callable[[Any, Any], Tensor], outputs: Any, target: Any) -> Tensor:
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

    Under ``vmap``, or of one row after the other where torch has no rule for the loss. Raises
    ValueError for outputs that are not tensors with the batch first.
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
        filled = iter(rows)
        parts = [next(filled) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return _one_loss(loss_fn, tree_unflatten(parts, spec), y)

    losses, gradients = [], []
    if loss_fn not in _by_rows:
        alone = [t.unsqueeze(1) for t in tensors], each(targets, lambda t: t.unsqueeze(1))
        for _ in range(2):  # a library that the first call imports may make generators
            with suppress(RuntimeError), forgetting(loss_fn, together=True):
                at_once: Tensor = for_each_example(of_one)(*alone)
                return at_once
        _by_rows.add(loss_fn)
    with forgetting(loss_fn) as put_back:
        for b in range(count):
            target = each(targets, partial(row_of, number=b))
            rows = [row_of(t.detach(), b).requires_grad_(t.requires_grad) for t in tensors]
            loss = of_one(rows, target)
            needed = [row for row in rows if row.requires_grad and loss.requires_grad]
            found = torch.autograd.grad(loss, needed, allow_unused=True) if needed else ()
            by_row = {id(row): gradient for row, gradient in zip(needed, found, strict=True)}
            gradients.append([by_row.get(id(row)) for row in rows])
            losses.append(loss.detach())
            put_back()
    slopes = [
        torch.cat([torch.zeros_like(t[:1]) if g is None else g for g in of_rows])
        for t, of_rows in zip(tensors, zip(*gradients, strict=True), strict=True)
    ]
    total: Tensor = _WithSlopes.apply(torch.stack(losses), *slopes, *tensors)
    return total


class _WithSlopes(torch.autograd.Function):
    """Losses whose gradients are known: code of a loss that runs in backward has run before, while
    what it wrote was put back.
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
