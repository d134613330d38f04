"""Find all that a user's objects hold, and put it back, bit for bit.

A trial leaves no trace (``restored``), and no pass leaves one for the next (``put_back``).

reached     (``walk``) whatever Python's garbage collector would reach (attributes, slots,
            containers, caches), closures and defaults of functions, and the global variables that a
            user's functions name, also through their own modules
skipped     code of libraries, and what lives outside of a pass (``NOT_WALKED``, ``OURS``)
put back    attributes, containers, numbers of tensors and arrays, bytes, classes of the user,
            functions (closures, defaults, code), cells, memory that C code exports, global
            variables. A cache of a function without a limit gets its entries back, others are
            emptied. Random generators go on, and ``isolation.state`` seeds them in secret
not         the position of an iterator, objects that compiled code keeps, what runs when an object
            in a cycle is freed, and what is outside of Python's objects (files, environment,
            context variables)
"""

import ctypes
import gc
import io
import logging
import mmap
import random
import sys
import threading
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copyreg import _slotnames  # type: ignore[attr-defined]
from functools import _lru_cache_wrapper, lru_cache, partial
from itertools import chain
from operator import is_
from queue import SimpleQueue
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedlsg.user_code.failure import is_users
from fedlsg.user_code.process import own_operators, put_back_settings, tables
from fedlsg.user_code.replaced import FUNCTIONS, is_users_own, names_of, replaced

ATOMS = frozenset(
    (str, bytes, int, float, complex, bool, type(None), CodeType, torch.dtype, torch.device)
)
"""Types of objects that cannot change and hold nothing that can."""
PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
"""Weak references whose object may be gone: then asking for their class fails."""
NOT_WALKED = (logging.Logger, io.IOBase, threading.Thread, FrameType)
"""Types of objects that live outside of a pass."""
IN_MEMORY = (io.BytesIO, io.StringIO)
"""Files that are in memory only, and therefore put back."""
C_DATA = ctypes.c_int.__mro__[-2]
"""The base class of all types of ``ctypes``."""
OURS = tuple(
    f"fedlsg.{name}" for name in ("privacy.", "strategies.private_step", "strategies.strategy")
) + tuple(f"fedlsg.simulations.{name}." for name in ("server", "client", "engines", "storage"))
"""Modules of fedlsg with objects that user code may hold, such as a step with its ledger."""
MAX_WALKED_ITEMS = 100_000
"""Containers with more items are not walked: they may be the rows of a data set."""
SLOT_NAMES = "__slotnames__"
"""An attribute that ``copyreg`` adds to a class, which is no change by a user."""
MAX_UNDO_ROUNDS = 3
"""How often things are put back, at most, while something changes: code may run when an object is
freed.
"""
CONTAINERS = (OrderedDict, dict, list, set, deque)
"""Types whose items are put back by the type's own methods: a user's subclass may have others."""
PARTS = ("__code__", "__defaults__", "__kwdefaults__")
"""Attributes of a function that are put back."""
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of a tensor that hold hooks."""
ABSENT = object()
"""Stands for the value of a name that is not set."""
Packages = frozenset[str]
"""Names of installed packages whose code is walked as a user's is."""
NONE: Packages = frozenset()
Undo = Callable[[], bool]
"""Puts an object back, and returns whether it had changed."""


@contextmanager
def restored(*objects: object, generators_of: object = None, data: bool = False) -> Iterator[None]:
    """Inside, the objects may change and random numbers may be drawn; at the end all is put back.

    generators_of: an object of which only the generators are restored, such as a function that
        reads data.
    data: as in ``walk``, for objects that may hold the data.
    """
    seen: set[int] = set()
    things = list(walk((*objects, *tables(), *own_operators()), seen, data=data))
    generators = [*_of_process(), *map(state_of, chain(things, walk((generators_of,), seen)))]
    # Settings first: a mode that is still on would see how the objects are put back.
    undos = put_back_settings(), put_back(things)
    try:
        yield
    finally:
        for undo in undos:
            undo()
        for restore in filter(None, generators):
            restore()


def generators_in(*objects: object) -> list[Any]:
    """The random generators of torch, numpy and python that the objects hold."""
    return [thing for thing in walk(objects, set()) if state_of(thing) is not None]


