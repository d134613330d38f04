"""Code of a user's own by its name: ``FILE.py:NAME``, ``MODULE:NAME``, an object given in Python,
or an entry point.

    permit("mine.py:recipe")             who names code on a command line, in Python, or trusts a
                                         run directory
    build = load("mine.py:recipe")       runs mine.py once a process, and returns its function
                                         ``recipe``

A setting that names code runs nothing by itself: ``load`` refuses every name of a file or module
that was not permitted in this process, and nothing else here or elsewhere imports what a setting
names. A deployed client permits none. It runs what its bundle or an installed package holds,
whatever a run config names. ``digest`` has digests of such code, ``failure`` its errors in words,
``objects`` what its objects hold.
"""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import CodeType, MappingProxyType, ModuleType
from typing import Any, TypeVar

from fedlsg.config.choices import did_you_mean
from fedlsg.user_code.digest import OURS
from fedlsg.user_code.failure import without_exit

T = TypeVar("T")

_PERMITTED: dict[str, str] = {}
"""Names that may run, and the name of what runs for each: the file of a recorded name may have
moved.
"""
_COMPARED: dict[Path, str] = {}
"""SHA-256 of files that were compared with a record before they ran: no other text of them runs."""
_FILES: dict[Path, tuple[str, ModuleType]] = {}


DATA = "data:"
"""Before a path or name of public data in a setting."""


def permit(
    *names: str, of: str | None = None, files: Mapping[Path, str] = MappingProxyType({})
) -> None:
    """Let names of files and modules run code in this process: its user wrote them, or trusts who
    did.

    ``of``: the recorded name that the single name given here stands for, where a run directory has
    another path.
    ``files``: SHA-256 of those that it was permitted for; without any, the text runs that is there
    then.
    """
    for name in names:
        _PERMITTED[absolute(of or name)] = absolute(name)
        place = name.rpartition(":")[0]
        if place.endswith(".py") and not files:
            for path in [path for path in _COMPARED if path.is_relative_to(_path(place).parent)]:
                del _COMPARED[path]
    _COMPARED.update(files)
    for path in [path for path in files if not {"site-packages", "dist-packages"} & {*path.parts}]:
        _read_text_in(path.parent.parent if path.name == "__init__.py" else path.parent)


def is_permitted(name: str) -> bool:
    """Whether a name may run code in this process."""
    return absolute(name) in _PERMITTED


def stands_for(name: str) -> str:
    """What runs for a permitted name; every other name for itself."""
    return _PERMITTED.get(absolute(name), name)


def is_reference(name: str) -> bool:
    """Whether a name in a setting is that of a file or a module, and of something in it."""
    return ":" in name or name.endswith(".py")


def is_code(name: str) -> bool:
    """Whether a name in a setting is that of code, and not of public data."""
    return is_reference(name) and not name.startswith(DATA)


def absolute(name: str) -> str:
    """The same name, with the absolute path of its file or data; other names as they are."""
    place, colon, attribute = name.rpartition(":")
    if name.startswith(DATA):
        path = name.removeprefix(DATA)
        # else it is the name of a data set
        return f"{DATA}{_path(path)}" if set(path) & set("/.~") else name
    return f"{_path(place)}{colon}{attribute}" if place.endswith(".py") else name


def short(name: str) -> str:
    """A name for folders and labels: ``mine-recipe`` for ``/somewhere/mine.py:recipe``."""
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).stem}-{attribute}" if place else name


def shown(name: str) -> str:
    """A name for people: ``mine.py:recipe``, without the folders of this machine."""
    if name.startswith(DATA):
        return f"{DATA}{Path(name.removeprefix(DATA)).name}"
    place, colon, attribute = name.rpartition(":")
    if not place and Path(name).is_absolute():  # of weights, say
        return Path(name).name
    return f"{Path(place).name}{colon}{attribute}"


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
    module = _file(_path(place), kind) if place.endswith(".py") else _module(place, kind)
    found = getattr(module, attribute, None)
    if found is None:
        own = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise ValueError(
            f"{place} has no {attribute!r}{did_you_mean(attribute, own)}: expected {kind} as "
            "FILE.py:NAME"
        )
    return found


