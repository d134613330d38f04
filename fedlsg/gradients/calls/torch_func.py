"""Per-example gradients of one module by torch.func: the module's vjp under vmap over examples.

The module is called again, example by example in one vectorised call, from the inputs that it had
in the forward pass. So it must be a function of its inputs and parameters: a module that draws
random numbers (dropout) is refused, because the draws would be others. This is for modules without
a formula, and costs more than a formula.

Inputs and outputs are tensors in nested tuples, lists and dicts (``tensors_in``, ``map_tensors``).
torch's own functions for such structures keep tensors alive until garbage collection.
nn.MultiheadAttention is here, too: it never calls its own ``out_proj``, so that the parameters of
``out_proj`` count as those of the attention.
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
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [t for item in value for t in tensors_in(item)]


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The same tuples, lists and dicts, with ``change(t)`` in place of each tensor t."""
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

_time_lists: list[list[float]] = []
"""A list for each running ``measure``, to which ``by_torch_func`` adds its seconds. No context
variable, because backward may run in another thread.
"""


@contextmanager
def measure() -> Iterator[list[float]]:
    """The seconds of each call of ``by_torch_func`` inside the context, for public examples."""
    seconds: list[float] = []
    _time_lists.append(seconds)
    try:
        yield seconds
    finally:
        _time_lists.remove(seconds)


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
    tensors, g = tensors_in(inputs), tensors_in(output_gradient)
    if any(t.ndim == 0 for t in (*tensors, *g)):
        raise ValueError(
            "a tensor of its call has shape (), and torch.func needs the examples on a dimension "
            "of each"
        )
    axes = [0] * len(tensors) if in_axes is None else list(in_axes)
    g_axes = [0] * len(g) if out_axes is None else list(out_axes)
    parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    caller = _Caller(module, forward or _call)

    def gradients_of(example: list[Tensor], cotangents: list[Tensor]) -> dict[str, Tensor]:
        pairs = zip(example, axes, strict=True)
        rows = iter([t if axis is None else t.unsqueeze(axis) for t, axis in pairs])
        arguments = map_tensors(lambda _: next(rows), inputs)

        def outputs(own: Mapping[str, Tensor]) -> list[Tensor]:
            named = {f"module.{name}": p for name, p in own.items()}
            output = functional_call(caller, named, arguments)
            return [t for t in tensors_in(output) if t.is_floating_point()]

        pull_back = vjp(outputs, parameters)[1]
        pairs = zip(cotangents, g_axes, strict=True)
        gradients: dict[str, Tensor]
        (gradients,) = pull_back([t.unsqueeze(axis or 0) for t, axis in pairs])
        return gradients

    # vmap would loop over the fused kernels
    with _without_hooks(module), sdpa_kernel(SDPBackend.MATH):
        result: dict[str, Tensor] = vmap(gradients_of, in_dims=(axes, g_axes))(tensors, g)
    for seconds in _time_lists:
        seconds.append(time.perf_counter() - start)
    return result


class _Caller(nn.Module):
    """A module that calls another module by a function, for ``functional_call``."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *inputs: Any) -> Any:
        return self.call(self.module, *inputs)


def _call(module: nn.Module, *inputs: Any) -> Any:
    return module(*inputs)


@contextmanager
def _without_hooks(module: nn.Module) -> Iterator[None]:
    """Inside, the hooks of a module and of the modules inside it are off.

    They belong to the forward pass.
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
    """Why attention with dropout is refused, with the fix; None without dropout."""
    if module.dropout == 0 or not module.training:
        return None
    return "its dropout cannot be repeated in backward; set dropout=0 on it (module.dropout = 0.0)"


def attention_axes(module: nn.MultiheadAttention, inputs: Inputs) -> Axes:
    """The axis of the examples in query, key, value and the masks that are given.

    A mask (T, S) is shared. A mask (B heads, T, S) counts as one with the examples first.
    """
    batch = 0 if module.batch_first else 1
    axes: list[int | None] = [batch] * 3
    if len(inputs) > 3 and inputs[3] is not None:
        axes.append(0)
    mask = inputs[5] if len(inputs) > 5 else None
    if isinstance(mask, Tensor):
        axes.append(0 if mask.ndim == 3 else None)
    return axes


def attention_gradients(
    module: nn.MultiheadAttention, inputs: Inputs, output_gradient: Any
) -> dict[str, Tensor]:
    """As ``by_torch_func``; a mask (B heads, T, S) goes there as (B, heads, T, S)."""
    in_axes = attention_axes(module, inputs)
    arguments = list(inputs)
    if len(arguments) > 5 and isinstance(arguments[5], Tensor) and arguments[5].ndim == 3:
        arguments[5] = arguments[5].unflatten(0, (-1, module.num_heads))
    out_axes = [in_axes[0], 0][: len(tensors_in(output_gradient))]  # output, and weights if asked
    return by_torch_func(
        module,
        tuple(arguments),
        output_gradient,
        forward=_attend,
        in_axes=in_axes,
        out_axes=out_axes,
    )


def _attend(module: nn.MultiheadAttention, *inputs: Any) -> Any:
    """The module's call; a mask (B, heads, T, S) gets the form that the module takes."""
    arguments = list(inputs)
    if len(arguments) > 5 and isinstance(arguments[5], Tensor) and arguments[5].ndim == 4:
        arguments[5] = arguments[5].flatten(0, 1)
    return module(*arguments)
