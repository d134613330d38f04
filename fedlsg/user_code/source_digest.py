"""SHA-256 of the code that a name would run, without running it.

It is for the user who decides whether the code may run.
The code of a name (FILE.py:NAME or MODULE:NAME) is its file and all files below the folder of that
file which it imports, directly or through another, anywhere in its text.
"""

import ast
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from importlib.util import find_spec
from pathlib import Path

from fedlsg.user_code.digest import OURS


def digest_of_source(name: str) -> str:
    """SHA-256 of the code that a name would run; "" if there is no such file."""
    return source_of(name).digest


@dataclass(frozen=True, kw_only=True)
class Source:
    """The code that a name would run.

    digest: as ``digest_of_source``.
    files: SHA-256 of each of its files.
    root: the folder where imports begin.
    """

    digest: str
    files: Mapping[Path, str]
    root: Path

    @property
    def by_name(self) -> dict[str, str]:
        """``files`` by their paths below ``root``."""
        return {os.path.relpath(path, self.root): digest for path, digest in self.files.items()}


def source_of(name: str) -> Source:
    """The code that a name would run. Each file is read once."""
    place, _, _ = name.rpartition(":")
    root, first_files = _place(place)
    texts = _texts(root, first_files)
    sha = hashlib.sha256()
    for path in sorted(texts):
        for part in (os.path.relpath(path, root).encode(), texts[path]):
            sha.update(len(part).to_bytes(8, "little") + part)
    files = {path: hashlib.sha256(texts[path]).hexdigest() for path in sorted(texts)}
    return Source(digest=sha.hexdigest() if files else "", files=files, root=root)


def _texts(root: Path, files: Iterable[Path]) -> dict[Path, bytes]:
    """The text of files, and of what they import from ``root``, directly or through another.

    Imports of installed packages are not followed: their code is not the user's.
    """
    texts: dict[Path, bytes] = {}
    waiting = list(files)
    while waiting:
        path = waiting.pop()
        if path in texts:
            continue
        texts[path] = path.read_bytes()
        if "site-packages" not in root.parts:
            for base, name in _imports(path, texts[path], root):
                waiting += _files_of_import(base, name)
    return texts


def _place(place: str) -> tuple[Path, list[Path]]:
    """The folder where imports begin, and the files of a file's or module's name.

    A package is looked up, and not run.
    """
    if place.endswith(".py"):
        path = Path(place).expanduser().resolve()
        return path.parent, [path] if path.is_file() else []
    top = place.partition(".")[0]
    try:
        spec = find_spec(top) if top else None
    except ValueError:  # a module that was made by hand
        spec = None
    if spec is None or not (spec.has_location or spec.submodule_search_locations):
        return Path(), []  # there is none, or it is a part of Python itself
    folders = list(spec.submodule_search_locations or [])
    root = Path(folders[0] if folders else str(spec.origin)).parent
    return root, _files_of_import(root, place)


def _imports(file: Path, text: bytes, root: Path) -> Iterator[tuple[Path, str]]:
    """What a file imports: the folder where Python begins to look, and the dotted name.

    Imports of fedlsg are left out: its own code has a version.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # Python cannot run it, or it is compiled
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not _is_ours(alias.name):
                    yield root, alias.name
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names]
            base = root
            if 0 < node.level < len(file.parts):
                base = [file, *file.parents][node.level]  # each dot is a folder up
            if node.level or not _is_ours(names[0]):
                for name in names:
                    yield base, name


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == OURS


def _files_of_import(base: Path, name: str) -> list[Path]:
    """The files that Python may run to import a dotted name: of the module, and of the packages
    above it.

    If the name ends with a star, also all modules of the package: ``__all__`` may name any of them.
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
    if last == "*":
        package = base.joinpath(*parts)
        modules = [*package.glob("*"), *package.glob("*/__init__.*")]
        candidates += [str(path) for path in modules if path.name.endswith(tuple(all_suffixes()))]
    return [path for path in map(Path, candidates) if path.is_file()]