def _path(place: str) -> Path:
    return Path(place).expanduser().resolve()


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
    loader = _Text(name, str(path))
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
    _read_text_in(folder)
    others = {str(path.parent) for path in _FILES} - {str(folder)}
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: a random.py next to the file hides no module of Python
    sys.path[:] = [
        *(entry for entry in sys.path if entry not in others),
        *(e for e in sys.path if e in others),
    ]
    for module in modules_of_files():
        if (
            str(Path(str(module.__file__)).parent) in others
            and (folder / f"{module.__name__}.py").is_file()
        ):
            sys.modules.pop(module.__name__, None)


class _Text(SourceFileLoader):
    """Runs the text of a file. A compiled copy next to it may say what nobody reads and no digest
    is of.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text = self.get_data(path)
        if _COMPARED.get(Path(path), found := hashlib.sha256(text).hexdigest()) != found:
            raise ValueError(
                f"{path} changed after it was compared with the run's record: start the command "
                "again"
            )
        return self.source_to_code(text, path)


@cache  # a hook is set once, and stays: for a process
def _read_text_in(folder: Path) -> None:
    """Let no import from a folder of the user's, or from below it, read a compiled copy."""

    def find(path: str) -> FileFinder:
        inside = Path(path).is_relative_to(folder)
        parts = Path(path).relative_to(folder).parts if inside else ()
        if not inside or "site-packages" in parts or parts[:1] == (OURS,):
            raise ImportError
        return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_Text, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, find)
    for path in [path for path in sys.path_importer_cache if Path(path).is_relative_to(folder)]:
        del sys.path_importer_cache[path]


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
    return spec is None or (spec.origin is not None and _path(spec.origin) == path)


def run(place: str, code: Callable[[], T]) -> T:
    """What the code of a user's own gives. Raises ImportError, naming file and line, for code that
    fails.

    ``place``: its file or module, named where the error comes from elsewhere.
    """
    try:
        with without_exit():
            return code()
    except Exception as error:
        lines = [(step.filename, step.lineno) for step in traceback.extract_tb(error.__traceback__)]
        inside = [line for line in lines if line[0] == place] or [
            line for line in lines if Path(line[0]) in _FILES
        ]
        if isinstance(error, SyntaxError) and error.filename:
            inside = [(error.filename, error.lineno)]
        where = f"{inside[-1][0]}, line {inside[-1][1]}" if inside else place
        raise ImportError(f"{where}: {type(error).__name__}: {error}") from error


@cache  # of installed packages: for a process
def offered(group: str) -> Mapping[str, EntryPoint]:
    """What installed packages offer in an entry point group, by name; nothing of it is imported.

    Raises ValueError where two packages offer one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        before = found.setdefault(point.name, point)
        if before.value != point.value:
            raise ValueError(
                f"two packages offer {point.name!r} in {group}: {before.value} and {point.value}; "
                "uninstall one of them"
            )
    return found


def imported(point: EntryPoint) -> Any:
    """What an entry point stands for. Raises ImportError, naming it, for code that fails."""
    return run(f"{point.group}: {point.name} = {point.value}", point.load)


def name_of(thing: Any) -> str:
    """The name under which any process can find a function of a file or module; its own name where
    none could.

    Functions of ``__main__`` and of notebooks, lambdas, and functions inside functions have only
    their own name.
    """
    own = str(getattr(thing, "__qualname__", type(thing).__name__))
    module = sys.modules.get(str(getattr(thing, "__module__", "")))
    if module is None or module.__name__ == "__main__" or getattr(module, own, None) is not thing:
        return own.rpartition(".")[2].strip("<>")
    file = getattr(module, "__file__", None)
    installed = file is None or "site-packages" in Path(file).parts
    return f"{module.__name__}:{own}" if installed else f"{file}:{own}"


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
