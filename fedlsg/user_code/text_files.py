"""Import a user's files from their text, never from a compiled copy.

After ``allow_only``, a file whose text differs from the given one does not run.
"""

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType

from fedlsg.user_code.digest import OURS

_COMPARED: dict[Path, str] = {}
"""SHA-256 of the only texts that may run, of files that were compared with a record."""


def allow_only(files: Mapping[Path, str]) -> None:
    """From now on, only these texts of the files run; ``files``: their SHA-256.

    Not so for installed packages: every library in their folder would be compiled anew.
    """
    _COMPARED.update(files)
    for path in files:
        if not {"site-packages", "dist-packages"} & {*path.parts}:
            # Python looks for a package in the folder around the package's own
            read_text_in(path.parent.parent if path.name == "__init__.py" else path.parent)


def allow_any(folder: Path) -> None:
    """From now on, any text of the files in a folder runs."""
    for path in [path for path in _COMPARED if path.is_relative_to(folder)]:
        del _COMPARED[path]


class TextLoader(SourceFileLoader):
    """Imports the text of a file, and never a compiled copy next to it.

    Nobody reads a compiled copy, and it is in no digest.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text = self.get_data(path)
        expected = _COMPARED.get(Path(path))
        if expected is not None and expected != hashlib.sha256(text).hexdigest():
            raise ValueError(
                f"{path} changed after it was compared with the run's record: start the command "
                "again"
            )
        return self.source_to_code(text, path)


@cache  # a hook is set once, and stays: for a process
def read_text_in(folder: Path) -> None:
    """Let no import from a folder of the user's, or from below it, read a compiled copy."""

    def find(path: str) -> FileFinder:
        inside = Path(path).is_relative_to(folder)
        parts = Path(path).relative_to(folder).parts if inside else ()
        if not inside or "site-packages" in parts or parts[:1] == (OURS,):
            raise ImportError  # tells Python to ask the next hook
        return FileFinder(
            path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (TextLoader, SOURCE_SUFFIXES)
        )

    sys.path_hooks.insert(0, find)
    for path in [path for path in sys.path_importer_cache if Path(path).is_relative_to(folder)]:
        del sys.path_importer_cache[path]
