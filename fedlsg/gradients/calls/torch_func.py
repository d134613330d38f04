"""Per-example gradients of one module by torch.func: vmap over examples of the vjp of the module
alone.

The module is called again, example by example in one vectorised call, from the inputs that it had
in the forward pass. So it must be a function of its inputs and parameters: a module that draws
random numbers (dropout) is refused, because the draws would be others. This is for modules without
a formula, and costs more than a formula. Inputs and outputs are tensors in nested tuples, lists and
dicts: torch's own functions for these leave the tensors to the collector. nn.MultiheadAttention is
done here: its own ``out_proj`` is never called, so that its parameters count as the module's.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors, in order."""
    if isinstance(value, Tensor):
        return [value]
    items = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, tuple | list)
        else ()
    )
    return [t for item in items for t in tensors_in(item)]


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = copy.copy(value)
        for key, item in value.items():
            changed[key] = map_tensors(change, item)
        return changed
    if not isinstance(value, tuple | list) or not tensors_in(value):
        return value
    items = [map_tensors(change, item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


Axes = Sequence[int | None]
"""The axis of the examples in each tensor; None for a tensor that all examples share."""

_measured: list[list[float]] = []
"""Where ``by_torch_func`` notes its time, if somebody measures it. Backward may run in another
thread.
"""


@contextmanager
def measure() -> Iterator[list[float]]:
    """The seconds of every call of ``by_torch_func`` inside the context; meant for public
    examples.
    """
    noted: list[float] = []
    _measured.append(noted)
    try:
        yield noted
    finally:
        _measured.remove(noted)


def by_torch_func(
    module: nn.Module,
    inputs: tuple[Any, ...],
    output_gradient: Any,
    *,
    forward: Callable[..., Any] | None = None,
    in_axes: Axes | None = None,
    out_axes: Axes | None = None,
) -> dict[str, Tensor]:
    """Gradients (B, *shape) of a module's trainable parameters, for ``register_layer``.

    ``inputs`` and ``output_gradient`` as there. All tensors have the examples on the first axis,
    unless ``in_axes`` and ``out_axes`` say where they are in each tensor, in order.
    ``forward(module, *inputs)`` replaces the module's call.
    Raises ValueError for a tensor without dimensions; RuntimeError where the module draws random
    numbers, or where torch.func cannot follow it (``.item()``, an ``if`` on values, in-place
    changes of its own state).
    """
    start = time.perf_counter()
    given, g = tensors_in(inputs), tensors_in(output_gradient)
    if [t for t in (*given, *g) if t.ndim == 0]:
        raise ValueError(
            "a tensor of its call has shape (), and torch.func needs the examples on a dimension "
            "of each"
        )
    axes = [0] * len(given) if in_axes is None else list(in_axes)
    back = [0] * len(g) if out_axes is None else list(out_axes)
    parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    call = forward or _call

    def one(example: list[Tensor], cotangents: list[Tensor]) -> dict[str, Tensor]:
        alone = iter(
            [
                t if axis is None else t.unsqueeze(axis)
                for t, axis in zip(example, axes, strict=True)
            ]
        )
        arguments = map_tensors(lambda _: next(alone), inputs)

        def outputs(own: Mapping[str, Tensor]) -> list[Tensor]:
            output = functional_call(
                _Caller(module, call), {f"module.{k}": p for k, p in own.items()}, arguments
            )
            return [t for t in tensors_in(output) if t.is_floating_point()]

        pull_back = vjp(outputs, parameters)[1]
        gradients: dict[str, Tensor] = pull_back(
            [t.unsqueeze(a or 0) for t, a in zip(cotangents, back, strict=True)]
        )[0]
        return gradients

    # vmap would loop over the fused kernels
    with _without_hooks(module), sdpa_kernel(SDPBackend.MATH):
        result: dict[str, Tensor] = vmap(one, in_dims=(axes, back))(given, g)
    for noted in _measured:
        noted.append(time.perf_counter() - start)
    return result


class _Caller(nn.Module):
    """A module that calls another one by a function."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *inputs: Any) -> Any:
        return self.call(self.module, *inputs)


def _call(module: nn.Module, *inputs: Any) -> Any:
    return module(*inputs)


@contextmanager
def _without_hooks(module: nn.Module) -> Iterator[None]:
    """Switch the hooks of a module and of the modules inside it off: they belong to the forward
    pass.
    """
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    saved = [(m, name, getattr(m, name)) for m in module.modules() for name in names]
    try:
        for m, name, hooks in saved:
            m.__dict__[name] = type(hooks)()
        yield
    finally:
        for m, name, hooks in saved:
            m.__dict__[name] = hooks


Inputs = tuple[Any, ...]
"""query, key, value, key_padding_mask, need_weights, attn_mask, ..., as ``forward`` takes them."""


def attention_refusal(module: nn.MultiheadAttention) -> str | None:
    """Dropout would be drawn again."""
    if module.dropout > 0 and module.training:
        return (
            "its dropout cannot be repeated in backward; set dropout=0 on it (module.dropout = 0.0)"
        )
    return None


def attention_axes(module: nn.MultiheadAttention, inputs: Inputs) -> Axes:
    """The axis of the examples in query, key, value and the masks that are given.

    A mask (T, S) is shared. A mask (B heads, T, S) counts as one with the examples first.
    """
    batch = 0 if module.batch_first else 1
    mask = inputs[5] if len(inputs) > 5 else None
    padding: Axes = (0,) if len(inputs) > 3 and inputs[3] is not None else ()
    shared: Axes = (None,) if isinstance(mask, Tensor) and mask.ndim == 2 else ()
    return (
        batch,
        batch,
        batch,
        *padding,
        *shared,
        *((0,) if isinstance(mask, Tensor) and mask.ndim == 3 else ()),
    )


def attention_gradients(
    module: nn.MultiheadAttention, inputs: Inputs, output_gradient: Any
) -> dict[str, Tensor]:
    """As ``by_torch_func``, with the masks in the form of one example."""
    where = attention_axes(module, inputs)
    given = list(inputs)
    if len(given) > 5 and isinstance(given[5], Tensor) and given[5].ndim == 3:
        given[5] = given[5].unflatten(0, (-1, module.num_heads))
    outputs = tensors_in(output_gradient)
    back = [where[0], 0][: len(outputs)]
    return by_torch_func(
        module, tuple(given), output_gradient, forward=_attend, in_axes=where, out_axes=back
    )


def _attend(module: nn.MultiheadAttention, *inputs: Any) -> Any:
    given = list(inputs)
    if len(given) > 5 and isinstance(given[5], Tensor) and given[5].ndim == 4:
        given[5] = given[5].flatten(0, 1)
    return module(*given)
