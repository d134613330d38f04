"""SHA-256 of a user's loaded code, and fedlsg's version.

A run keeps both, and a resumed run refuses other code. A digest is of

    a function of a file       the file, and the modules next to it that it imports at its top
    a function of a script     its instructions and constants, and the functions, classes and plain
    or notebook                values of the script that it names: other lines do not matter
    both                       the plain values that it captures: defaults, closure, arguments of a
                               partial, attributes of an object

The version is that of a clone or bundle from its pyproject.toml, else of the installed package.
"""

import hashlib
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from inspect import unwrap
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

MAIN = "__main__"
OURS = "fedlsg"
HOME = Path(__file__).resolve().parents[1]
"""The folder of the package fedlsg that this process imported."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types of values whose ``repr`` says all, in every process."""


def digest_of(thing: Any) -> str:
    """SHA-256 of the code of a function, class or object, 64 hex digits.

    Of something that has no code in Python, it is that of its name.
    """
    return digest_of_all([thing])


def digest_of_all(things: Iterable[object]) -> str:
    """One SHA-256 of the code of several things, in order."""
    sha, code = hashlib.sha256(), _Code()
    for thing in things:
        for part in code.parts(thing):
            sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()


def functions_of(thing: Any) -> list[FunctionType]:
    """The functions that a thing has: itself, that of a partial, or the methods of its class."""
    while isinstance(thing, partial):
        thing = thing.func
    thing = unwrap(thing) if callable(thing) else thing
    thing = getattr(thing, "__func__", thing)
    if isinstance(thing, FunctionType):
        return [thing]
    members = vars(thing if isinstance(thing, type) else type(thing)).values()
    return [member for member in map(unwrap, members) if isinstance(member, FunctionType)]


class _Code:
    """The bytes that a digest is of; each thing and each file is in it once."""

    def __init__(self) -> None:
        self._seen: list[object] = []
        self._files = set[Path]()

    def parts(self, thing: Any) -> Iterator[bytes]:
        """The code of a thing, and the plain values that it holds."""
        if any(thing is other for other in self._seen):
            return
        self._seen.append(thing)
        functions = functions_of(thing)
        if not functions:
            kind = thing if isinstance(thing, type) else type(thing)
            name = getattr(thing, "__qualname__", "")
            yield f"{kind.__module__}.{kind.__qualname__}.{name}".encode()
        for function in functions:
            yield from self._function(function)
        while isinstance(thing, partial):
            yield _plain([*thing.args, *thing.keywords, *thing.keywords.values()])
            thing = thing.func
        if not isinstance(thing, FunctionType | type):
            attributes = sorted(getattr(thing, "__dict__", {}).items())
            yield _plain([item for pair in attributes for item in pair])

    def _function(self, function: FunctionType) -> Iterator[bytes]:
        """The code of a function, and the plain values that it captures."""
        file = Path(function.__code__.co_filename)
        if file.is_file() and function.__module__ != MAIN:
            yield from self._whole_files(function, file)
        else:
            yield from self._function_of_script(function)
        contents = [cell.cell_contents for cell in filled_cells(function)]
        captured = [value for value in contents if value is not None]
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        yield _plain([*defaults, *captured])
        for value in captured:
            if isinstance(value, FunctionType | type):
                yield from self.parts(value)

    def _whole_files(self, function: FunctionType, file: Path) -> Iterator[bytes]:
        """Name and text of each file of a function that is not in the digest yet."""
        for path in _files(function, file):
            if path not in self._files:
                self._files.add(path)
                yield path.name.encode() + path.read_bytes()

    def _function_of_script(self, function: FunctionType) -> Iterator[bytes]:
        """The compiled code of a function of a script, and what it names there."""
        yield from _compiled(function.__code__)
        for name in sorted(_names(function.__code__) & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, PLAIN):
                yield f"{name}={value!r}".encode()
            elif isinstance(value, FunctionType | type) and value.__module__ == MAIN:
                yield from self.parts(value)


def _plain(values: Iterable[object]) -> bytes:
    return repr([value for value in values if isinstance(value, PLAIN)]).encode()


def filled_cells(function: FunctionType) -> list[CellType]:
    """The cells of a closure, without those of names that are not set yet."""
    cells = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            cell.cell_contents  # noqa: B018 - raises for a name that is not set yet
            cells.append(cell)
    return cells


def _compiled(code: CodeType) -> Iterator[bytes]:
    """Instructions, names and constants of compiled code, without line numbers."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _compiled(value)
        elif isinstance(value, frozenset):  # its order differs between processes
            yield repr(sorted(map(repr, value))).encode()
        else:
            yield repr(value).encode()


def _names(code: CodeType) -> set[str]:
    """The names that code and the functions inside it look up."""
    inner = (value for value in code.co_consts if isinstance(value, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _files(function: FunctionType, file: Path) -> list[Path]:
    """The file of a function, and the files next to it that its module imports, sorted.

    Directly or through another module.
    """
    module = sys.modules.get(function.__module__)
    if module is None or "site-packages" in file.parts:
        return [file]
    files = {file}
    waiting = [module]
    while waiting:
        for value in list(vars(waiting.pop()).values()):
            imported = _module_of(value)
            path = Path(getattr(imported, "__file__", None) or "")
            is_new = path.parent == file.parent and path not in files and path.is_file()
            if imported is not None and is_new:
                files.add(path)
                waiting.append(imported)
    return sorted(files)


def _module_of(value: Any) -> ModuleType | None:
    """A module itself, or the module in which a value was defined."""
    if isinstance(value, ModuleType):
        return sys.modules.get(value.__name__)
    name = getattr(value, "__module__", None)
    return sys.modules.get(name) if isinstance(name, str) else None


def version() -> str:
    """The version of the package that this process imported."""
    return version_at(HOME.parent)


def version_at(root: Path) -> str:
    """The version in the pyproject.toml next to the packages (clone, bundle).

    Else that of the installed package.
    """
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        if project["name"] == "fedlsg":
            return str(project["version"])
    except (OSError, ValueError, KeyError):
        pass
    try:
        return installed_version("fedlsg")
    except PackageNotFoundError:
        return "of no installed package"
