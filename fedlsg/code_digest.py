"""SHA-256 of code of a user's own: a run directory keeps it, and a resumed run refuses other code.

Of code in a file: that file, and the modules next to it that it imports at its top. Of a function of a script or a
notebook, where other lines say nothing of it: its instructions and constants, and the functions, classes and plain
values of the script that it names. Of both: the plain values that it captures (defaults, closure, arguments of a
partial, attributes of an object).
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from inspect import unwrap
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

MAIN = "__main__"
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def digest_of(thing: Any) -> str:
    """SHA-256 of the code of a function, class or object: 64 hex digits; of what has no code in Python, of its name."""
    return digest_of_all([thing])


def digest_of_all(things: Iterable[object]) -> str:
    """One SHA-256 of the code of several things, in order."""
    sha, seen = hashlib.sha256(), list[object]()
    for thing in things:
        for part in _parts(thing, seen):
            sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()


def functions_of(thing: Any) -> list[FunctionType]:
    """A function itself, that of a partial, or the methods of a class or of an object's class."""
    while isinstance(thing, partial):
        thing = thing.func
    thing = unwrap(thing) if callable(thing) else thing
    thing = getattr(thing, "__func__", thing)
    if isinstance(thing, FunctionType):
        return [thing]
    members = vars(thing if isinstance(thing, type) else type(thing)).values()
    return [member for member in map(unwrap, members) if isinstance(member, FunctionType)]


def _parts(thing: Any, seen: list[object]) -> Iterator[bytes]:
    if any(thing is one for one in seen):
        return
    seen.append(thing)
    functions = functions_of(thing)
    if not functions:
        kind = thing if isinstance(thing, type) else type(thing)
        yield f"{kind.__module__}.{kind.__qualname__}.{getattr(thing, '__qualname__', '')}".encode()
    for function in functions:
        file = Path(function.__code__.co_filename)
        if file.is_file() and function.__module__ != MAIN:
            for path in [one for one in _files(function, file) if one not in seen]:
                seen.append(path)
                yield path.name.encode() + path.read_bytes()
        else:
            yield from _compiled(function.__code__)
            for name in sorted(_names(function.__code__) & function.__globals__.keys()):
                value = function.__globals__[name]
                if isinstance(value, PLAIN):
                    yield f"{name}={value!r}".encode()
                elif getattr(value, "__module__", "") == MAIN and isinstance(value, FunctionType | type):
                    yield from _parts(value, seen)
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
        yield _plain([*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *cells])
        for value in cells:
            if isinstance(value, FunctionType | type):
                yield from _parts(value, seen)
    while isinstance(thing, partial):
        yield _plain([*thing.args, *thing.keywords, *thing.keywords.values()])
        thing = thing.func
    if not isinstance(thing, FunctionType | type):
        yield _plain([item for pair in sorted(getattr(thing, "__dict__", {}).items()) for item in pair])


def _plain(values: Iterable[object]) -> bytes:
    return repr([value for value in values if isinstance(value, PLAIN)]).encode()


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that is not set yet
        return False


def _compiled(code: CodeType) -> Iterator[bytes]:
    """Instructions, names and constants, without line numbers."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _compiled(value)
        else:  # the order of a set differs between processes
            yield repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value).encode()


def _names(code: CodeType) -> set[str]:
    inner = (value for value in code.co_consts if isinstance(value, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _files(function: FunctionType, file: Path) -> list[Path]:
    """The file of a function and those next to it that its module imports, directly or through another; sorted."""
    module = sys.modules.get(function.__module__)
    found = {file: module}
    if module is None or "site-packages" in file.parts:
        return [file]
    waiting = [module]
    while waiting:
        for value in list(vars(waiting.pop()).values()):
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            other = sys.modules.get(name) if isinstance(name, str) else None
            path = Path(getattr(other, "__file__", None) or "")
            if other is not None and path.parent == file.parent and path not in found and path.is_file():
                found[path] = other
                waiting.append(other)
    return sorted(found)
