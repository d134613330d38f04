"""Numbers in a user's code. Made-up rows contain them, because they may stand for something or be thresholds.

Examples: -999 or -1 for a missing value, the id of padding, 1e11 between seconds and milliseconds. No range of a type
contains them. The search reads constants of the user's functions and of the functions and methods that these name,
numbers in their closures, defaults and globals, and numbers that objects of the user's classes have as attributes. Of
objects of other classes it reads numbers whose name says that they mark something (``MARKS``).
Nothing is called, and no data are read.
"""

import dis
import inspect
import math
from collections import deque
from collections.abc import Iterator
from functools import partial
from numbers import Real
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from fedlsg.failure import is_users

MOST = 24
"""Most numbers that are kept, in the order in which they are found."""
COMMON = (0, 1)
"""Numbers that made-up rows have in any case."""
MARKS = ("pad", "ignore", "missing", "fill", "sentinel", "unk", "mask")
"""Parts of the names of numbers that count in modules and configurations that are not the user's own."""
OF_TORCH = ("training", "_modules", "_parameters", "_buffers")
"""Attributes of every module; its submodules are visited by themselves."""


def written(*things: Any) -> tuple[float, ...]:
    """Different finite numbers in the code of functions, modules and partials: at most ``MOST``, without ``COMMON``."""
    found: dict[float, None] = {}
    for value in _numbers(deque(things)):
        if value not in COMMON and abs(value) < math.inf:
            found[value] = None
        if len(found) == MOST:
            break
    return tuple(found)


def _numbers(due: deque[Any]) -> Iterator[float]:
    """The numbers of things and of what these name, each thing once."""
    seen: dict[int, Any] = {}  # the things themselves, so that no other one gets their id
    while due:
        thing = due.popleft()
        if id(thing) in seen or isinstance(thing, bool | Tensor | type | str | bytes):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Real):
            yield _as_float(thing)
        else:
            due += _parts(thing)


def _parts(thing: Any) -> list[Any]:
    """What to read next: constants and names of a function, the members of a small collection, attributes."""
    if isinstance(thing, FunctionType):
        return _of_function(thing)
    if isinstance(thing, MethodType):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if type(thing) in (tuple, list, set, frozenset, dict):
        members = thing.values() if isinstance(thing, dict) else thing
        return list(members) if len(members) <= MOST else []
    if isinstance(thing, nn.Module):
        return [part for module in thing.modules() for part in _of_object(module)]
    return [] if isinstance(thing, ModuleType) else _of_object(thing)


def _of_function(function: FunctionType) -> list[Any]:
    """Of a user's function: constants, defaults, what it names. Of a decorator of a library: what it wraps."""
    closure = [part for cell in function.__closure__ or () for part in _content(cell)]
    if not is_users(function.__code__.co_filename):
        wrapped = [function.__wrapped__] if hasattr(function, "__wrapped__") else []
        return [*wrapped, *(part for part in closure if isinstance(part, FunctionType) and wrapped)]
    constants, names = _of_code(function.__code__)
    named = [function.__globals__[name] for name in names if name in function.__globals__]
    modules = [
        vars(part)
        for part in named
        if isinstance(part, ModuleType) and is_users(getattr(part, "__file__", None) or "<frozen")
    ]
    named += [values[name] for values in modules for name in names if name in values]
    return [*constants, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *closure, *named]


def _of_code(code: CodeType) -> tuple[list[Any], list[str]]:
    """Constants and names of a function and of the functions inside it."""
    constants, names = [], []
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD"):
            names.append(str(step.argval))
        elif isinstance(step.argval, CodeType):
            inner = _of_code(step.argval)
            constants += inner[0]
            names += inner[1]
        elif step.opname.endswith(("_CONST", "_SMALL_INT")):
            constants.append(step.argval)
    return constants, names


def _of_object(thing: Any) -> list[Any]:
    """Attributes and methods of an object of a user's class; marks and functions of another one."""
    values = getattr(thing, "__dict__", None)
    if not isinstance(values, dict):
        return []
    values = {str(name): value for name, value in values.items() if name not in OF_TORCH}
    if _is_own(type(thing)):
        return [*values.values(), *_methods(type(thing))]
    marks = [value for name, value in values.items() if any(mark in name.lower() for mark in MARKS)]
    return [value for value in marks if isinstance(value, Real)] + [
        value for name, value in values.items() if callable(value) and not name.startswith("_")
    ]


def _is_own(kind: type) -> bool:
    """Whether a class is a user's: its file is, or it has none because a notebook made it."""
    try:
        return is_users(inspect.getsourcefile(kind) or "<frozen")
    except (TypeError, OSError):
        return kind.__module__ == "__main__"


def _methods(kind: type) -> list[Any]:
    """All but ``__init__``: of its numbers, most are sizes of layers, and the others are attributes."""
    found = (part for base in kind.__mro__ for name, part in vars(base).items() if name != "__init__")
    return [getattr(part, "fget", None) or getattr(part, "__func__", part) for part in found if _has_code(part)]


def _has_code(part: Any) -> bool:
    return isinstance(part, FunctionType | property | staticmethod | classmethod)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _content(cell: Any) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not filled yet
        return []
