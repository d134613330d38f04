"""How each trainable parameter gets its per-example gradients: by its layer's formulas, by a call, or by its uses.

layer   the five types of ``LAYERS``, hooked as in ``plan``
call    a module that ``kind_of`` knows; it answers for the modules inside it, too
use     every other parameter (a class token, a scale, a shared weight, one that is read next to its layer): ``uses``
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from fedlsg.gradients.calls.registry import kind_of
from fedlsg.gradients.formulas.layers import has_formulas

Place = tuple[nn.Module, str]
"""A module and its own name of a parameter."""


@dataclass(frozen=True, kw_only=True)
class Ways:
    """Names of trainable parameters: of each call by the path of its module, and with all places of each use."""

    calls: Mapping[str, list[str]] = field(default_factory=dict)
    uses: Mapping[str, list[Place]] = field(default_factory=dict)

    @property
    def others(self) -> set[str]:
        """All parameters that are not by layers."""
        return {name for names in self.calls.values() for name in names} | self.uses.keys()


def ways_of(model: nn.Module, read: Collection[str] = ()) -> Ways:
    """The way of every trainable parameter; a shared one under its first name. Those in ``read`` are by their uses."""
    if not read and _by_layers(model, set()):
        return BY_LAYERS
    places: dict[nn.Parameter, list[tuple[str, str | None, Place]]] = {}
    for name, call, place in _places(model, "", None):
        places.setdefault(place[0]._parameters[place[1]], []).append((name, call, place))  # type: ignore[arg-type]
    calls: dict[str, list[str]] = {}
    uses: dict[str, list[Place]] = {}
    for found in places.values():
        name, call, (module, _) = found[0]
        if name in read or len(found) > 1 or (call is None and not has_formulas(module)):
            uses[name] = [place for _, _, place in found]
        elif call is not None:
            calls.setdefault(call, []).append(name)
    return Ways(calls=calls, uses=uses)


BY_LAYERS = Ways()
"""All parameters are by layers."""


def _by_layers(module: nn.Module, seen: set[int]) -> bool:
    """Whether all parameters are by layers, and none is shared: the answer for most models, in little time."""
    own, children = module._parameters, module._modules
    if not own and not children:
        return True
    by_formulas = has_formulas(module)
    if not by_formulas and kind_of(module) is not None:
        return False
    for p in own.values():
        if p is not None and p.requires_grad:
            if not by_formulas or id(p) in seen:
                return False
            seen.add(id(p))
    return all(_by_layers(child, seen) for child in children.values() if child is not None)


def _places(module: nn.Module, path: str, call: str | None) -> Iterator[tuple[str, str | None, Place]]:
    """Name, path of the call that answers for it, and place of each trainable parameter; a shared one repeatedly."""
    if call is None and kind_of(module) is not None:
        call = path
    prefix = f"{path}." if path else ""
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.requires_grad:
            yield prefix + name, call, (module, name)
    for name, child in module._modules.items():
        if child is not None:
            yield from _places(child, prefix + name, call)
