"""What a user's objects hold, so that all of it can be put back.

A rehearsal leaves no trace (``restored``), and no pass leaves one for the next (``put_back``):
objects are afterwards, bit for bit, what they were before. Walked from the given objects:
attributes, containers, tensors and arrays (their numbers), generators of torch, numpy and python,
what functions hold in closures and defaults, and classes and global variables that a user's own
code names. Not walked: other objects that global variables hold, such as a logger; iterators, whose
place cannot be set; what is outside of Python's objects (files, environment, context variables).
"""

import dis
import inspect
import operator
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from fedlsg.user_code.digest import filled_cells
from fedlsg.user_code.failure import is_users

PLAIN = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    ModuleType,
    BuiltinFunctionType,
    torch.dtype,
)
PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
"""Weak references whose object may be gone: then asking for their class fails."""
MANY = 10_000
"""Items of a container above which they are not walked, such as the rows of a data set."""
PLAIN_KINDS = frozenset(PLAIN) - {type}
ABSENT = object()
SPACES = (Tensor, np.ndarray, dict, list, set, deque, SimpleNamespace, FunctionType, partial)
"""Global variables that are walked, besides objects of a user's classes."""
Undo = Callable[[], bool]
"""Puts an object back, and says whether it was another one."""


@contextmanager
def restored(*objects: object, generators_of: object = None) -> Iterator[None]:
    """Inside, all of the objects may change, and random numbers may be drawn; afterwards all is as
    it was.

    ``generators_of``: an object of which only the generators are restored, such as a function that
    reads data.
    """
    undo: list[Callable[[], object]] = [*_of_process()]
    seen: set[int] = set()
    undo += filter(None, (state_of(thing) or _of(thing) for thing in walk(objects, seen)))
    undo += filter(None, map(state_of, walk((generators_of,), seen)))
    try:
        yield
    finally:
        for how in reversed(undo):
            how()


def generators_in(*objects: object) -> list[Any]:
    """The random generators of torch, numpy and python that the objects hold."""
    return [thing for thing in walk(objects, set()) if state_of(thing) is not None]


def put_back(things: Iterable[object]) -> Undo:
    """A function that puts back what these things are now; random generators go on.

    To be called as often as one likes.
    """
    undo = [how for how in map(_of, things) if how]
    return lambda: any([how() for how in reversed(undo)])


def put_back_spaces(spaces: list[dict[str, Any]]) -> Undo:
    """As ``put_back``, for many dicts at once: which names they have, and which objects these
    are.
    """
    names = [name for space in spaces for name in space]
    values = [value for space in spaces for value in space.values()]
    before = [dict(space) for space in spaces]

    def undo() -> bool:
        same = names == [name for space in spaces for name in space] and all(
            map(operator.is_, values, [value for space in spaces for value in space.values()])
        )
        if not same:
            for space, held in zip(spaces, before, strict=True):
                space.clear()
                space.update(held)
        return not same

    return undo


def _of_process() -> Iterator[Callable[[], object]]:
    """The global generators of torch, numpy and python."""
    yield partial(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        yield partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    yield partial(np.random.set_state, np.random.get_state())
    yield partial(random.setstate, random.getstate())


def walk(start: Iterable[object], seen: set[int]) -> Iterator[Any]:
    """Every object that can be reached, once. ``seen`` has identities, also of earlier walks."""
    due: list[Any] = list(start)
    while due:
        thing = due.pop()
        kind = type(thing)
        if kind in PLAIN_KINDS or id(thing) in seen or kind in PROXIES:
            continue
        if isinstance(thing, PLAIN) and not (isinstance(thing, type) and is_own(thing)):
            continue
        seen.add(id(thing))
        yield thing
        due += _inside(thing)


def _inside(thing: Any) -> list[Any]:
    if isinstance(thing, type):
        return [*map(_function_of, vars(thing).values()), *thing.__bases__]
    found: list[Any] = list((_attributes(thing) or {}).values())
    if is_own(type(thing)):
        found.append(type(thing))
    if isinstance(thing, FunctionType):
        named = [space[name] for space, name in _named(thing) if name in space]
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        cells = [cell.cell_contents for cell in filled_cells(thing)]
        return [*found, *cells, *defaults, *filter(_is_state, named)]
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, partial):
        return [*found, thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, Tensor):
        return [*found, *([] if not thing.is_leaf or thing.grad is None else [thing.grad])]
    if not isinstance(thing, dict | list | tuple | set | deque) or len(thing) > MANY:
        return found
    return [*found, *_members(thing)]


def _named(function: FunctionType) -> list[tuple[dict[str, Any], str]]:
    """The global variables that a user's function names, its own and those of modules of theirs."""
    if not is_users(function.__code__.co_filename):
        return []
    names, space = names_of(function.__code__), function.__globals__
    modules = [space[name] for name in names if isinstance(space.get(name), ModuleType)]
    spaces = [vars(m) for m in modules if is_users(getattr(m, "__file__", None) or "<frozen")]
    return [(space, name) for space in (space, *spaces) for name in names]


def _is_state(value: Any) -> bool:
    return isinstance(value, SPACES) or is_own(value if isinstance(value, type) else type(value))


def _function_of(value: Any) -> Any:
    """The function of a class's attribute."""
    return getattr(value, "fget", None) or getattr(value, "__func__", value)


def _attributes(thing: Any) -> dict[str, Any] | None:
    found = getattr(thing, "__dict__", None)  # None with slots
    return found if isinstance(found, dict) else None


