"""Layers whose gradients are a function of one call: built in, by torch.func, or registered."""

from fedlsg.gradients.calls.registry import (
    CallGradients,
    Kind,
    UnsupportedLayerError,
    kind_of,
    register_layer,
    registered_layers,
    unsupported,
)
from fedlsg.gradients.calls.torch_func import by_torch_func

__all__ = [
    "CallGradients",
    "Kind",
    "UnsupportedLayerError",
    "by_torch_func",
    "kind_of",
    "register_layer",
    "registered_layers",
    "unsupported",
]
