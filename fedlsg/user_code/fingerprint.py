"""Fingerprint of a model and a loss: their state outside of values, cheap to compare in each step.

A step is charged for what was checked. ``fingerprint`` reads what a user can change between two
steps, and no value of a parameter, of a buffer or of a batch:
    structure    modules, their classes, modes (train, eval) and forwards; functions that forwards
                 name (``F.linear``); hooks around calls, of gradients, and those of all modules of
                 the process; modes of torch, and hooks on saved tensors, that are on; parameters
                 (object, type, shape, ``requires_grad``); which module is where; which buffers
                 there are
    numbers      numbers and words that modules and the loss keep
    objects      everything else that they keep, and buffers, by identity; methods of their classes,
                 by their code: cloudpickle makes them anew
Numbers and objects may be written by a forward pass itself, which is not a change from outside:
``Followed`` distinguishes the two. Not covered: what is inside lists and other objects, global
variables and closures of a forward, and code in C++.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fedlsg.user_code.digest import filled_cells
from fedlsg.user_code.process import HOOKS as GLOBAL_HOOKS
from fedlsg.user_code.replaced import named_by

PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types of attributes that are read by value."""
INTERNAL = [*vars(nn.Module())]
"""Attributes of every module, in the order in which it gets them."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
AFTER, BEFORE, BACKWARD, BEFORE_BACKWARD = HOOKS
HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
CALLS = ("__call__", "_call_impl", "_wrapped_call_impl", "__getattr__")
"""Methods that run a forward, in each class."""
NONE: tuple[Any, ...] = ()
PARTS = ("class", "mode", "forward", "hooks", "parameters", "layers", "buffers")
"""Words for the entries of a module's record after its id."""


def hooks_of_tensor(t: Tensor) -> list[Any]:
    """The hooks of the gradient of a tensor, of both kinds."""
    of_both = [getattr(t, kind) or {} for kind in HOOKS_OF_TENSORS]
    return [hook for hooks in of_both for hook in hooks.values()]


class Watching(partial[Any]):
    """A hook that changes nothing in a call. It is no part of a model's state."""


@dataclass(frozen=True)
class Fingerprint:
    """Equal for equal structure of the same objects, while these live; see the module docstring.

    parts: the modules, parameters and forwards whose ids are in ``structure``.
    held: the other objects whose ids are in it. A caller that keeps both compares no id of an
        object that is gone.
    """

    structure: tuple[tuple[Any, ...], ...]
    numbers: tuple[Hashable, ...]
    objects: tuple[Hashable, ...]
    parts: tuple[Any, ...] = field(compare=False, repr=False)
    held: tuple[Any, ...] = field(compare=False, repr=False)


def fingerprint(model: nn.Module, loss: Any = None) -> Fingerprint:
    """The fingerprint of a model, and of a loss: a module, a function, a partial or an object."""
    walk = _Walk(model)
    if loss is not None:
        walk.follow(loss)
    walk.classes()
    walk.structure.append(("hooks of all modules", walk.hooks(vars(of_all_modules), GLOBAL_HOOKS)))
    around = (
        *_get_current_function_mode_stack(),
        *_get_current_dispatch_mode_stack(),
        *(torch._C._autograd._top_saved_tensors_default_hooks(False) or ()),
    )
    walk.structure.append(("modes", *map(id, around)))
    walk.held += around
    return walk.found


def fingerprint_of_modules(model: nn.Module) -> Fingerprint:
    """As ``fingerprint``, without methods of classes and hooks of all modules: for each pass."""
    return _Walk(model).found


