"""The way in which each trainable parameter gets its per-example gradients: layer, call or use.

layer   a type in ``LAYERS``, hooked as in ``hooked_layers``
call    a module that ``kind_of`` knows. Its gradients are a function of one call, and include those
        of the modules inside it.
use     every other parameter (a class token, a scale, a shared weight, one that is read next to its
        layer): ``uses``

A layer whose gradients come from one call is built in, or registered by a user. It is looked up by
its exact type: a subclass may compute something else. For layers of torch without an entry,
torch.func computes them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import is_parametrized

from fedlsg.gradients.calls import recurrent
from fedlsg.gradients.calls.torch_func import (
    Axes,
    attention_axes,
    attention_gradients,
    attention_refusal,
    by_torch_func,
)
from fedlsg.gradients.formulas import call_formulas
from fedlsg.gradients.formulas.layers import LAYERS, has_formulas


class UnsupportedLayerError(ValueError):
    """A layer or parameter without per-example gradients.

    The message says which, why, and what to do.
    """


class ReadElsewhereError(UnsupportedLayerError):
    """Parameters that were used outside of their layers' calls.

    Their gradient cannot be split by example there. names: of the parameters.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        super().__init__(
            f"{', '.join(names)}: used outside of its own layer's call, where its gradient cannot "
            "be split by example; call the layer instead of reading its weight (F.linear(x, "
            "layer.weight), layer.forward(x), a penalty in the loss), or freeze it"
        )


def unsupported(path: str, module: nn.Module, reason: str) -> UnsupportedLayerError:
    """The error that names a module, its type, and the reason with its fix."""
    return UnsupportedLayerError(
        f"{path or 'the model itself'} ({type(module).__name__}): {reason}"
    )


CallGradients = Callable[[Any, tuple[Any, ...], Any], Mapping[str, Tensor]]
"""``gradients(module, inputs, output_gradient)``, as ``register_layer`` explains it."""


SHARED = (nn.Linear, nn.Embedding)
"""Layers whose weight may be shared, or read by a subclass' own code. It is then followed by its
uses.
"""
USED_ALONE = (nn.ParameterList, nn.ParameterDict)
"""Modules of torch without a layer's computation: their parameters are used elsewhere
(``uses``).
"""
STATISTICS = (_BatchNorm, _InstanceNorm)
"""Layers that may mix examples: only a formula is right for them."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How the gradients of a type of layer are computed from one call.

    The fields are functions of a module, and partly of the inputs of its call.
    gradients: of each example; ``gradients(module, inputs, output_gradient)``.
    least: fewest dimensions of the first input.
    axes: the axis of the examples in each tensor of the inputs; by default only the first tensor is
        checked, on its first axis.
    size: the number of examples, if no axis has it; None if one does.
    refusal: why a module of this type is refused, with the fix; None if it is not.
    positions: whether an input without a batch may get one.
    by_torch_func: whether torch.func computes the gradients, so that its share of the time is worth
        reporting.
    """

    gradients: Callable[[Any, tuple[Any, ...], Any], Mapping[str, Any]]
    least: Callable[[Any], int] = lambda module: 1
    axes: Callable[[Any, tuple[Any, ...]], Axes] = lambda module, inputs: (0,)
    size: Callable[[Any, tuple[Any, ...]], int | None] = lambda module, inputs: None
    refusal: Callable[[Any], str | None] = lambda module: None
    positions: bool = False
    by_torch_func: bool = False


def type_name(type: type[nn.Module]) -> str:
    """The name of a type in a user's code, for messages."""
    return f"nn.{type.__name__}" if type.__module__.startswith("torch.nn.") else type.__name__


def _table_refusal(module: nn.Embedding | nn.EmbeddingBag) -> str | None:
    if not module.scale_grad_by_freq:
        return None
    return "scale_grad_by_freq counts rows over the batch, which mixes examples; set it to False"


def _statistics_refusal(module: Any) -> str | None:
    if not module.track_running_stats:
        return None
    return "running statistics are of the batch; set track_running_stats=False"


def _bag_axes(module: nn.EmbeddingBag, inputs: tuple[Any, ...]) -> Axes:
    """Row numbers (B, T) have the examples; those of all bags on one axis do not."""
    return (0,) if inputs[0].ndim == 2 else (None,)


def _bag_count(module: nn.EmbeddingBag, inputs: tuple[Any, ...]) -> int | None:
    """The number of bags by their offsets; None for row numbers (B, T)."""
    return None if inputs[0].ndim == 2 else len(inputs[1]) - module.include_last_offset


