"""Which layers have their gradients from one call: the built-in ones, and those that a user registered.

A layer is looked up by its exact type: a subclass may compute something else.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedlsg.gradients.calls import attention, recurrent
from fedlsg.gradients.calls.torch_func import Axes, by_torch_func
from fedlsg.gradients.formulas import calls
from fedlsg.gradients.formulas.layers import LAYERS

CallGradients = Callable[[Any, tuple[Any, ...], Any], Mapping[str, Tensor]]
"""``gradients(module, inputs, output_gradient)``, as ``register_layer`` explains it."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How the gradients of a type of layer are found.

    least: fewest dimensions of its first input. axes: the axis of the examples in each tensor of the inputs; by default
    the first one of the first tensor is checked. refusal: why a module of this type is refused, with the fix.
    by_torch_func: whether torch.func computes them, so that their share of the time is worth reporting.
    """

    gradients: Callable[[Any, tuple[Any, ...], Any], Mapping[str, Any]]
    least: Callable[[Any], int] = lambda module: 1
    axes: Callable[[Any, tuple[Any, ...]], Axes] = lambda module, inputs: (0,)
    refusal: Callable[[Any], str | None] = lambda module: None
    by_torch_func: bool = False


def conv_refusal(module: Any) -> str | None:
    """Formulas of Conv1d and Conv2d are for one group and padding with zeros."""
    if module.groups != 1:
        return f"groups={module.groups} has no formula; {by_subclass(type(module))}, set groups=1, or freeze it"
    if module.padding_mode != "zeros":
        other = by_subclass(type(module))
        return f"padding_mode={module.padding_mode!r} has no formula; pad with F.pad before it, {other}, or freeze it"
    return None


def by_subclass(type: type[nn.Module]) -> str:
    """How torch.func gives the gradients of a layer whose own type is built in."""
    own = f"My{type.__name__}"
    return (
        f"let torch.func compute its gradients: class {own}({shown(type)}): pass, then fedlsg.register_layer({own}), "
        f"and use {own} in its place"
    )


def shown(type: type[nn.Module]) -> str:
    """The name of a type in a user's code."""
    return f"nn.{type.__name__}" if type.__module__.startswith("torch.nn.") else type.__name__


def _embedding_refusal(module: nn.Embedding) -> str | None:
    if module.scale_grad_by_freq:
        return "scale_grad_by_freq counts rows over the batch, which mixes examples; set it to False"
    return None


def _statistics_refusal(module: Any) -> str | None:
    return "running statistics are of the batch; set track_running_stats=False" if module.track_running_stats else None


def _by_torch_func(dimensions: int) -> Kind:
    return Kind(gradients=by_torch_func, least=lambda module: dimensions, by_torch_func=True)


def _instance_norm(dimensions: int) -> Kind:
    return Kind(gradients=calls.instance_norm, least=lambda module: dimensions, refusal=_statistics_refusal)


_RECURRENT = Kind(
    gradients=recurrent.gradients, least=lambda module: 3, axes=recurrent.axes, refusal=recurrent.refusal,
    by_torch_func=True,
)  # fmt: skip
_TRANSPOSED_LINEAR = Kind(gradients=calls.transposed_linear, least=lambda module: 2)
BUILT_IN: Mapping[type[nn.Module], Kind] = {
    nn.Embedding: Kind(gradients=calls.embedding, refusal=_embedding_refusal),
    nn.Conv1d: Kind(gradients=calls.conv1d, least=lambda module: 3, refusal=conv_refusal),
    nn.RMSNorm: Kind(gradients=calls.rms_norm, least=lambda module: 1 + len(module.normalized_shape)),
    nn.InstanceNorm1d: _instance_norm(3),
    nn.InstanceNorm2d: _instance_norm(4),
    nn.InstanceNorm3d: _instance_norm(5),
    nn.Conv3d: _by_torch_func(5),
    nn.ConvTranspose2d: _by_torch_func(4),
    nn.MultiheadAttention: Kind(
        gradients=attention.gradients, least=lambda module: 3, axes=attention.axes, refusal=attention.refusal,
        by_torch_func=True,
    ),
    nn.LSTM: _RECURRENT,
    nn.GRU: _RECURRENT,
    nn.RNN: _RECURRENT,
}  # fmt: skip
_registered: dict[type[nn.Module], CallGradients] = {}


def register_layer(type: type[nn.Module], gradients: CallGradients = by_torch_func) -> None:
    """Make the gradients of a layer of your own known, for this process.

    ``gradients(module, inputs, output_gradient)`` returns the gradient of each example's loss with respect to each
    trainable parameter of the module, and of the modules inside it: a dict from the names of
    ``module.named_parameters()`` to tensors (B, *parameter shape).
    ``inputs``: the arguments of the call in the order of ``forward``, detached; B is the first dimension of the first
    tensor. ``output_gradient``: the gradient of the losses at the output, in the output's own structure; zeros where
    none arrived. It runs in backward, without gradient recording. Floating-point tensors have the type of the module's
    first trainable parameter.
    Without ``gradients``, torch.func computes them (``by_torch_func``): every tensor of the call has the examples on
    its first dimension, and the module draws no random numbers.
    What the function returns is clipped and made noisy as it is. Row b must be a function of example b alone: if it is
    wrong, training is worse, but C bounds it all the same; if it mixes examples, the epsilon is false.
    Types are exact: a subclass is another layer.
    Raises ValueError for a type that is built in or registered already, TypeError for what is no module type.
    """
    if not isinstance(type, _Type) or not issubclass(type, nn.Module):
        raise TypeError(f"expected a subclass of torch.nn.Module, got {type!r}: give the type, not a module")
    if not callable(gradients):
        raise TypeError(f"expected a function gradients(module, inputs, output_gradient), got {gradients!r}")
    if type in LAYERS or type in BUILT_IN or _is_transposed_linear(type):
        raise ValueError(f"{type.__name__} has built-in gradients; register a subclass of it under a name of its own")
    if type in _registered:
        raise ValueError(f"{type.__name__} is registered already; register a type once, next to its class")
    _registered[type] = gradients


def registered_layers() -> dict[type[nn.Module], CallGradients]:
    """What users registered in this process: gradient functions by type, in the order of registration."""
    return dict(_registered)


def kind_of(type: type[nn.Module]) -> Kind | None:
    """How the gradients of a type of layer are found from a call; None for a type without such."""
    if (found := BUILT_IN.get(type)) is not None:
        return found
    if type in _registered:
        return Kind(gradients=_registered[type], by_torch_func=_registered[type] is by_torch_func)
    return _TRANSPOSED_LINEAR if _is_transposed_linear(type) else None


def known_layers() -> str:
    """Names of all layers with gradients, for error messages."""
    kinds = [*LAYERS, *BUILT_IN, *_registered]
    return ", ".join(kind.__name__ for kind in kinds)


_Type = type


def _is_transposed_linear(type: type[nn.Module]) -> bool:
    """Whether this is Conv1D of transformers, which is not imported for the question."""
    home = sys.modules.get("transformers.pytorch_utils")
    return home is not None and type is getattr(home, "Conv1D", None)
