"""What was found out about a model, for as long as it stays as it is: checked once, and not in every step.

All answers here are functions of what ``marks_of`` reads: modules, their types, modes (train, eval) and settings,
parameters with their names, types, shapes and ``requires_grad``, hooks around a call, and hooks on gradients of
parameters. It is read anew before an answer is given, which takes a small part of the time of the answers. So a layer
that was replaced, frozen, tied, untied, cast or switched between two steps is checked as if it were new. Where the
examples are (``survey``) depends on the code of the model, too: on hooks, a ``forward`` of a module's own, and on
numbers and words that modules of a user keep (``self.time_first``); what they keep in other objects is not seen.
Values of parameters and batches are no part of it: whatever depends on them is found out in every pass.
"""

from collections.abc import Hashable, Sequence
from functools import lru_cache, partial
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn

from fedlsg.gradients.calls.registry import BUILT_IN, STATISTICS, registered_layers
from fedlsg.gradients.formulas.layers import LAYERS

SETTINGS = ("groups", "padding_mode", "max_norm", "scale_grad_by_freq", "track_running_stats", "dropout", "num_layers")
"""Attributes of layers of torch that answers read. Formulas read others (a stride) in each pass."""

PLAIN = (bool, int, float, str)
"""Types of attributes by which a module of a user may choose what it computes."""


class Watching(partial[Any]):
    """A hook that looks at a call and changes nothing: no part of a model's state."""


class Known:
    """The answers about a model in one state. ``alive``: its modules and parameters, so that no other has their id."""

    def __init__(self, marks: list[Any], parts: Sequence[Any]) -> None:
        self.marks, self.alive = marks, [ref(part) for part in parts]
        self.answers: dict[Hashable, Any] = {}

    def holds(self, marks: list[Any]) -> bool:
        """Whether the model is in this state: equal marks, of the same objects."""
        return self.marks == marks and all([part() is not None for part in self.alive])


_known: WeakKeyDictionary[nn.Module, Known] = WeakKeyDictionary()


def known(model: nn.Module) -> Known:
    """What is known of the model as it is now. No answer may hold the model itself, or it would never be freed."""
    marks, parts = marks_of(model)
    found = _known.get(model)
    if found is None or not found.holds(marks):
        found = _known[model] = Known(marks, parts)
    return found


def marks_of(model: nn.Module) -> tuple[list[Any], list[Any]]:
    """All that the answers depend on, and the objects whose ids are in it."""
    marks: list[Any] = [tuple(registered_layers().items())]
    parts: list[Any] = []
    _mark(model, marks, parts)
    return marks, parts


def _mark(module: nn.Module, marks: list[Any], parts: list[Any]) -> None:
    kind, own = type(module), vars(module)
    marks += (kind, module.training, id(own.get("forward")))
    if "forward" in own:
        parts.append(own["forward"])
    for name, p in module._parameters.items():
        if p is not None:
            parts.append(p)
            marks += (name, id(p), p.requires_grad, p.dtype, p.shape, bool(p._backward_hooks))
    if has_settings(kind):  # type: ignore[arg-type]
        marks += map(own.get, SETTINGS)
        marks += [buffer is None for buffer in module._buffers.values()]
    if not is_torchs(kind):  # type: ignore[arg-type]
        marks += [(name, value) for name, value in own.items() if type(value) in PLAIN]
    hooks = module._forward_pre_hooks, module._forward_hooks
    all_hooks = [item for some in hooks for item in some.items()]
    marks += [(key, type(hook)) for key, hook in all_hooks if not isinstance(hook, Watching)]  # no key is given twice
    for name, child in module._modules.items():
        if child is not None:
            parts.append(child)
            marks += (name, id(child))
            _mark(child, marks, parts)


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """As ``model.named_modules()``, in a fifth of its time."""
    first: dict[int, tuple[str, nn.Module]] = {}
    _collect(model, "", first)
    return dict(first.values())


def _collect(module: nn.Module, path: str, first: dict[int, tuple[str, nn.Module]]) -> None:
    if id(module) in first:
        return
    first[id(module)] = path, module
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{path}.{name}" if path else name, first)


@lru_cache(4096)
def is_torchs(kind: type[nn.Module]) -> bool:
    """Whether torch defines a type of modules."""
    return kind.__module__.startswith("torch.")


@lru_cache(4096)
def has_settings(kind: type[nn.Module]) -> bool:
    """Whether answers read attributes of modules of a type: of layers of torch, and of their subclasses."""
    return issubclass(kind, (*LAYERS, *BUILT_IN, *STATISTICS))
