"""The parameters of a model by name: those that are trained, or all with all their names."""

from collections.abc import Iterator

from torch import nn


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that require a gradient, by name, in model order.

    A shared parameter has its first name, as in ``model.named_parameters()``. That function takes
    three times as long, and this one is called several times in every step.
    """
    first: dict[int, tuple[str, nn.Parameter]] = {}
    _collect(model, "", first)
    return dict(first.values())


def _collect(module: nn.Module, prefix: str, first: dict[int, tuple[str, nn.Parameter]]) -> None:
    for name, p in module._parameters.items():
        if p is not None and p.requires_grad and id(p) not in first:
            first[id(p)] = prefix + name, p
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{prefix}{name}.", first)


def named_by_all(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """All parameters with their names; a shared one once for every name."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, child in module._modules.items():
        if child is not None:
            yield from named_by_all(child, f"{prefix}{name}.")
