"""nn.MultiheadAttention by torch.func. Its own ``out_proj`` is never called: its parameters count as the module's."""

from typing import Any

from torch import Tensor, nn

from fedlsg.gradients.calls.nested import tensors_in
from fedlsg.gradients.calls.torch_func import Axes, by_torch_func

Inputs = tuple[Any, ...]
"""query, key, value, key_padding_mask, need_weights, attn_mask, ..., as ``forward`` takes them."""


def refusal(module: nn.MultiheadAttention) -> str | None:
    """Dropout would be drawn again."""
    if module.dropout > 0 and module.training:
        return "its dropout cannot be repeated in backward; set dropout=0 on it (module.dropout = 0.0)"
    return None


def axes(module: nn.MultiheadAttention, inputs: Inputs) -> Axes:
    """The axis of the examples in query, key, value and the masks that are given.

    A mask (T, S) is shared. A mask (B heads, T, S) counts as one with the examples first.
    """
    batch = 0 if module.batch_first else 1
    mask = inputs[5] if len(inputs) > 5 else None
    padding: Axes = (0,) if len(inputs) > 3 and inputs[3] is not None else ()
    shared: Axes = (None,) if isinstance(mask, Tensor) and mask.ndim == 2 else ()
    return (batch, batch, batch, *padding, *shared, *((0,) if isinstance(mask, Tensor) and mask.ndim == 3 else ()))


def gradients(module: nn.MultiheadAttention, inputs: Inputs, output_gradient: Any) -> dict[str, Tensor]:
    """As ``by_torch_func``, with the masks in the form of one example."""
    where = axes(module, inputs)
    given = list(inputs)
    if len(given) > 5 and isinstance(given[5], Tensor) and given[5].ndim == 3:
        given[5] = given[5].unflatten(0, (-1, module.num_heads))
    outputs = tensors_in(output_gradient)
    back = [where[0], 0][: len(outputs)]
    return by_torch_func(module, tuple(given), output_gradient, forward=_attend, in_axes=where, out_axes=back)


def _attend(module: nn.MultiheadAttention, *inputs: Any) -> Any:
    given = list(inputs)
    if len(given) > 5 and isinstance(given[5], Tensor) and given[5].ndim == 4:
        given[5] = given[5].flatten(0, 1)
    return module(*given)