def _dimensions(module: nn.Module) -> int:
    """Fewest dimensions of the input of a layer that torch.func computes."""
    if isinstance(module, _ConvNd):
        return len(module.kernel_size) + 2
    if isinstance(module, nn.LayerNorm):
        return 1 + len(module.normalized_shape)
    return 2 if isinstance(module, nn.Linear | nn.Bilinear | nn.GroupNorm) else 1


_CONVOLUTION = Kind(gradients=call_formulas.convolution, least=_dimensions)
_INSTANCE_NORM = Kind(
    gradients=call_formulas.instance_norm,
    least=lambda module: module._get_no_batch_dim() + 1,
    refusal=_statistics_refusal,
)
_RECURRENT = Kind(
    gradients=recurrent.gradients,
    least=lambda module: 3,
    axes=recurrent.axes,
    size=recurrent.size,
    refusal=recurrent.refusal,
    by_torch_func=True,
)
_CELL = Kind(gradients=recurrent.cell, least=lambda module: 2, by_torch_func=True)
BUILT_IN: Mapping[type[nn.Module], Kind] = {
    nn.Embedding: Kind(gradients=call_formulas.embedding, refusal=_table_refusal),
    nn.EmbeddingBag: Kind(
        gradients=call_formulas.embedding_bag,
        axes=_bag_axes,
        size=_bag_count,
        refusal=_table_refusal,
    ),
    nn.RMSNorm: Kind(
        gradients=call_formulas.rms_norm,
        least=lambda module: 1 + len(module.normalized_shape),
        positions=True,
    ),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _INSTANCE_NORM),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CONVOLUTION),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _CONVOLUTION),
    nn.MultiheadAttention: Kind(
        gradients=attention_gradients,
        least=lambda module: 3,
        axes=attention_axes,
        refusal=attention_refusal,
        by_torch_func=True,
    ),
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), _RECURRENT),
    **dict.fromkeys((nn.LSTMCell, nn.GRUCell, nn.RNNCell), _CELL),
}
"""Layers with a function of their call. Convolutions that ``LAYERS`` has formulas for are not
looked up here.
"""
OWN_AXES = (nn.RNNBase, nn.MultiheadAttention, nn.RNNCellBase)
"""Layers with examples on an axis of their own choice, or that torch.func cannot follow: a subclass
with another ``forward`` is refused."""
GENERAL = Kind(gradients=by_torch_func, least=_dimensions, by_torch_func=True)
"""Layers of torch without an entry."""
_registered: dict[type[nn.Module], CallGradients] = {}
"""The gradient functions that users registered, by type."""


def register_layer(type: type[nn.Module], gradients: CallGradients = by_torch_func) -> None:
    """Make the gradients of a layer of your own known, for this process.

    ``gradients(module, inputs, output_gradient)`` returns the gradient of each example's loss with
    respect to each trainable parameter of the module, and of the modules inside it: a dict from the
    names of ``module.named_parameters()`` to tensors (B, *parameter shape).
    ``inputs``: the arguments of the call in the order of ``forward``, detached; B is the first
    dimension of the first tensor. ``output_gradient``: the gradient of the losses at the output, in
    the output's own structure; zeros where none arrived. It runs in backward, without gradient
    recording. Floating-point tensors have the type of the module's first trainable parameter.
    Without ``gradients``, torch.func computes them (``by_torch_func``): every tensor of the call
    has the examples on its first dimension, and the module draws no random numbers. What the
    function returns is clipped and made noisy as it is. Row b must be a function of example b
    alone: if it is wrong, training is worse, but C bounds it all the same; if it mixes examples,
    the epsilon is false.
    Types are exact: a subclass is another layer.
    Raises ValueError for a type that is built in or registered already, TypeError for what is no
    module type.
    """
    if not isinstance(type, _Type) or not issubclass(type, nn.Module):
        raise TypeError(
            f"expected a subclass of torch.nn.Module, got {type!r}: give the type, not a module"
        )
    if not callable(gradients):
        raise TypeError(
            f"expected a function gradients(module, inputs, output_gradient), got {gradients!r}"
        )
    if type in LAYERS or type in BUILT_IN or type.__module__ == "transformers.pytorch_utils":
        raise ValueError(
            f"{type.__name__} has built-in gradients; register a subclass of it under a name of "
            "its own"
        )
    if type in _registered:
        raise ValueError(
            f"{type.__name__} is registered already; register a type once, next to its class"
        )
    _registered[type] = gradients


def registered_layers() -> dict[type[nn.Module], CallGradients]:
    """The gradient functions that users registered in this process, by type, in their order."""
    return dict(_registered)


