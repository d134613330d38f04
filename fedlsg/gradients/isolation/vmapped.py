"""The pass of a model whose code sees one example, run by ``vmap`` once for all examples.

Under ``vmap`` a module, hook or loss gets the tensors of ONE example, as a batch of one: a mean
over dimension 0 is the mean of one row, whatever the code does. Autograd records the pass outside
of ``vmap``, so that hooks and formulas of ``hooked_pass.hooks`` get the inputs and output gradients
of known layers as they get them in a pass over the batch.

known layers      (``layers_of``: their code is torch's) run on the batch itself, at the cost of a
                  pass over the batch
other parameters  are copied for each example: autograd gives the gradient of each copy
attributes        that forward writes are put back after the pass (``state``)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedlsg.gradients.calls.registry import Place, ReadElsewhereError
from fedlsg.gradients.calls.torch_func import map_tensors
from fedlsg.gradients.hooked_pass.call_layers import CallLayer, watch_call
from fedlsg.gradients.hooked_pass.hooked_layers import Layer
from fedlsg.gradients.hooked_pass.hooks import Pass, freeze, unfreeze
from fedlsg.gradients.hooked_pass.model_facts import Prepared
from fedlsg.gradients.hooked_pass.precision import without_autocast
from fedlsg.gradients.isolation.batched import (
    examples_alone,
    for_each_example,
    of_batch,
    of_example,
    outside,
)
from fedlsg.gradients.isolation.loss_on_rows import loss_of_one
from fedlsg.gradients.per_example import Given
from fedlsg.tensors import each

RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)
"""Known layers that torch has no rule for under ``vmap``."""
CALLS = (nn.Embedding, *RECURRENT, nn.Conv1d, nn.Conv3d)
"""Known layers whose gradients are a function of one call; others are copied."""


def layers_of(prepared: Prepared) -> list[Layer | CallLayer]:
    """The known layers of a model: those that run on the batch itself."""
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
            unfreeze(layer)
        step.due.clear()  # nodes hold their hooks, and the hooks hold the pass
        step.memories.clear()


def _forward(step: Pass, layer: Layer | CallLayer) -> Callable[..., Any]:
    """A replacement for the ``forward`` of a known layer, which runs on the tensors of the batch.

    It raises ReadElsewhereError where that is not possible, so that another pass copies the
    parameters: for a value that all examples share, inside another ``vmap``, and for several images
    of one example.
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
    """The blocks of a layer."""
    return layer.slots if isinstance(layer, Layer) else list(layer.slots_by_name.values())


def _on_batch(
    step: Pass, layer: Layer | CallLayer, names: list[str], args: Any, kwargs: Any
) -> Any:
    """The outputs of a layer from its inputs.

    Both are tensors of the batch, (B, *shape of one example's).
    """
    module = layer.module
    freeze(layer)
    if isinstance(module, RECURRENT):
        assert isinstance(layer, CallLayer)
        return _recurrent(step, layer, *args, **kwargs)
    x = args[0] if args else kwargs["input"]
    one = has_batch_of_one(module, x.shape[1:])
    if one is None:
        unfreeze(layer)
        raise ReadElsewhereError(names)  # copies of the weight see the images of one example each
    rows = x.squeeze(1) if one else x
    output = _watch(step, layer, rows, type(module).forward(module, rows))
    return output.unsqueeze(1) if one else output