def put_back(things: Iterable[object], packages: Packages = NONE) -> Undo:
    """A function that puts back what these things are now, as often as it is called.

    Random generators go on.
    """
    things = [*things]
    with torch.no_grad():
        undos = [undo_one for thing in things if (undo_one := _of(thing, packages))]
    undos.append(put_back_kinds([thing for thing in things if hasattr(thing, "__dict__")]))

    def undo() -> bool:
        changed = False
        with torch.no_grad():
            for _ in range(MAX_UNDO_ROUNDS):
                if not any([undo_one() for undo_one in reversed(undos)]):  # a list: all run
                    break
                changed = True
        return changed

    return undo


def put_back_kinds(things: list[Any]) -> Undo:
    """As ``put_back``, for the classes of things: ``parametrize`` gives a module another one."""
    before = [*map(type, things)]

    def undo() -> bool:
        changed = [*map(type, things)] != before
        for thing, kind in zip(things, before, strict=True) if changed else ():
            if type(thing) is not kind:
                base = type if isinstance(thing, type) else object  # no method of the user's
                base.__setattr__(thing, "__class__", kind)
        return changed

    return undo


def has_more(module: nn.Module) -> bool:
    """Whether a module keeps something next to its dict: slots, or the items of a container."""
    return isinstance(module, CONTAINERS) or bool(_slotnames(type(module)))


def put_back_spaces(spaces: list[dict[str, Any]]) -> Undo:
    """As ``put_back``, for many dicts at once: their names, and the objects of these names."""
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


def walk(
    start: Iterable[object], seen: set[int], packages: Packages = NONE, *, data: bool = True
) -> Iterator[Any]:
    """Every object that can be reached, once.

    seen: identities of objects that were reached before; it grows.
    packages: installed packages whose code is walked as a user's is.
    data: whether long containers, and the whole of a view, may be rows of data. If so, these are
        not walked.
    """
    waiting: list[Any] = list(start)
    while waiting:
        thing = waiting.pop()
        if type(thing) in PROXIES:
            thing = _behind(thing)
        if type(thing) in ATOMS or id(thing) in seen or _is_skipped(thing, packages):
            continue
        seen.add(id(thing))
        yield thing
        waiting += _inside(thing, packages, data)


def _behind(proxy: Any) -> Any:
    """The object of a weak proxy; None where it is gone."""
    with suppress(ReferenceError):
        return getattr(proxy.__repr__, "__self__", None)


def _is_skipped(thing: Any, packages: Packages) -> bool:
    """Whether a thing is not walked: code of a library, or an object that outlives a pass."""
    if isinstance(thing, type):
        return not is_own(thing, packages)
    if isinstance(thing, ModuleType):
        return not _is_users_module(thing, packages)
    ours = str(type(thing).__module__).startswith(OURS) and not isinstance(thing, nn.Module)
    return ours or (isinstance(thing, NOT_WALKED) and not isinstance(thing, IN_MEMORY))


def _inside(thing: Any, packages: Packages, data: bool) -> list[Any]:
    """The objects that a thing holds or names directly."""
    if isinstance(thing, FunctionType):
        named = [space[name] for space, name in _named(thing, packages) if name in space]
        named += filter(is_users_own, [space[name] for space, name in _in_libraries(thing)])
        defaults = [*(thing.__defaults__ or ()), thing.__kwdefaults__]
        cells = [content for _, content in _cells(thing) if content is not ABSENT]
        return [*cells, *defaults, *named, *thing.__dict__.values()]
    if isinstance(thing, type):
        return [*vars(thing).values(), *thing.__bases__, type(thing)]
    if isinstance(thing, Tensor):
        grad = thing.grad if thing.is_leaf else None
        base = None if data else thing._base
        return [*thing.__dict__.values(), *_hooks_of(thing).values(), grad, base]
    if isinstance(thing, np.ndarray):
        whole = None if data else thing.base
        return [whole, *(_attributes(thing) or {}).values(), *_objects_in(thing)]
    if isinstance(thing, _lru_cache_wrapper):  # never its links, which C code uses again
        kept = _kept_in(thing) or {}
        return [*thing.__dict__.values(), *kept, *kept.values()]
    if isinstance(thing, (*CONTAINERS, tuple, frozenset)) and len(thing) > MAX_WALKED_ITEMS:
        values = thing.values() if isinstance(thing, dict) else thing
        return [] if data or {*map(type, values)} <= ATOMS else gc.get_referents(thing)
    if isinstance(thing, weakref.ref):
        return [weakref.ref.__call__(thing), *gc.get_referents(thing)]
    if isinstance(thing, nn.Module):
        return [*gc.get_referents(thing), *replaced((type(thing),))]
    of_thread = [thing.__dict__] if isinstance(thing, threading.local) else []
    return [*gc.get_referents(thing), *of_thread]


