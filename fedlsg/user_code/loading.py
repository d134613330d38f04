"""Run the file or import the module that a permitted name stands for, once a process.

A file may import its neighbours, as a script does: its folder is on ``sys.path``, after Python's
and packages' folders.
"""

import hashlib
import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from fedlsg.config.choices import did_you_mean
from fedlsg.user_code.failure import run
from fedlsg.user_code.names import path_of, shown
from fedlsg.user_code.permission import is_permitted, stands_for
from fedlsg.user_code.text_files import TextLoader, read_text_in

_FILES: dict[Path, tuple[str, ModuleType]] = {}
"""Invalid as soon as the text of a file has another digest: the module that it was run as."""


def load(name: str, kind: str) -> Any:
    """What a name of a file or module stands for. The file runs once a process, and again after it
    has changed.

    ``kind``: what it is to be, for error messages. Raises ValueError for a file, module or
    attribute that is not there, or for a name that was not permitted; ImportError, naming file and
    line, for code that fails.
    """
    if not is_permitted(name):
        raise ValueError(
            f"{kind} {shown(name)!r} names code, and this process runs none that a setting names: "
            "use an installed package or the app's own bundle"
        )
    place, _, attribute = stands_for(name).rpartition(":")
    if not place or not attribute:
        raise ValueError(f"{kind} {name!r}: expected FILE.py:NAME, as {place or 'mine.py'}:{kind}")
    module = _file(path_of(place), kind) if place.endswith(".py") else _module(place, kind)
    item = getattr(module, attribute, None)
    if item is None:
        functions = [
            key for key, value in vars(module).items() if callable(value) and key[0] != "_"
        ]
        raise ValueError(
            f"{place} has no {attribute!r}{did_you_mean(attribute, functions)}: expected {kind} as "
            "FILE.py:NAME"
        )
    return item


def _module(name: str, kind: str) -> ModuleType:
    top = name.partition(".")[0]
    if not top or importlib.util.find_spec(top) is None:
        raise ValueError(
            f"{kind} {name!r}: no module of this name is installed; a file is named as FILE.py:NAME"
        )
    return run(name, lambda: import_module(name))


def _file(path: Path, kind: str) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"{kind}: there is no file {path}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if path in _FILES and _FILES[path][0] == digest:
        return _FILES[path][1]
    _prefer(path.parent)
    name = path.stem if _is_free(path.stem, path) else f"user_code_{digest[:8]}"
    loader = TextLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and annotations look their module up

    def execute() -> ModuleType:
        try:
            loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return module

    _FILES[path] = digest, run(str(path), execute)
    return module


def _prefer(folder: Path) -> None:
    """Let a file import its neighbours: its folder comes before those of other files, after
    Python's and packages'.

    A neighbour of another file that has the same name is forgotten; the functions of that file keep
    it.
    """
    read_text_in(folder)
    others = {str(path.parent) for path in _FILES} - {str(folder)}
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: a random.py next to the file hides no module of Python
    sys.path.sort(key=others.__contains__)  # others last; each part keeps its order
    for module in modules_of_files():
        if (
            str(Path(str(module.__file__)).parent) in others
            and (folder / f"{module.__name__}.py").is_file()
        ):
            sys.modules.pop(module.__name__, None)


def _is_free(name: str, path: Path) -> bool:
    """Whether a module may have this name: no module of Python or of a package has it, loaded or
    not.
    """
    if not name.isidentifier():
        return False
    known = sys.modules.get(name)
    if known is not None:
        return getattr(known, "__file__", None) == str(path)
    spec = importlib.util.find_spec(name)
    return spec is None or (spec.origin is not None and path_of(spec.origin) == path)


def modules_of_files() -> list[ModuleType]:
    """Modules of a user's own: files that were named, and what they imported from their own
    folders.
    """
    folders = {path.parent for path in _FILES}
    modules = list(sys.modules.values()) if folders else []  # thousands
    return [
        m
        for m in modules
        if (file := getattr(m, "__file__", None)) and Path(file).parent in folders
    ]
