"""What a user's objects hold, so that all of it can be put back.

A rehearsal leaves no trace (``restored``), and no pass leaves one for the next (``put_back``):
objects are afterwards, bit for bit, what they were before. ``walk`` reaches whatever Python's
garbage collector would reach (attributes, slots, containers, caches), closures and defaults of
functions, and the global variables that a user's functions name, also through modules of theirs. It
stops at code of libraries, and at what lives outside of a pass (``NOT_WALKED``, ``OURS``).
Put back are attributes, containers, numbers of tensors and arrays, bytes, classes of the user,
closures and global variables; caches of functions are emptied, random generators go on. Not put
back: the place of an iterator, objects that compiled code keeps, and what is outside of Python's
objects (files, environment, context variables).
"""

import gc
import io
import logging
import random
import sys
import threading
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copyreg import _slotnames  # type: ignore[attr-defined]
from functools import _lru_cache_wrapper, lru_cache, partial
from itertools import chain
from operator import is_
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedlsg.user_code.failure import is_users

ATOMS = frozenset(
    (str, bytes, int, float, complex, bool, type(None), CodeType, torch.dtype, torch.device)
)
PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
"""Weak references whose object may be gone: then asking for their class fails."""
NOT_WALKED = (logging.Logger, io.IOBase, threading.Thread, FrameType)
OURS = tuple(
    f"fedlsg.{name}" for name in ("privacy.", "strategies.private_step", "strategies.strategy")
) + tuple(f"fedlsg.simulations.{name}." for name in ("server", "client", "engines", "storage"))
"""Where objects of fedlsg are that user code may hold, such as a step with its ledger."""
MANY = 100_000
"""Items of a container above which they are not walked, such as the rows of a data set."""
CONTAINERS = (OrderedDict, dict, list, set, deque)
"""The kinds whose items are put back, by their own methods: a user's class may have others."""
ABSENT = object()
Packages = frozenset[str]
NONE: Packages = frozenset()
Undo = Callable[[], bool]
"""Puts an object back, and says whether it was another one."""


@contextmanager
def restored(*objects: object, generators_of: object = None) -> Iterator[None]:
    """Inside, all of the objects may change, and random numbers may be drawn; afterwards all is as
    it was.

    ``generators_of``: an object of which only the generators are restored, such as a function that
    reads data.
    """
    seen: set[int] = set()
    things = list(walk(objects, seen))
    generators = [*_of_process(), *map(state_of, chain(things, walk((generators_of,), seen)))]
    undo = put_back(things)
    try:
        yield
    finally:
        undo()
        for how in filter(None, generators):
            how()


def generators_in(*objects: object) -> list[Any]:
    """The random generators of torch, numpy and python that the objects hold."""
    return [thing for thing in walk(objects, set()) if state_of(thing) is not None]


def put_back(things: Iterable[object], packages: Packages = NONE) -> Undo:
    """A function that puts back what these things are now; random generators go on.

    To be called as often as one likes.
    """
    with torch.no_grad():
        ways = [how for thing in things if (how := _of(thing, packages))]

    def undo() -> bool:
        with torch.no_grad():
            return any([how() for how in reversed(ways)])

    return undo