def _members(thing: Any) -> list[Any]:
    return [*thing, *(thing.values() if isinstance(thing, dict) else ())]


def state_of(thing: Any) -> Callable[[], object] | None:
    """Puts a random generator back; None for anything else."""
    if isinstance(thing, torch.Generator):
        return partial(thing.set_state, thing.get_state())
    if isinstance(thing, random.Random):
        return partial(thing.setstate, thing.getstate())
    if isinstance(thing, np.random.RandomState):
        return partial(thing.set_state, thing.get_state())
    if isinstance(thing, np.random.Generator):
        return partial(setattr, thing.bit_generator, "state", thing.bit_generator.state)
    return None


def _of(thing: Any) -> Undo | None:
    """How an object becomes again what it is now; None where nothing is known to change."""
    if isinstance(thing, Tensor):
        return _of_tensor(thing)
    if isinstance(thing, np.ndarray):
        writeable = thing.flags.writeable and thing.dtype != object
        return _of_array(thing) if writeable else None
    if isinstance(thing, type):
        return _of_class(thing)
    if isinstance(thing, FunctionType):
        return _of_function(thing)
    attributes = _attributes(thing)
    ways = [] if attributes is None else [_of_items(attributes, attributes.update)]
    if isinstance(thing, dict | set):
        ways.append(_of_items(thing, thing.update))
    elif isinstance(thing, list | deque):
        ways.append(_of_items(thing, thing.extend))
    return (lambda: any([way() for way in ways])) if ways else None


def _of_items(now: Any, refill: Callable[[Any], object]) -> Undo:
    before: Any = dict(now) if isinstance(now, dict) else list(now)

    def undo() -> bool:
        changed = not _identical(_members(now), _members(before))
        if changed:
            now.clear()
            refill(before)
        return changed

    return undo


def _of_array(array: np.ndarray[Any, Any]) -> Undo:
    before = array.copy()

    def undo() -> bool:
        changed = array.tobytes() != before.tobytes()
        np.copyto(array, before)
        return changed

    return undo


def _of_class(kind: type) -> Undo:
    before = _attributes_of_class(kind)

    def undo() -> bool:
        now = _attributes_of_class(kind)
        changed = {n for n in before | now if now.get(n, ABSENT) is not before.get(n, ABSENT)}
        for name in changed:
            if name in before:
                setattr(kind, name, before[name])
            else:
                delattr(kind, name)
        return bool(changed)

    return undo


def _attributes_of_class(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("__")}


def _of_function(function: FunctionType) -> Undo:
    """Its cells, and the global variables that it names."""
    cells = [(cell, cell.cell_contents) for cell in filled_cells(function)]
    named = [(space, name, space.get(name, ABSENT)) for space, name in _named(function)]

    def undo() -> bool:
        other_cells = [(c, value) for c, value in cells if c.cell_contents is not value]
        for cell, value in other_cells:
            cell.cell_contents = value
        rebound = [part for part in named if part[0].get(part[1], ABSENT) is not part[2]]
        for space, name, value in rebound:
            if value is ABSENT:
                del space[name]
            else:
                space[name] = value
        return bool(other_cells or rebound)

    return undo


def _identical(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


@torch.no_grad()
def _of_tensor(t: Tensor) -> Undo | None:
    # kept by a loss that ran under vmap: nothing can read it
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        return None
    if (
        is_lazy(t)
        or t.layout != torch.strided
        or t.is_meta
        or t.is_quantized
        or t.is_nested
        or t.is_inference()
    ):
        return None
    version = t._version
    before, needs, grad = t.detach().clone(), t.requires_grad, t.grad if t.is_leaf else None
    kept = _attributes(t)
    attributes = (lambda: False) if kept is None else _of_items(kept, kept.update)

    @torch.no_grad()
    def undo() -> bool:
        if t.shape != before.shape or t.dtype != before.dtype or t.device != before.device:
            t.data = before
            return True
        # Comparing numbers would wait for a GPU: there, a write that a version shows is a change,
        # and all numbers are copied. NaN is copied again.
        on_cpu = t.device.type == "cpu"
        changed = not torch.equal(t, before) if on_cpu else t._version != version
        if changed or not on_cpu:
            t.data.copy_(before)  # no new version: a graph of this pass may hold the tensor
        if t.is_leaf:
            t.grad = grad
            t.requires_grad_(needs)
        return attributes() or changed

    return undo


@lru_cache(maxsize=4096)  # by its arguments alone: never stale
def names_of(code: CodeType) -> tuple[str, ...]:
    """What a function and the functions inside it name."""
    return tuple(dict.fromkeys(constants_and_names(code)[1]))


def constants_and_names(code: CodeType) -> tuple[list[Any], list[str]]:
    """Constants and names of a function and of the functions inside it."""
    constants, names = [], []
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD"):
            names.append(str(step.argval))
        elif isinstance(step.argval, CodeType):
            inner = constants_and_names(step.argval)
            constants += inner[0]
            names += inner[1]
        elif step.opname.endswith(("_CONST", "_SMALL_INT")):
            constants.append(step.argval)
    return constants, names


def is_own(kind: Any) -> bool:
    """Whether a class is a user's: its file is, or it has none because a notebook made it."""
    return _is_own(kind)


@lru_cache(maxsize=4096)  # of a class's file: for a process
def _is_own(kind: Any) -> bool:
    try:
        return is_users(inspect.getsourcefile(kind) or "<frozen")
    except (TypeError, OSError):
        return bool(kind.__module__ == "__main__")