def kind_of(module: nn.Module) -> Kind | None:
    """How a module's gradients are computed from its call.

    None for a module with formulas in ``LAYERS``, for one without parameters, and for one whose
    parameters are followed by their uses.
    """
    layer_type = type(module)
    if layer_type in _registered:
        return Kind(
            gradients=_registered[layer_type],
            by_torch_func=_registered[layer_type] is by_torch_func,
        )
    if has_formulas(module):
        return None
    if (kind := BUILT_IN.get(layer_type)) is not None and "forward" not in vars(module):
        return kind
    return _without_formula(module) if module._parameters or is_parametrized(module) else None


def _without_formula(module: nn.Module) -> Kind | None:
    """The kind of a module that is neither registered nor built in by its exact type.

    ``GENERAL`` (torch.func) for layers of torch without an entry, for subclasses, and for layers
    with parametrized weights. None for modules whose parameters are followed by their uses.
    """
    layer_type: Any = type(module)
    if isinstance(module, (*STATISTICS, *USED_ALONE)) or not any(
        p.requires_grad for p in module.parameters()
    ):
        return None
    if isinstance(module, OWN_AXES):
        base: Any = next(kind for kind in layer_type.__mro__ if kind in BUILT_IN)
        has_own_forward = layer_type.forward is not base.forward or "forward" in vars(module)
        return None if has_own_forward else BUILT_IN[base]
    is_subclass = isinstance(module, (*LAYERS, *BUILT_IN)) and not isinstance(module, SHARED)
    of_torch = layer_type.__module__.startswith("torch.nn.")
    return GENERAL if is_subclass or of_torch else None


_Type = type  # ``register_layer`` has a parameter ``type``


Place = tuple[nn.Module, str]
"""A module and its own name of a parameter."""


@dataclass(frozen=True, kw_only=True)
class Ways:
    """The names of trainable parameters by the way in which they get their gradients.

    calls: names of the parameters of each call, by the path of its module.
    uses: all places of each parameter that is followed by its uses, by its name.
    All others are parameters of layers.
    """

    calls: Mapping[str, list[str]] = field(default_factory=dict)
    uses: Mapping[str, list[Place]] = field(default_factory=dict)

    @property
    def others(self) -> set[str]:
        """All parameters that get their gradients by calls or uses, and not by layers."""
        return {name for names in self.calls.values() for name in names} | self.uses.keys()


def ways_of(model: nn.Module, read: Collection[str] = ()) -> Ways:
    """The way of every trainable parameter of a model; a shared one has its first name.

    read: parameters that are followed by their uses in any case.
    """
    if not read and _by_layers(model, set()):
        return BY_LAYERS
    places: dict[nn.Parameter, list[tuple[str, str | None, Place]]] = {}
    for name, call, place in _places(model, "", None):
        places.setdefault(place[0]._parameters[place[1]], []).append((name, call, place))  # type: ignore[arg-type]
    calls: dict[str, list[str]] = {}
    uses: dict[str, list[Place]] = {}
    for of_parameter in places.values():
        name, call, (module, _) = of_parameter[0]
        shared = len(of_parameter) > 1
        if name in read or shared or (call is None and not has_formulas(module)):
            uses[name] = [place for _, _, place in of_parameter]
        elif call is not None:
            calls.setdefault(call, []).append(name)
    return Ways(calls=calls, uses=uses)


BY_LAYERS = Ways()
"""All parameters are by layers."""


def _by_layers(module: nn.Module, seen: set[int]) -> bool:
    """Whether all parameters get their gradients by layers, and none is shared.

    This is so for most models, and takes little time. seen: identities of parameters so far.
    """
    parameters, children = module._parameters, module._modules
    if not parameters and not children:
        return True
    by_formulas = has_formulas(module)
    if not by_formulas and kind_of(module) is not None:
        return False
    for p in parameters.values():
        if p is not None and p.requires_grad:
            if not by_formulas or id(p) in seen:
                return False
            seen.add(id(p))
    return all(_by_layers(child, seen) for child in children.values() if child is not None)


def _places(
    module: nn.Module, path: str, call: str | None
) -> Iterator[tuple[str, str | None, Place]]:
    """Name, path of the call that has it, and place of each trainable parameter.

    A shared parameter is given once for each place. The path is None for a parameter without a
    call. call: the path of the call around the module, or None.
    """
    if call is None and kind_of(module) is not None:
        call = path
    prefix = f"{path}." if path else ""
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.requires_grad:
            yield prefix + name, call, (module, name)
    for name, child in module._modules.items():
        if child is not None:
            yield from _places(child, prefix + name, call)
