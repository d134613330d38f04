"""The error of a model without per-example gradients: it names the layer, the reason and the fix."""

from collections.abc import Sequence

from torch import nn


class UnsupportedLayerError(ValueError):
    """A layer or parameter has no per-example gradient; the message says which, why, and what to do."""


class ReadElsewhereError(UnsupportedLayerError):
    """Parameters whose gradient came next to their layers' calls, where it cannot be split by example."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        super().__init__(
            f"{', '.join(names)}: used outside of its own layer's call, where its gradient cannot be split by "
            "example; call the layer instead of reading its weight (F.linear(x, layer.weight), layer.forward(x), a "
            "penalty in the loss), or freeze it"
        )


def unsupported(path: str, module: nn.Module, reason: str) -> UnsupportedLayerError:
    """The error that names a module, its type, and the reason with its fix."""
    return UnsupportedLayerError(f"{path or 'the model itself'} ({type(module).__name__}): {reason}")
