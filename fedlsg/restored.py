"""A rehearsal leaves no trace: objects and random generators are afterwards, bit for bit, what they were before.

Walked from the given objects: attributes, containers, tensors and arrays (their numbers), generators of torch, numpy
and python, and what functions hold in closures. Not walked: modules of Python, classes, and global variables.
"""

import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

PLAIN = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, BuiltinFunctionType, torch.dtype)
PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
"""Weak references whose object may be gone: then asking for their class fails."""
MANY = 10_000
"""Items of a container above which they are not walked, such as the rows of a data set."""
Undo = Callable[[], object]


@contextmanager
def restored(*objects: object, generators_of: object = None) -> Iterator[None]:
    """Inside, all of the objects may change, and random numbers may be drawn; afterwards all is as it was.

    ``generators_of``: an object of which only the generators are restored, such as a function that reads data.
    """
    undo: list[Undo] = [*_of_process()]
    seen: set[int] = set()
    undo += filter(None, (_of_generator(thing) or _of(thing) for thing in _walk(objects, seen)))
    undo += filter(None, map(_of_generator, _walk((generators_of,), seen)))
    try:
        yield
    finally:
        for how in reversed(undo):
            how()


def _of_process() -> Iterator[Undo]:
    """The global generators of torch, numpy and python."""
    yield partial(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        yield partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    yield partial(np.random.set_state, np.random.get_state())
    yield partial(random.setstate, random.getstate())


def _walk(start: tuple[object, ...], seen: set[int]) -> Iterator[Any]:
    """Every object that can be reached, once. ``seen`` has identities, also of earlier walks."""
    due: list[Any] = list(start)
    while due:
        thing = due.pop()
        if id(thing) in seen or type(thing) in PROXIES or isinstance(thing, PLAIN):
            continue
        seen.add(id(thing))
        yield thing
        due += _inside(thing)


def _inside(thing: Any) -> list[Any]:
    found: list[Any] = list(vars(thing).values()) if _has_attributes(thing) else []
    if isinstance(thing, FunctionType):
        return [*found, *(value for cell in thing.__closure__ or () for value in _content(cell))]
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, partial):
        return [*found, thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, Tensor):
        return [*found, *([] if not thing.is_leaf or thing.grad is None else [thing.grad])]
    if not isinstance(thing, dict | list | tuple | set | deque) or len(thing) > MANY:
        return found
    return [*found, *thing, *(thing.values() if isinstance(thing, dict) else ())]


def _has_attributes(thing: Any) -> bool:
    try:
        return isinstance(vars(thing), dict)
    except (TypeError, ReferenceError):  # slots; a weak reference to what is gone
        return False


def _content(cell: Any) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # of a name that is not bound yet
        return []


def _of_generator(thing: Any) -> Undo | None:
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
        return partial(np.copyto, thing, thing.copy()) if thing.flags.writeable and thing.dtype != object else None
    if isinstance(thing, FunctionType):
        cells = [(cell, value) for cell in thing.__closure__ or () for value in _content(cell)]
        return partial(_refill, cells)
    ways = [_of_dict(vars(thing))] if _has_attributes(thing) else []
    if isinstance(thing, dict):
        ways.append(_of_dict(thing))
    elif isinstance(thing, list | deque):
        ways.append(_of_items(thing, thing.extend))
    elif isinstance(thing, set):
        ways.append(_of_items(thing, thing.update))
    return (lambda: [way() for way in ways]) if ways else None


def _refill(cells: list[tuple[CellType, Any]]) -> None:
    for cell, value in cells:
        cell.cell_contents = value


def _of_dict(now: dict[Any, Any]) -> Undo:
    before = dict(now)

    def undo() -> None:
        if not _identical([*now, *now.values()], [*before, *before.values()]):
            now.clear()
            now.update(before)

    return undo


def _of_items(now: Any, refill: Callable[[Any], object]) -> Undo:
    before = list(now)

    def undo() -> None:
        if not _identical(list(now), before):
            now.clear()
            refill(before)

    return undo


def _identical(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


@torch.no_grad()
def _of_tensor(t: Tensor) -> Undo | None:
    if is_lazy(t) or t.layout != torch.strided or t.is_meta or t.is_quantized or t.is_nested or t.is_inference():
        return None
    before, needs, grad = t.detach().clone(), t.requires_grad, t.grad if t.is_leaf else None

    @torch.no_grad()
    def undo() -> None:
        if t.shape != before.shape or t.dtype != before.dtype or t.device != before.device:
            t.data = before
        elif not torch.equal(t, before):  # NaN is copied again
            t.copy_(before)
        if t.is_leaf:
            t.grad = grad
            t.requires_grad_(needs)

    return undo
