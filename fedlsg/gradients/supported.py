"""Refuse models without per-example gradients, before anything is computed; errors name the layer and the fix.

A refusal protects the privacy claim: a layer that mixes examples, or a trainable parameter whose gradient is not
clipped, would void it silently. Draws no noise and reads no private data.
"""

from collections.abc import Iterator, Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedlsg.frame import Frame, make_blocks
from fedlsg.gradients.formulas.layers import CARRIED, LAYERS

# These read the weights of their own submodules without calling them, so no hook sees the input.
OPAQUE = {
    nn.MultiheadAttention: "replace it by nn.Linear projections and F.scaled_dot_product_attention, or freeze it",
    nn.TransformerEncoderLayer: "rewrite it with nn.Linear and F.scaled_dot_product_attention, or freeze it",
    nn.RNNBase: "replace it by layers that are called once a forward pass, or freeze it",
    nn.RNNCellBase: "replace it by layers that are called once a forward pass, or freeze it",
}


Checked = Mapping[str, nn.Parameter]
"""Trainable parameters by name of a model that ``check`` accepted: it need not be checked again."""


class UnsupportedLayerError(ValueError):
    """A layer or parameter has no per-example gradient; the message says which, why, and what to do."""


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that require a gradient, by name, in model order; a shared one under its first name.

    As ``model.named_parameters()``, in a third of its time: this is called several times in every step.
    """
    first: dict[nn.Parameter, str] = {}
    for name, parameter in _named(model):
        if parameter.requires_grad:
            first.setdefault(parameter, name)
    return {name: parameter for parameter, name in first.items()}


def _named(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """All parameters with their names; a shared one once for every name."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, child in module._modules.items():
        if child is not None:
            yield from _named(child, f"{prefix}{name}.")


def check(model: nn.Module, frame: Frame) -> Checked:
    """The trainable parameters. Raises UnsupportedLayerError if gradients in the frame cannot be computed."""
    check_supported(model)
    check_frame(model, frame)
    return trainable(model)


def check_supported(model: nn.Module) -> None:
    """Raise UnsupportedLayerError unless every trainable parameter has a per-example gradient.

    Refuses: layers that mix examples (batch norm; instance norm that updates statistics), attention and recurrent
    modules, parameters under two names, any other module that owns a trainable parameter, and a model without one.
    Frozen parameters are fine anywhere. Exact types only: a subclass may compute something else.
    """
    if not trainable(model):
        raise UnsupportedLayerError("nothing to train: every parameter of the model has requires_grad=False")
    check_sharing(model)
    for path, module in model.named_modules():
        reason = refusal(module)
        if reason is not None:
            raise unsupported(path, module, reason)


def unsupported(path: str, module: nn.Module, reason: str) -> UnsupportedLayerError:
    """The error that names a module, its type, and the reason with its fix."""
    return UnsupportedLayerError(f"{path or 'the model itself'} ({type(module).__name__}): {reason}")


def refusal(module: nn.Module) -> str | None:
    """Why a module is refused, with the fix; None if it is supported."""
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return "mixes the examples of a batch; replace BatchNorm by GroupNorm, or freeze it and call eval() on it"
    if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
        return "keeps statistics of the batch; set track_running_stats=False, or replace it by GroupNorm"
    for opaque, fix in OPAQUE.items():
        if isinstance(module, opaque) and trainable(module):
            return f"computes without calling its own layers; {fix}"
    own = {name: p for name, p in module._parameters.items() if p is not None and p.requires_grad}
    return refusal_to_train(module, own) if own else None


def refusal_to_train(module: nn.Module, own: dict[str, nn.Parameter]) -> str | None:
    """Why the trainable parameters that ``module`` itself owns are refused; None if they are supported."""
    names = ", ".join(own)
    if isinstance(module, _BatchNorm | _InstanceNorm):
        return f"no per-example gradients for {names}; replace it by GroupNorm, or freeze it"
    if type(module) not in LAYERS:
        known = ", ".join(kind.__name__ for kind in LAYERS)
        return f"no per-example gradients for {names}; freeze it with requires_grad_(False), or use {known}"
    if not own.keys() <= {"weight", "bias"}:
        return f"no per-example gradients for {names}; remove the reparametrisation (weight norm, spectral norm)"
    if not all(p.is_floating_point() for p in own.values()):
        return "complex parameters are not supported; use real ones, or freeze it"
    if isinstance(module, nn.Conv2d) and module.groups != 1:
        return f"groups={module.groups} is not supported; set groups=1, or freeze it"
    if isinstance(module, nn.Conv2d) and module.padding_mode != "zeros":
        return f"padding_mode={module.padding_mode!r} is not supported; pad with F.pad before it, or freeze it"
    return None


def check_sharing(model: nn.Module) -> None:
    """Raise UnsupportedLayerError for a trainable parameter under two names (tied weights or a shared module)."""
    first: dict[int, str] = {}
    for name, parameter in _named(model):
        if parameter.requires_grad and first.setdefault(id(parameter), name) != name:
            raise UnsupportedLayerError(
                f"{first[id(parameter)]} and {name} are one shared parameter, whose two gradients cannot be clipped "
                "separately; give each module its own, or freeze it"
            )


def check_frame(model: nn.Module, frame: Frame) -> None:
    """Raise UnsupportedLayerError unless the frame holds exactly the trainable parameters, whole, in model order."""
    shapes = {name: tuple(p.shape) for name, p in trainable(model).items()}
    framed = {c.name: tuple(c.shape) for c in frame.coordinates}
    if missing := [name for name in shapes if name not in framed]:
        raise UnsupportedLayerError(
            f"trainable parameters without per-example gradients: {', '.join(missing)}; "
            "build the frame from all trainable parameters, or freeze these"
        )
    for name, shape in framed.items():
        if name not in shapes:
            raise UnsupportedLayerError(f"{name} is in the frame but is no trainable parameter; rebuild the frame")
        if shape != shapes[name]:
            raise UnsupportedLayerError(f"expected {name} of shape {shapes[name]}, the frame has {shape}; rebuild it")
    if list(framed) != list(shapes) or len(framed) < len(frame.coordinates):
        raise UnsupportedLayerError("the frame has the parameters in another order than the model; rebuild it")
    for c in frame.coordinates:
        owner, _, attribute = c.name.rpartition(".")
        if c.carried and (attribute != "weight" or type(model.get_submodule(owner)) not in CARRIED):
            raise UnsupportedLayerError(f"{c.name} cannot be carried: carriers are for weights of Linear and Conv2d")
    whole = [(b.parameter, b.part, b.shape) for b in make_blocks(frame.coordinates)]
    if whole != [(b.parameter, b.part, b.shape) for b in frame.blocks]:
        raise UnsupportedLayerError("the frame's blocks are not those of its coordinates; make them by make_blocks")