def _objects_in(values: Any) -> list[Any]:
    """The objects of Python that an array holds."""
    names = values.dtype.names
    if names:
        return [thing for name in names for thing in _objects_in(values[name])]
    return list(values.flat) if values.dtype == object else []


def _hooks_of(t: Tensor) -> dict[str, Any]:
    return {name: getattr(t, name, None) for name in HOOKS}


def _kept_in(cached: "_lru_cache_wrapper[Any]") -> dict[Any, Any] | None:
    """The entries of a cache without a limit; None of another cache, which cannot be put back."""
    if cached.cache_info().maxsize is not None:
        return None
    dicts = [part for part in gc.get_referents(cached) if type(part) is dict]
    return next(part for part in dicts if part is not cached.__dict__)


def _named(function: FunctionType, packages: Packages) -> list[tuple[dict[str, Any], str]]:
    """The global variables that a user's function names, its own and those of modules of theirs."""
    if not _is_users_function(function, packages):
        return []
    names, spaces = names_of(function.__code__), [function.__globals__]
    package = str(function.__globals__.get("__package__") or "")
    parents = [package.rsplit(".", k)[0] for k in range(package.count(".") + bool(package))]
    inside = [sys.modules.get(f"{parent}.{name}") for parent in parents for name in names]
    for space in spaces:  # it grows
        modules = [space.get(name, sys.modules.get(name)) for name in names] + inside
        spaces += [
            vars(module)
            for module in modules
            if isinstance(module, ModuleType)
            and _is_users_module(module, packages)
            and not any(vars(module) is known for known in spaces)
        ]
    return [(space, name) for space in spaces for name in names]


def _in_libraries(function: FunctionType) -> list[tuple[dict[str, Any], str]]:
    """The functions of libraries that a user's function names, such as ``torch.tanh``."""
    names, spaces = names_of(function.__code__), [function.__globals__]
    if not is_users(function.__code__.co_filename):
        return []
    for space in spaces:  # it grows
        modules = [vars(v) for n in names if isinstance(v := space.get(n), ModuleType)]
        spaces += [new for new in modules if not any(new is known for known in spaces)]
    return [(s, n) for s in spaces[1:] for n in names if isinstance(s.get(n), FUNCTIONS)]


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
    attributes = getattr(thing, "__dict__", None)  # None with slots
    return attributes if isinstance(attributes, dict) else None


def state_of(thing: Any) -> Callable[[], object] | None:
    """A function that restores the present state of a random generator; None for anything else."""
    if isinstance(thing, torch.Generator):
        return partial(thing.set_state, thing.get_state())
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        return partial(thing.setstate, thing.getstate())
    if isinstance(thing, np.random.RandomState):
        return partial(thing.set_state, thing.get_state())
    if isinstance(thing, np.random.BitGenerator):
        return partial(setattr, thing, "state", thing.state)
    return None


def _of(thing: Any, packages: Packages = NONE) -> Undo | None:
    """The undo of an object; None if nothing of it can change. Below there is one for each type."""
    if isinstance(thing, type):
        return _of_class(thing)
    undos = [make_undo(thing) for kinds, make_undo in OF_KINDS if isinstance(thing, kinds)]
    if isinstance(thing, FunctionType):
        undos.append(_of_function(thing, packages))
    if (attributes := _attributes(thing)) is not None:
        undos.append(_of_items(attributes))
    if type(thing) not in CONTAINERS and (slots := _slotnames(type(thing))):
        undos.append(_of_slots(thing, slots))
    return (lambda: any([undo() for undo in undos])) if undos else None