def put_back_spaces(spaces: list[dict[str, Any]]) -> Undo:
    """As ``put_back``, for many dicts at once: which names they have, and which objects these
    are.
    """
    names = [name for space in spaces for name in space]
    values = [value for space in spaces for value in space.values()]
    before = [dict(space) for space in spaces]

    def undo() -> bool:
        same = names == [name for space in spaces for name in space] and all(
            map(is_, values, [value for space in spaces for value in space.values()])
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


def walk(start: Iterable[object], seen: set[int], packages: Packages = NONE) -> Iterator[Any]:
    """Every object that can be reached, once. ``seen`` has identities, also of earlier walks.

    ``packages``: names of installed packages whose code is walked as a user's is.
    """
    due: list[Any] = list(start)
    while due:
        thing = due.pop()
        kind = type(thing)
        if kind in ATOMS or id(thing) in seen or kind in PROXIES or _is_left(thing, packages):
            continue
        seen.add(id(thing))
        yield thing
        due += _inside(thing, packages)


def _is_left(thing: Any, packages: Packages) -> bool:
    """Whether a thing is not walked: a library's class or module, or what lives longer than a
    pass.
    """
    if isinstance(thing, type):
        return not is_own(thing, packages)
    if isinstance(thing, ModuleType):
        return not _is_users_module(thing, packages)
    ours = str(type(thing).__module__).startswith(OURS) and not isinstance(thing, nn.Module)
    return ours or isinstance(thing, NOT_WALKED)


def _inside(thing: Any, packages: Packages) -> list[Any]:
    if isinstance(thing, FunctionType):
        named = [space[name] for space, name in _named(thing, packages) if name in space]
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        cells = [content for _, content in _cells(thing) if content is not ABSENT]
        return [*cells, *defaults, *named, *thing.__dict__.values()]
    if isinstance(thing, type):
        return [*map(_function_of, vars(thing).values()), *thing.__bases__, type(thing)]
    if isinstance(thing, Tensor):
        hooks = thing._backward_hooks, getattr(thing, "_post_accumulate_grad_hooks", None)
        return [*thing.__dict__.values(), *hooks, thing.grad if thing.is_leaf else None]
    if isinstance(thing, np.ndarray):
        return list(thing.flat) if thing.dtype == object else []
    if isinstance(thing, (*CONTAINERS, tuple, frozenset)) and len(thing) > MANY:
        return []
    of_thread = [thing.__dict__] if isinstance(thing, threading.local) else []
    return [*gc.get_referents(thing), *of_thread]


def _named(function: FunctionType, packages: Packages) -> list[tuple[dict[str, Any], str]]:
    """The global variables that a user's function names, its own and those of modules of theirs."""
    if not _is_users_function(function, packages):
        return []
    names, spaces = names_of(function.__code__), [function.__globals__]
    for space in spaces:  # it grows
        modules = [space.get(name, sys.modules.get(name)) for name in names]
        spaces += [
            vars(module)
            for module in modules
            if isinstance(module, ModuleType)
            and _is_users_module(module, packages)
            and not any(vars(module) is known for known in spaces)
        ]
    return [(space, name) for space in spaces for name in names]


def _function_of(value: Any) -> Any:
    """The function of a class's attribute."""
    return getattr(value, "fget", None) or getattr(value, "__func__", value)


def _cells(function: FunctionType) -> list[tuple[CellType, Any]]:
    """What a function holds of its surroundings; ``ABSENT`` for a name that is not set yet."""
    return [(cell, _content(cell)) for cell in function.__closure__ or ()]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def _attributes(thing: Any) -> dict[str, Any] | None:
    found = getattr(thing, "__dict__", None)  # None with slots
    return found if isinstance(found, dict) else None


def state_of(thing: Any) -> Callable[[], object] | None:
    """Puts a random generator back; None for anything else."""
    if isinstance(thing, torch.Generator):
        return partial(thing.set_state, thing.get_state())
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        return partial(thing.setstate, thing.getstate())
    if isinstance(thing, np.random.RandomState):
        return partial(thing.set_state, thing.get_state())
    if isinstance(thing, np.random.Generator):
        return partial(setattr, thing.bit_generator, "state", thing.bit_generator.state)
    return None


def _of(thing: Any, packages: Packages = NONE) -> Undo | None:
    """How an object becomes again what it is now; None where nothing is known to change."""
    if isinstance(thing, Tensor):
        return _of_tensor(thing)
    if isinstance(thing, np.ndarray):
        return _of_array(thing) if thing.flags.writeable else None
    if isinstance(thing, type):
        return _of_class(thing)
    if isinstance(thing, bytearray | array):
        return _of_bytes(thing)
    ways = []
    if isinstance(thing, FunctionType):
        ways.append(_of_function(thing, packages))
    if isinstance(thing, _lru_cache_wrapper) and _is_users_cache(thing, packages):
        ways.append(_of_cache(thing))
    if isinstance(thing, CONTAINERS):
        ways.append(_of_items(thing))
    if (attributes := _attributes(thing)) is not None:
        ways.append(_of_items(attributes))
    if slots := [] if isinstance(thing, CONTAINERS) else _slotnames(type(thing)):
        ways.append(_of_slots(thing, slots))
    return (lambda: any([way() for way in ways])) if ways else None


def _of_items(now: Any) -> Undo:
    base: Any = next(kind for kind in CONTAINERS if isinstance(now, kind))
    is_dict = issubclass(base, dict)
    before: Any = dict(dict.items(now)) if is_dict else [*base.__iter__(now)]
    members = [*before, *before.values()] if is_dict else before
    refill = base.update if hasattr(base, "update") else base.extend

    def undo() -> bool:
        there = [*base.__iter__(now), *(dict.values(now) if is_dict else ())]
        changed = len(there) != len(members) or not all(map(is_, there, members))
        if changed:
            base.clear(now)
            refill(now, before)
        return changed

    return undo


def _of_slots(thing: Any, names: list[str]) -> Undo:
    before = [getattr(thing, name, ABSENT) for name in names]

    def undo() -> bool:
        changed = False
        for name, value in zip(names, before, strict=True):
            if getattr(thing, name, ABSENT) is not value:
                changed = True
                if value is ABSENT:
                    object.__delattr__(thing, name)
                else:
                    object.__setattr__(thing, name, value)
        return changed

    return undo


def _is_users_cache(cached: Any, packages: Packages) -> bool:
    function = cached.__wrapped__
    return isinstance(function, FunctionType) and _is_users_function(function, packages)


def _of_cache(cached: "_lru_cache_wrapper[Any]") -> Undo:
    """What was kept before is walked; what was added since cannot be taken out alone."""
    before = cached.cache_info().misses

    def undo() -> bool:
        changed = cached.cache_info().misses != before
        if changed:
            cached.cache_clear()
        return changed

    return undo


def _of_bytes(values: Any) -> Undo:
    before = values[:]

    def undo() -> bool:
        changed = bool(values != before)
        values[:] = before
        return changed

    return undo


def _of_array(array: np.ndarray[Any, Any]) -> Undo:
    before = array.copy()

    def undo() -> bool:
        changed = array.tobytes() != before.tobytes()  # of objects: where they are
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


def _of_function(function: FunctionType, packages: Packages) -> Undo:
    """Its cells, and the global variables that it names."""
    cells = _cells(function)
    named = [(space, name, space.get(name, ABSENT)) for space, name in _named(function, packages)]

    def undo() -> bool:
        other_cells = [(cell, value) for cell, value in cells if _content(cell) is not value]
        for cell, value in other_cells:
            if value is ABSENT:
                del cell.cell_contents
            else:
                cell.cell_contents = value
        rebound = [part for part in named if part[0].get(part[1], ABSENT) is not part[2]]
        for space, name, value in rebound:
            if value is ABSENT:
                del space[name]
            else:
                space[name] = value
        return bool(other_cells or rebound)

    return undo


def _of_tensor(t: Tensor) -> Undo | None:
    # kept by a loss that ran under vmap: nothing can read it
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        return None
    if is_lazy(t) or t.layout != torch.strided or t.is_meta or t.is_quantized or t.is_nested:
        return None
    version = None if t.is_inference() else t._version
    before, needs, grad = t.detach().clone(), t.requires_grad, t.grad if t.is_leaf else None
    kept = _attributes(t)
    attributes = (lambda: False) if kept is None else _of_items(kept)

    def undo() -> bool:
        if t.shape != before.shape or t.dtype != before.dtype or t.device != before.device:
            t.data = before
            return True
        # Comparing numbers would wait for a GPU: there, a write that a version shows is a change,
        # and all numbers are copied.
        on_cpu = t.device.type == "cpu"
        if t.is_inference():  # it has no version
            with torch.inference_mode():
                changed = not same_numbers(t, before)
                t.copy_(before)
            return changed
        changed = not same_numbers(t, before) if on_cpu else t._version != version
        if changed or not on_cpu:
            t.data.copy_(before)  # no new version: a graph of this pass may hold the tensor
        if t.is_leaf:
            t.grad = grad
            t.requires_grad_(needs)
        return attributes() or changed

    return undo


def same_numbers(now: Tensor, before: Tensor) -> bool:
    """Whether all numbers are equal; NaN is equal to itself."""
    if now.layout != torch.strided:
        now, before = now.to_dense(), before.to_dense()
    return torch.equal(now, before) or bool(
        ((now == before) | ((now != now) & (before != before))).all()
    )


@lru_cache(maxsize=4096)  # by its arguments alone: never stale
def names_of(code: CodeType) -> tuple[str, ...]:
    """What a function and the functions inside it name: variables, attributes, modules."""
    inner = (names_of(part) for part in code.co_consts if isinstance(part, CodeType))
    return tuple(dict.fromkeys(chain(code.co_names, *inner)))


def _is_users_function(function: FunctionType, packages: Packages) -> bool:
    """Whether a function is a user's, by its file; by that of its module, where a text made it."""
    file, space = function.__code__.co_filename, function.__globals__
    if file.startswith("<") and not file.startswith("<frozen"):
        file = "" if space.get("__name__") == "__main__" else space.get("__file__") or ""
    return not file or is_users(file) or _top(function.__module__) in packages


@lru_cache(maxsize=4096)  # a class that its module gives up later stays what it was
def is_own(kind: Any, packages: Packages = NONE) -> bool:
    """Whether a class is a user's: its module is, or a function of it."""
    home = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__" or home is None or _top(kind.__module__) in packages:
        return True
    functions = [f for f in map(_function_of, vars(kind).values()) if isinstance(f, FunctionType)]
    return _is_users_module(home, packages) or any(
        _is_users_function(function, packages) for function in functions
    )


def _is_users_module(module: ModuleType, packages: Packages) -> bool:
    """Whether a module is a user's, as the package that it is in."""
    top = _top(module.__name__)
    file = getattr(sys.modules.get(top, module), "__file__", None)
    if file is None:  # of Python, or of several folders, or made by hand
        return top not in sys.stdlib_module_names
    return is_users(file) or top in packages


def _top(name: str | None) -> str:
    return (name or "").partition(".")[0]
