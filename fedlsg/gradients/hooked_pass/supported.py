"""Refuse models without per-example gradients, before anything is computed.

Errors name the layer and the fix. A refusal protects the privacy claim: a layer that mixes
examples, or a trainable parameter whose gradient is not clipped, would void it silently.
Draws no noise and reads no private data.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fedlsg.frame import Frame, make_blocks
from fedlsg.gradients.calls import UnsupportedLayerError, kind_of, unsupported
from fedlsg.gradients.calls.registry import BUILT_IN, GENERAL, OWN_AXES, SHARED, type_name, ways_of
from fedlsg.gradients.formulas.layers import can_be_carried, has_formulas
from fedlsg.gradients.hooked_pass.parameters import named_by_all, trainable

HOOKS: Sequence[tuple[type[Any], str, str]] = (
    (
        WeightNorm,
        "a hook of weight_norm",
        "use torch.nn.utils.parametrizations.weight_norm(layer, {!r}), which trains, in its place",
    ),
    (
        SpectralNorm,
        "a hook of spectral_norm",
        "use torch.nn.utils.remove_spectral_norm(layer, {!r})",
    ),
    (BasePruningMethod, "prune", "use torch.nn.utils.prune.remove(layer, {!r})"),
)
"""Hooks of torch that compute a weight before each call: their type, their name, and the advice for
a layer's weight.
"""

NOTHING = (
    "nothing to train: every parameter of the model has requires_grad=False; call "
    "requires_grad_(True) on the layers to train, such as the last one"
)
Checked = Mapping[str, nn.Parameter]
"""Trainable parameters by name of a model that ``check`` accepted: it need not be checked again."""


def check_supported(model: nn.Module) -> None:
    """Raise UnsupportedLayerError unless every trainable parameter has a per-example gradient.

    Refuses: layers that mix examples (batch norm; instance norm that updates statistics), layers of
    torch.nn without gradients for each example, settings of a layer that its gradients do not
    cover, weights shared by other layers than ``SHARED``, and a model without a trainable
    parameter. Parameters that a module of a user owns are accepted here; what the module does with
    them is checked in the pass (``uses``). Frozen parameters are fine anywhere.
    """
    check_initialized(model)
    if not trainable(model):
        raise UnsupportedLayerError(NOTHING)
    check_sharing(model)
    for path, module in _without_calls(model):
        reason = refusal(module)
        if reason is not None:
            raise unsupported(path, module, reason)


def _without_calls(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """All modules with their paths.

    It skips the inside of a module whose gradients one function gives (its ``Kind`` is not
    ``GENERAL``).
    """
    yield path, module
    kind = kind_of(module)
    if kind is None or kind is GENERAL:
        for name, child in module._modules.items():
            if child is not None:
                yield from _without_calls(child, f"{path}.{name}" if path else name)


def refusal(module: nn.Module) -> str | None:
    """Why a module is refused, with the fix; None if it is supported."""
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return (
            "mixes the examples of a batch; replace BatchNorm by GroupNorm "
            "(fedlsg.make_supported(model) does), or freeze it and call eval() on it"
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
        return (
            "keeps statistics of the batch; set track_running_stats=False, or replace it by "
            "GroupNorm"
        )
    if isinstance(module, torch.jit.ScriptModule) and trainable(module):
        return (
            "compiled by torch.jit, whose layers have no hooks; give the module that was scripted "
            "or traced"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return (
            "max_norm changes the rows that private examples read, frozen or not; set max_norm=None"
        )
    if (reason := refusal_of_weight(module)) is not None:
        return reason
    kind = kind_of(module)
    own = {name: p for name, p in module._parameters.items() if p is not None and p.requires_grad}
    if hooked := [name for name, p in own.items() if p._backward_hooks]:
        return (
            f"a hook on the gradient of {', '.join(hooked)} (register_hook) would not run: "
            "gradients of single examples are clipped, and never arrive there; remove it, and "
            "change p.grad after the step, or freeze it"
        )
    if kind is not None:
        inside = trainable(module)
        return (kind.refusal(module) or refusal_of_type(inside)) if inside else None
    return refusal_to_train(module, own) if own else None


def refusal_of_type(own: Mapping[str, nn.Parameter]) -> str | None:
    """Why parameters are refused for their type of number."""
    real = all(p.is_floating_point() for p in own.values())
    return None if real else "complex parameters are not supported; use real ones, or freeze it"


def refusal_to_train(module: nn.Module, own: dict[str, nn.Parameter]) -> str | None:
    """Why the trainable parameters that a module owns are refused; None if they are supported.

    own: these parameters, by the module's names.
    """
    names = ", ".join(own)
    if isinstance(module, _BatchNorm | _InstanceNorm):
        return f"no per-example gradients for {names}; replace it by GroupNorm, or freeze it"
    if isinstance(module, OWN_AXES):
        return (
            f"no per-example gradients for {names}, because it has a forward of its own; use "
            f"{type_name(base_of(module))} itself, give its gradients by fedlsg.register_layer, or "
            "freeze it with requires_grad_(False)"
        )
    if has_formulas(module) and not own.keys() <= {"weight", "bias"}:
        return (
            f"no per-example gradients for {names}; remove what computes its weight from them, or "
            "freeze it"
        )
    return refusal_of_type(own)


def base_of(module: nn.Module) -> type[nn.Module]:
    """The type of torch that a module is a subclass of."""
    return next(kind for kind in type(module).__mro__ if kind in BUILT_IN)


def refusal_of_weight(module: nn.Module) -> str | None:
    """Why a layer is refused that computes its trainable weight itself; None if it is supported.

    Refused are hooks of torch that compute the weight, and parametrizations that remember earlier
    passes.
    """
    if not trainable(module):
        return None
    if parametrize.is_parametrized(module):
        parametrizations: Any = module.parametrizations
        names = [
            name
            for name, chain in parametrizations.items()
            if any(isinstance(p, _SpectralNorm) and p.training for p in chain)
        ]
        if not names:
            return None
        remove = "; ".join(
            f"torch.nn.utils.parametrize.remove_parametrizations(layer, {name!r})" for name in names
        )
        return (
            f"the parametrization spectral_norm of {', '.join(names)} changes its vectors in "
            "each pass, and the number of passes depends on the batch; keep them by "
            f"layer.parametrizations.eval(), use {remove}, or freeze it"
        )
    for hook in module._forward_pre_hooks.values():
        for kind, hook_name, advice in HOOKS:
            if isinstance(hook, kind):
                weight: str = (
                    hook._tensor_name if isinstance(hook, BasePruningMethod) else hook.name
                )
                return (
                    f"no per-example gradients of a layer whose {weight} is computed by "
                    f"{hook_name}; {advice.format(weight)}, or freeze it"
                )
    return None


def check_initialized(model: nn.Module) -> None:
    """Raise UnsupportedLayerError for parameters without shapes (lazy modules), or that inference
    mode made.
    """
    for path, module in model.named_modules():
        if any(map(is_lazy, (*module._parameters.values(), *module._buffers.values()))):
            raise unsupported(
                path,
                module,
                "its parameters have no shapes before its first call: run model(x) once on a row "
                "or on zeros of its shape, where the model is built",
            )
        if any(p.is_inference() for p in module._parameters.values() if p is not None):
            reason = "made inside torch.inference_mode(), so that it cannot be trained"
            raise unsupported(path, module, f"{reason}: build the model outside of it")


def check_sharing(model: nn.Module) -> None:
    """Raise UnsupportedLayerError for a parameter that layers other than ``SHARED`` share.

    Such a parameter has two names (tied weights).
    """
    for places in ways_of(model).uses.values():
        layers = [m for m, _ in places if has_formulas(m) or kind_of(m) is not None]
        if len(places) > 1 and any(type(layer) not in SHARED for layer in layers):
            owner, own_name = places[0]
            allowed = " and ".join(kind.__name__ for kind in SHARED)
            names = [name for name, p in named_by_all(model) if p is owner._parameters[own_name]]
            raise UnsupportedLayerError(
                f"{' and '.join(names)} are one shared parameter, which layers of torch other than "
                f"{allowed} may not share; give each module its own, or freeze it"
            )


def check_frame(model: nn.Module, frame: Frame) -> None:
    """Raise UnsupportedLayerError unless the frame holds exactly the trainable parameters.

    They must be whole, and in model order.
    """
    shapes = {name: tuple(p.shape) for name, p in trainable(model).items()}
    framed = {c.name: tuple(c.shape) for c in frame.coordinates}
    if missing := [name for name in shapes if name not in framed]:
        raise UnsupportedLayerError(
            f"trainable parameters without per-example gradients: {', '.join(missing)}; "
            "build the frame from all trainable parameters, or freeze these"
        )
    for name, shape in framed.items():
        if name not in shapes:
            raise UnsupportedLayerError(
                f"{name} is in the frame but is no trainable parameter; rebuild the frame"
            )
        if shape != shapes[name]:
            raise UnsupportedLayerError(
                f"expected {name} of shape {shapes[name]}, the frame has {shape}; rebuild it"
            )
    if list(framed) != list(shapes) or len(framed) < len(frame.coordinates):
        raise UnsupportedLayerError(
            "the frame has the parameters in another order than the model; rebuild it"
        )
    others = ways_of(model).others
    for c in frame.coordinates:
        owner, _, attribute = c.name.rpartition(".")
        fits = attribute == "weight" and can_be_carried(model.get_submodule(owner))
        if c.carried and (not fits or c.name in others):
            raise UnsupportedLayerError(
                f"{c.name} cannot be carried: carriers are for weights of Linear, Conv2d (one "
                "group) and transformers' Conv1D that no other layer shares"
            )
    whole = [(b.parameter, b.part, b.shape) for b in make_blocks(frame.coordinates)]
    if whole != [(b.parameter, b.part, b.shape) for b in frame.blocks]:
        raise UnsupportedLayerError(
            "the frame's blocks are not those of its coordinates; make them by make_blocks"
        )