def _of_items(now: Any) -> Undo:
    """Of the items of a container."""
    base: Any = next(kind for kind in CONTAINERS if isinstance(now, kind))
    is_dict = issubclass(base, dict)
    before: Any = dict(base.items(now)) if is_dict else [*base.__iter__(now)]
    members = [*before, *before.values()] if is_dict else before

    def refill() -> None:
        base.clear(now)
        if is_dict:
            for key, value in before.items():
                base.__setitem__(now, key, value)
        elif base is set:
            set.update(now, before)
        else:
            base.extend(now, before)

    def undo() -> bool:
        there = [*base.__iter__(now), *(base.values(now) if is_dict else ())]
        changed = len(there) != len(members) or not all(map(is_, there, members))
        if changed or base is set:
            refill()
        return changed

    if base is set:  # the order of a set depends on its history: refill it now as later
        refill()
        members = [*base.__iter__(now)]
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


def _of_cache(cached: "_lru_cache_wrapper[Any]") -> Undo:
    """Of a cache: emptied, or with its entries if it has no limit. Its counts begin at 0."""
    kept = _kept_in(cached)
    before = dict(kept or {})

    def undo() -> bool:
        hits, misses, _, size = cached.cache_info()
        changed = bool(hits or misses or size != len(before))
        if changed:
            cached.cache_clear()
            if kept is not None:
                kept.update(before)
        return bool(misses)

    undo()
    return undo


def _of_bytes(values: Any) -> Undo:
    before = values[:]

    def undo() -> bool:
        changed = bool(values[:] != before)
        if changed:
            values[:] = before
        return changed

    return undo


def _of_c_data(thing: Any) -> Undo:
    before, size = memoryview(thing).tobytes(), ctypes.sizeof(thing)

    def undo() -> bool:
        changed = memoryview(thing).tobytes() != before
        ctypes.memmove(ctypes.addressof(thing), before, size)
        return changed

    return undo


def _of_file(file: Any) -> Undo:
    if file.closed:
        return lambda: False
    before, place = file.getvalue(), file.tell()

    def undo() -> bool:
        changed = bool(file.getvalue() != before)
        if changed:
            file.seek(0)
            file.truncate()
            file.write(before)
        file.seek(place)
        return changed

    return undo


def _of_queue(queue: "SimpleQueue[Any]") -> Undo:
    def items() -> list[Any]:
        return [queue.get_nowait() for _ in range(queue.qsize())]

    before = items()

    def undo() -> bool:
        there = items()
        for item in before:
            queue.put(item)
        return len(there) != len(before) or not all(map(is_, there, before))

    undo()
    return undo


def _of_cell(cell: CellType) -> Undo:
    before = _content(cell)

    def undo() -> bool:
        changed = _content(cell) is not before
        if changed and before is ABSENT:
            del cell.cell_contents
        elif changed:
            cell.cell_contents = before
        return changed

    return undo


def _of_partial(made: Any) -> Undo:
    before: Any = made.__reduce__()[2]

    def undo() -> bool:
        now: Any = made.__reduce__()[2]
        changed = not all(map(is_, now[:3], before[:3]))
        if changed:
            made.__setstate__((*before[:3], now[3]))
        return changed

    return undo


