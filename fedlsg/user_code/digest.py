"""SHA-256 of code of a user's own, and fedlsg's version: a run keeps both, and a resumed run
refuses other code.

Of code in a file: that file, and the modules next to it that it imports at its top. Of a function
of a script or a notebook, where other lines say nothing of it: its instructions and constants, and
the functions, classes and plain values of the script that it names. Of both: the plain values that
it captures (defaults, closure, arguments of a partial, attributes of an object).

``digest_of_source`` runs nothing: it is of the files that a name would run, for who decides whether
it may.

The version is that of a clone or bundle from its pyproject.toml, else of the installed package.
"""

import ast
import hashlib
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import all_suffixes
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

MAIN = "__main__"
OURS = "fedlsg"
HOME = Path(__file__).resolve().parents[1]
"""The folder of the package fedlsg that this process imported."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def digest_of(thing: Any) -> str:
    """SHA-256 of the code of a function, class or object: 64 hex digits; of what has no code in
    Python, of its name.
    """
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
                elif getattr(value, "__module__", "") == MAIN and isinstance(
                    value, FunctionType | type
                ):
                    yield from _parts(value, seen)
        cells = [
            value for cell in filled_cells(function) if (value := cell.cell_contents) is not None
        ]
        yield _plain(
            [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *cells]
        )
        for value in cells:
            if isinstance(value, FunctionType | type):
                yield from _parts(value, seen)
    while isinstance(thing, partial):
        yield _plain([*thing.args, *thing.keywords, *thing.keywords.values()])
        thing = thing.func
    if not isinstance(thing, FunctionType | type):
        yield _plain(
            [item for pair in sorted(getattr(thing, "__dict__", {}).items()) for item in pair]
        )


def _plain(values: Iterable[object]) -> bytes:
    return repr([value for value in values if isinstance(value, PLAIN)]).encode()


def filled_cells(function: FunctionType) -> list[CellType]:
    """What a function holds of its surroundings, without names that are not set yet."""
    cells = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            cell.cell_contents  # noqa: B018 - raises for a name that is not set yet
            cells.append(cell)
    return cells


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
    """The file of a function and those next to it that its module imports, directly or through
    another; sorted.
    """
    module = sys.modules.get(function.__module__)
    files = {file: module}
    if module is None or "site-packages" in file.parts:
        return [file]
    waiting = [module]
    while waiting:
        for value in list(vars(waiting.pop()).values()):
            name = (
                value.__name__
                if isinstance(value, ModuleType)
                else getattr(value, "__module__", None)
            )
            other = sys.modules.get(name) if isinstance(name, str) else None
            path = Path(getattr(other, "__file__", None) or "")
            if (
                other is not None
                and path.parent == file.parent
                and path not in files
                and path.is_file()
            ):
                files[path] = other
                waiting.append(other)
    return sorted(files)


def digest_of_source(name: str) -> str:
    """SHA-256 of the code that a name (FILE.py:NAME, MODULE:NAME) would run; "" where there is no
    such file.

    Of the file and of all files below its folder that it imports, directly or through another,
    anywhere in its code.
    """
    return source_of(name).digest


@dataclass(frozen=True, kw_only=True)
class Source:
    """``digest``: as ``digest_of_source``; ``files``: SHA-256 of each file that it has; ``root``:
    their folder.
    """

    digest: str
    files: Mapping[Path, str]
    root: Path

    @property
    def by_name(self) -> dict[str, str]:
        """``files`` by their names in the folder."""
        return {os.path.relpath(path, self.root): digest for path, digest in self.files.items()}


def source_of(name: str) -> Source:
    """The code that a name would run. Each file is read once."""
    root, files = _place(name.rpartition(":")[0])
    texts = _texts(root, files)
    sha, by_path = hashlib.sha256(), dict[Path, str]()
    for path in sorted(texts):
        for part in (os.path.relpath(path, root).encode(), texts[path]):
            sha.update(len(part).to_bytes(8, "little") + part)
        by_path[path] = hashlib.sha256(texts[path]).hexdigest()
    return Source(digest=sha.hexdigest() if by_path else "", files=by_path, root=root)


def _texts(root: Path, files: Iterable[Path]) -> dict[Path, bytes]:
    """Files, and what their import statements find in ``root``, directly or through another;
    packages are no user's.
    """
    texts, waiting = dict[Path, bytes](), list(files)
    while waiting:
        path = waiting.pop()
        if path not in texts:
            texts[path] = path.read_bytes()
            if "site-packages" not in root.parts:
                waiting += [
                    one
                    for base, name in _imports(path, texts[path], root)
                    for one in _found(base, name)
                ]
    return texts


def _place(place: str) -> tuple[Path, list[Path]]:
    """The folder that imports start from, and the files of a place; a package is looked up and not
    run.
    """
    if place.endswith(".py"):
        path = Path(place).expanduser().resolve()
        return path.parent, [path] if path.is_file() else []
    top = place.partition(".")[0]
    try:
        spec = find_spec(top) if top else None
    except ValueError:  # a module that was made by hand
        spec = None
    # or Python's own
    if spec is None or not (spec.has_location or spec.submodule_search_locations):
        return Path(), []
    where = Path([*(spec.submodule_search_locations or ()), str(spec.origin)][0])
    return where.parent, _found(where.parent, place)


def _imports(file: Path, text: bytes, root: Path) -> Iterator[tuple[Path, str]]:
    """What a file imports: the folder where Python begins to look, and the dotted name."""
    try:
        tree = ast.parse(text)
    # Python cannot run it, or it is compiled
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (root, alias.name) for alias in node.names if alias.name.partition(".")[0] != OURS
            )
        elif isinstance(node, ast.ImportFrom):
            base = [file, *file.parents][node.level] if node.level < len(file.parts) else root
            names = [f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names]
            if node.level or names[0].partition(".")[0] != OURS:
                yield from ((base if node.level else root, name) for name in names)


def _found(base: Path, name: str) -> list[Path]:
    """The files that Python may run to import a dotted name: of a module, or of the packages above
    it.

    Where the name ends with a star, also all modules of the package: ``__all__`` may name any of
    them.
    """
    *parts, last = name.split(".")
    if last != "*":
        parts.append(last)
    places = [base.joinpath(*parts[:n]) for n in range(1, len(parts) + 1)]
    candidates = [
        f"{place}{end}{suffix}"
        for place in places
        for end in ("/__init__", "")
        for suffix in all_suffixes()
    ]
    starred = (
        [*base.joinpath(*parts).glob("*"), *base.joinpath(*parts).glob("*/__init__.*")]
        if last == "*"
        else []
    )
    candidates += [str(path) for path in starred if path.name.endswith(tuple(all_suffixes()))]
    return [path for path in map(Path, candidates) if path.is_file()]


def version() -> str:
    """The version of the package that this process imported."""
    return version_at(HOME.parent)


def version_at(root: Path) -> str:
    """The version in the pyproject.toml next to the packages (clone, bundle), else that of the
    installed package.
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
