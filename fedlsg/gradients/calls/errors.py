"""The error of a model without per-example gradients: it names the layer, the reason and the fix."""

from torch import nn


class UnsupportedLayerError(ValueError):
    """A layer or parameter has no per-example gradient; the message says which, why, and what to do."""


def unsupported(path: str, module: nn.Module, reason: str) -> UnsupportedLayerError:
    """The error that names a module, its type, and the reason with its fix."""
    return UnsupportedLayerError(f"{path or 'the model itself'} ({type(module).__name__}): {reason}")