def has_batch_of_one(module: nn.Module, example: torch.Size) -> bool | None:
    """Whether the first dimension of one example's input is a batch of one.

    None for several images of one example. Layers on positions take any dimensions before their
    last ones; convolutions also take an image without a batch dimension.
    """
    if not isinstance(module, nn.GroupNorm | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        least = len(module.normalized_shape) if isinstance(module, nn.LayerNorm) else 1
        return len(example) > least and example[0] == 1
    if not isinstance(module, nn.GroupNorm) and len(example) == len(module.kernel_size) + 1:
        return False
    return True if example[0] == 1 else None


def _watch(step: Pass, layer: Layer | CallLayer, x: Tensor, output: Tensor) -> Tensor:
    """The output of a layer, in the graph of the pass."""
    replaced: Tensor | None
    if isinstance(layer, Layer):
        replaced = step.on_output(layer, layer.module, (x,), {}, output)
        return output if replaced is None else replaced
    replaced = _watch_call(step, layer, (x.detach(),), output)
    return replaced


def _watch_call(step: Pass, layer: CallLayer, inputs: tuple[Any, ...], output: Any) -> Any:
    """The output of a call, in the graph of the pass; as it is where no gradients are recorded."""
    unfreeze(layer)
    if not torch.is_grad_enabled():
        return output
    step.count(layer)
    return watch_call(step, layer, inputs, output)


def _recurrent(step: Pass, layer: CallLayer, x: Tensor, hx: Any = None) -> Any:
    """LSTM, GRU and RNN: x (B, 1, T, n) or (B, T, 1, n), states (B, layers, 1, h)."""
    module: Any = layer.module
    example = 1 if module.batch_first else 2
    if x.ndim != 4 or x.shape[example] != 1:
        unfreeze(layer)
        raise ValueError(
            f"{layer.path} ({type(module).__name__}): expected one example with a batch dimension, "
            f"got shape {tuple(x.shape[1:])}; set isolation='rows'"
        )
    rows = x.squeeze(example)
    rows = rows if module.batch_first else rows.transpose(0, 1)
    states = map_tensors(lambda h: h.squeeze(2).transpose(0, 1).contiguous(), hx)
    arguments = (rows,) if hx is None else (rows, states)
    output = type(module).forward(module, *arguments)
    inputs = map_tensors(Tensor.detach, arguments)
    out, last = _watch_call(step, layer, inputs, output)
    out = (out if module.batch_first else out.transpose(0, 1)).unsqueeze(example)
    return out, map_tensors(lambda h: h.transpose(0, 1).unsqueeze(2), last)


def copied_places(prepared: Prepared) -> dict[str, list[Place]]:
    """Parameters that are copied for each example, with the modules that own them."""
    places = {name: list(of_name) for name, of_name in prepared.ways.uses.items()}
    for call in prepared.calls:
        if type(call.module) not in CALLS:
            for inner, slot in call.slots_by_name.items():
                path, _, attribute = inner.rpartition(".")
                places[slot.block.parameter] = [(call.module.get_submodule(path), attribute)]
    return places


def read_with(prepared: Prepared, places: Mapping[str, list[Place]]) -> set[str]:
    """Further parameters that must be copied: those of layers of which one parameter is copied.

    Such a layer does not run on the batch.
    """
    copied = {id(module) for of_name in places.values() for module, _ in of_name}
    known: list[Layer | CallLayer] = [*prepared.layers, *prepared.calls]
    layers = [layer for layer in known if id(layer.module) in copied]
    return {slot.block.parameter for layer in layers for slot in slots_of(layer)} - places.keys()


@contextmanager
def own_copies(places: Mapping[str, list[Place]], batch: int) -> Iterator[dict[str, Tensor]]:
    """Copies (B, *shape) of parameters, as leaves of the graph.

    Inside the context the modules may hold one example's copy; on exit they hold the parameters.
    """
    saved = [
        (module, name, module._parameters[name])
        for of_name in places.values()
        for module, name in of_name
    ]
    copies = {}
    for name, of_name in places.items():
        owner, own_name = of_name[0]  # every place holds the same parameter
        p = owner._parameters[own_name]
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

    own_loss: whether the loss is a user's code, which sees one example as well. torch's own losses
        get the outputs of the batch where these are one tensor with the batch first.
    """
    model, loss_fn = given.model, given.loss_fn
    gives_outputs: list[bool] = []  # whether ``of_one`` gives outputs, for one loss of the batch

    def of_one(copy: Mapping[str, Tensor], x: Any, y: Any) -> Tensor:
        for name, of_name in places.items():
            for module, attribute in of_name:
                module._parameters[attribute] = copy[name]  # type: ignore[assignment]

        def loss(outputs: Any, target: Any) -> Tensor:
            is_row = isinstance(outputs, Tensor) and outputs.shape[:1] == (1,)
            gives_outputs[:] = [is_row and not own_loss]
            result: Tensor = outputs if gives_outputs[0] else loss_of_one(loss_fn, outputs, target)
            return result

        inputs, target = (each(part, lambda t: t.unsqueeze(0)) for part in (x, y))
        forward = (lambda: model(**inputs)) if isinstance(inputs, dict) else (lambda: model(inputs))
        result: Tensor = given.precision.losses(forward, loss, target, given.like)
        return result

    detached = each(given.inputs, Tensor.detach)
    with sdpa_kernel(SDPBackend.MATH):
        results: Tensor = for_each_example(of_one)(dict(copies), detached, given.targets)
    if not gives_outputs[0]:
        return results
    with without_autocast(results.device.type):
        return loss_fn(results.squeeze(1), given.targets)