class _Walk:
    """One walk over modules, and over what a loss calls."""

    def __init__(self, model: nn.Module) -> None:
        self.structure: list[tuple[Any, ...]] = []
        self.numbers: list[Hashable] = []
        self.objects: list[Hashable] = []
        self.parts: list[Any] = []
        self.held: list[Any] = []
        self._kinds: dict[type, None] = {}
        self._seen: set[int] = set()
        self.modules(model)

    @property
    def found(self) -> Fingerprint:
        """What was met."""
        return Fingerprint(
            structure=tuple(self.structure),
            numbers=tuple(self.numbers),
            objects=tuple(self.objects),
            parts=tuple(self.parts),
            held=tuple(self.held),
        )

    def modules(self, model: nn.Module) -> None:
        """A module and those inside it, each once."""
        due, seen = [model], self._seen
        while due:
            module = due.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            space, kind, forward = module.__dict__, type(module), None
            own, children, buffers = module._parameters, module._modules, module._buffers
            hooks, parameters, layers, present = NONE, NONE, NONE, NONE
            self._kinds[kind] = None
            self.parts.append(module)
            if "forward" in space:
                forward = space["forward"]
                self.parts.append(forward)
            if space[BEFORE] or space[AFTER] or space[BACKWARD] or space[BEFORE_BACKWARD]:
                hooks = self.hooks(space, HOOKS)
            if own:
                named = [(name, p) for name, p in own.items() if p is not None]
                parameters = tuple([self.parameter(name, p) for name, p in named])
            if children:
                layers = tuple([(name, id(child)) for name, child in children.items()])
                due += [child for child in children.values() if child is not None]
            if buffers:
                present = tuple([(name, buffer is None) for name, buffer in buffers.items()])
                self.values(buffers.items())
            state = kind, module.training, id(forward), hooks
            self.structure.append((id(module), *state, parameters, layers, present))
            self.values(_own(space))

    def parameter(self, name: str, p: Tensor) -> tuple[Hashable, ...]:
        """The record of a parameter."""
        self.parts.append(p)
        record = name, id(p), p.requires_grad, p.dtype, p.shape, p.device
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            kinds = {kind: getattr(p, kind) for kind in HOOKS_OF_TENSORS}
            if hooks := self.hooks(kinds, HOOKS_OF_TENSORS):
                return record, hooks
        return record

    def hooks(self, space: Any, names: tuple[str, ...]) -> tuple[Hashable, ...]:
        """Hooks by kind and key. No key is given twice in a process."""
        hooks = [(name, key, hook) for name in names for key, hook in (space[name] or {}).items()]
        hooks = [one for one in hooks if not isinstance(one[2], Watching)]
        self.held += [hook for _, _, hook in hooks]
        return tuple([(name, key, id(hook)) for name, key, hook in hooks])

    def values(self, named: Iterable[tuple[str, object]]) -> None:
        """What an object keeps: numbers and words by value, everything else by identity."""
        numbers, objects, held = self.numbers.append, self.objects.append, self.held.append
        for item in named:
            name, value = item
            if type(value) in PLAIN:
                numbers(item)
            else:
                objects((name, id(value)))
                held(value)

    def follow(self, thing: Any) -> None:
        """A loss, what it holds, and the functions that it calls."""
        if isinstance(thing, nn.Module):
            self.modules(thing)
            return
        if id(thing) in self._seen:
            return
        self._seen.add(id(thing))
        self.structure.append((id(thing), type(thing)))
        self.held.append(thing)
        self._kinds[type(thing)] = None
        inside = _inside(thing)
        self.values(inside.items())
        for value in inside.values():
            if callable(value) and not isinstance(value, type):
                self.follow(value)

    def classes(self) -> None:
        """What the classes define that were met."""
        for kind in self._kinds:
            forward = getattr(kind, "forward", None)
            named = [space.get(name) for space, name in named_by(forward)]
            self.structure.append((kind, _code_of(forward), *map(_code_of, named)))
            self.held += (forward, *named)
        bases = dict.fromkeys(base for kind in self._kinds for base in kind.__mro__)
        for base in bases:
            if base is nn.Module:
                self.values([(name, getattr(base, name)) for name in CALLS])
            elif base.__module__ != "builtins":
                code = [item for item in vars(base).items() if _is_code(*item)]
                self.objects += [(name, _code_of(value)) for name, value in code]
                self.held += [value for _, value in code]


def _is_code(name: str, value: object) -> bool:
    """Whether an attribute of a class may be code that runs in a call."""
    return type(value) not in PLAIN and (name[:2] != "__" or name in CALLS)


def _code_of(value: Any) -> Hashable:
    """A function by its code, plain defaults and the functions it holds; else by identity."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    if not isinstance(function, FunctionType):
        return id(value)
    inside = [cell.cell_contents for cell in filled_cells(function)]
    codes = [held.__code__ for held in inside if isinstance(held, FunctionType)]
    defaults = [d if type(d) in PLAIN else type(d) for d in function.__defaults__ or ()]
    return (function.__code__, *defaults, *codes)


def _own(space: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """What a module has that not every module has."""
    if [*islice(space, len(INTERNAL))] == INTERNAL:
        return islice(space.items(), len(INTERNAL), None)
    return [item for item in space.items() if item[0] not in INTERNAL]


def _inside(thing: Any) -> dict[str, Any]:
    """What a loss that is not a module is made of, by name."""
    if isinstance(thing, partial):
        arguments = {f"argument {place}": value for place, value in enumerate(thing.args)}
        return {"func": thing.func, **arguments, **thing.keywords}
    if isinstance(thing, MethodType):
        return {"self": thing.__self__, "func": thing.__func__}
    if isinstance(thing, FunctionType):
        cells = {f"cell {place}": cell for place, cell in enumerate(thing.__closure__ or ())}
        return {"code": thing.__code__, "defaults": thing.__defaults__, **cells}
    return getattr(thing, "__dict__", {})


class Followed:
    """A model and a loss that are compared between steps.

    checked: their fingerprint when they were checked.
    """

    def __init__(self, model: nn.Module, loss: Any) -> None:
        self._model, self._loss = model, loss
        self.accept()

    def accept(self, now: Fingerprint | None = None) -> None:
        """Note that they were checked: in the state ``now``, by default the present one."""
        self.checked = self._left = now or fingerprint(self._model, self._loss)

    def passed(self) -> None:
        """Note the end of a pass: what its code wrote is no change from outside."""
        self._left = fingerprint(self._model, self._loss)

    def now(self) -> Fingerprint:
        """``checked`` itself if nothing was changed since; else the present fingerprint."""
        now = fingerprint(self._model, self._loss)
        same = now.numbers == self._left.numbers and now.objects == self._left.objects
        return self.checked if same and now.structure == self.checked.structure else now

    def change(self) -> str:
        """What was changed since, for a message: layers by their paths. Empty if nothing was."""
        now = self.now()
        if now is self.checked:
            return ""
        old, new = (
            {record[0]: record for record in state.structure} for state in (self.checked, now)
        )
        changes = []
        for path, module in self._model.named_modules():
            name = f"{path or 'the model'} ({type(module).__name__})"
            first = old.get(id(module))
            second = new[id(module)]
            if first is None:
                changes.append(f"{name} is new")
            elif first != second:
                pairs = zip(PARTS, first[1:], second[1:], strict=True)
                parts = [part for part, old_part, new_part in pairs if old_part != new_part]
                changes.append(f"{' and '.join(parts)} of {name}")
        return "; ".join(changes) or "the loss, or what modules and their classes keep"
