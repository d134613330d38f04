"""Load user code by its name: run a file, or import a module, once a process.

Names are ``FILE.py:NAME`` or ``MODULE:NAME``, and must have been permitted (``permission``). A file
may import its neighbours, as a script does: its folder is on ``sys.path``, after the folders of
Python and of packages.
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
"""The digest of each file that was run, and its module: invalid once the file has another digest.
"""


def load(name: str, kind: str) -> Any:
    """The object that a name stands for. A file runs again after it has changed.

    ``kind``: what the object is for, for error messages.
    Raises ValueError for a file, module or attribute that is not there, or for a name that was not
    permitted; ImportError, naming file and line, for code that fails.
    """
    if not is_permitted(name):
        raise ValueError(
            f"{kind} {shown(name)!r} names code, and this process runs none that a setting names: "
            "use an installed package or the app's own bundle"
        )
    place, _, attribute = stands_for(name).rpartition(":")
    if not place or not attribute:
        raise ValueError(f"{kind} {name!r}: expected FILE.py:NAME, as {place or 'mine.py'}:{kind}")
    is_file = place.endswith(".py")
    module = _run_file(path_of(place), kind) if is_file else _import_module(place, kind)
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


def _import_module(name: str, kind: str) -> ModuleType:
    top = name.partition(".")[0]
    if not top or importlib.util.find_spec(top) is None:
        raise ValueError(
            f"{kind} {name!r}: no module of this name is installed; a file is named as FILE.py:NAME"
        )
    return run(name, lambda: import_module(name))


def _run_file(path: Path, kind: str) -> ModuleType:
    """The module of a file, run if that is new or has changed."""
    if not path.is_file():
        raise ValueError(f"{kind}: there is no file {path}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if path in _FILES and _FILES[path][0] == digest:
        return _FILES[path][1]
    _let_import_neighbours(path.parent)
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


def _let_import_neighbours(folder: Path) -> None:
    """Put the folder of a file on ``sys.path``: before those of other files, after all others.

    If a neighbour of another file has the name of a neighbour of this one, it leaves
    ``sys.modules``; functions that have imported it keep it.
    """
    read_text_in(folder)
    others = {str(path.parent) for path in _FILES} - {str(folder)}
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: a random.py next to the file hides no module of Python
    sys.path.sort(key=others.__contains__)  # others last; each part keeps its order
    for module in modules_of_files():
        is_of_other = str(Path(str(module.__file__)).parent) in others
        if is_of_other and (folder / f"{module.__name__}.py").is_file():
            sys.modules.pop(module.__name__, None)


def _is_free(name: str, path: Path) -> bool:
    """Whether the module of a file may have this name: no other module has it, loaded or not."""
    if not name.isidentifier():
        return False
    loaded = sys.modules.get(name)
    if loaded is not None:
        return getattr(loaded, "__file__", None) == str(path)
    spec = importlib.util.find_spec(name)
    return spec is None or (spec.origin is not None and path_of(spec.origin) == path)


def modules_of_files() -> list[ModuleType]:
    """The user's modules: files that were run, and what they imported from their own folders."""
    folders = {path.parent for path in _FILES}
    if not folders:  # the usual case: spares a look at thousands of modules
        return []
    files = [(module, getattr(module, "__file__", None)) for module in [*sys.modules.values()]]
    return [module for module, file in files if file and Path(file).parent in folders]