def _numbers_in(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _of_storage(storage: torch.UntypedStorage) -> Undo:
    before = storage.clone()

    def undo() -> bool:
        if storage.nbytes() != before.nbytes():
            storage.resize_(before.nbytes())
        changed = not torch.equal(_numbers_in(storage), _numbers_in(before))
        storage.copy_(before)
        return changed

    return undo


def _of_array(array: np.ndarray[Any, Any]) -> Undo:
    """Of an array. For a view that cannot be written to, the array behind it is put back."""
    before, writable = array.view(np.ndarray).copy(), array.flags.writeable

    def undo() -> bool:
        if array.size != before.size:
            array.resize(before.shape, refcheck=False)
        if array.shape != before.shape:
            array.shape = before.shape
        now = array.view(np.ndarray)
        changed = now.tobytes() != before.tobytes()  # for objects of Python these are addresses
        if changed and (array.flags.owndata or array.flags.writeable):
            if not array.flags.writeable:
                array.flags.writeable = True
            np.copyto(array.view(np.ndarray), before)
        if array.flags.writeable != writable:
            array.flags.writeable = writable
        return changed

    return undo


def _of_class(kind: type) -> Undo:
    before = _attributes_of_class(kind)

    def undo() -> bool:
        now = _attributes_of_class(kind)
        changed = {n for n in before | now if now.get(n, ABSENT) is not before.get(n, ABSENT)}
        for name in changed:  # by ``type``, and not by methods of a metaclass
            if name in before:
                type.__setattr__(kind, name, before[name])
            else:
                type.__delattr__(kind, name)
        return bool(changed)

    return undo


def _attributes_of_class(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if name != SLOT_NAMES}


def _of_function(function: FunctionType, packages: Packages) -> Undo:
    """Of a function: its parts, its cells, and the global variables that it names."""
    parts = {name: getattr(function, name) for name in PARTS}
    cells = [_of_cell(cell) for cell, _ in _cells(function)]
    places = [*_named(function, packages), *_in_libraries(function)]
    named = [(space, name, space.get(name, ABSENT)) for space, name in places]

    def undo() -> bool:
        cells_changed = any([undo_cell() for undo_cell in cells])
        new_parts = [name for name, part in parts.items() if getattr(function, name) is not part]
        for name in new_parts:
            setattr(function, name, parts[name])
        rebound = [entry for entry in named if entry[0].get(entry[1], ABSENT) is not entry[2]]
        for space, name, value in rebound:
            if value is ABSENT:
                del space[name]
            else:
                space[name] = value
        return bool(cells_changed or new_parts or rebound)

    return undo


def _of_tensor(t: Tensor) -> Undo:
    """Of a tensor: numbers, form, gradient and hooks."""
    # a loss that ran under vmap may keep a wrapped tensor, which nothing can read
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        return lambda: False
    if is_lazy(t) or t.is_meta or t.is_quantized or t.is_nested:
        return lambda: False
    version = None if t.is_inference() else t._version
    before, hooks = t.detach().clone(), _hooks_of(t)
    requires_grad = t.requires_grad
    grad = t.grad if t.is_leaf else None

    def undo() -> bool:
        for name, hook in hooks.items():
            if getattr(t, name, None) is not hook:
                setattr(t, name, hook)
        form = t.shape, t.dtype, t.device, t.layout
        if form != (before.shape, before.dtype, before.device, before.layout):
            t.data = before.clone()
            return True
        # Comparing numbers would wait for a GPU. There the version shows whether there was a write,
        # and all numbers are copied in any case.
        on_cpu = t.device.type == "cpu"
        if t.is_inference():  # it has no version
            with torch.inference_mode():
                changed = not same_numbers(t, before)
                t.copy_(before)
            return changed
        changed = not same_numbers(t, before) if on_cpu else t._version != version
        if t.layout == torch.sparse_coo:
            t.data = before.clone()
        elif changed or not on_cpu:
            _fill(t.data, before)  # no new version: a graph of this pass may hold the tensor
        if t.is_leaf:
            t.grad = grad
            t.requires_grad_(requires_grad)
        return changed

    return undo


def _fill(t: Tensor, before: Tensor) -> None:
    """Write numbers into a tensor; numbers that share memory (stride 0) are written once."""
    if t.layout == torch.strided:
        places = tuple(slice(0, 1) if step == 0 else slice(None) for step in t.stride())
        t[places].copy_(before[places])
    else:
        t.values().copy_(before.values())


OF_KINDS: tuple[tuple[Any, Callable[[Any], Undo]], ...] = (
    (Tensor, _of_tensor),
    (np.ndarray, _of_array),
    ((bytearray, array, mmap.mmap), _of_bytes),
    (C_DATA, _of_c_data),
    (IN_MEMORY, _of_file),
    (SimpleQueue, _of_queue),
    (partial, _of_partial),
    (CellType, _of_cell),
    (torch.UntypedStorage, _of_storage),
    (_lru_cache_wrapper, _of_cache),
    (CONTAINERS, _of_items),
)
"""Types, and the function that makes the undo of such an object, without attributes and slots."""


def same_numbers(now: Tensor, before: Tensor) -> bool:
    """Whether all numbers are equal; NaN is equal to itself."""
    if now.layout != torch.strided:
        now, before = now.to_dense(), before.to_dense()
    return torch.equal(now, before) or bool(
        ((now == before) | ((now != now) & (before != before))).all()
    )


def _is_users_function(function: FunctionType, packages: Packages) -> bool:
    """Whether a function is a user's, by its file, or by that of its module if a text made it."""
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
