"""A check that a client runs the code of the app that was started, not that of another folder.

Flower's simulation gives the app's mods to its workers as objects, and each worker imports
``@app.train`` by the name of its module. A local SuperLink keeps the folder of its first app before
all others. So an app of the same package name in another folder gets the ``@app.train`` of the
first one.
"""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedlsg.simulations.client.node.refusals import SettingsError

BETWEEN = ("fedlsg.", "functools", "contextlib")
"""Modules on the stack between a user's line and ``of_caller``."""


@dataclass(frozen=True, kw_only=True)
class AppCode:
    """The code of an app.

    module: the name of the module that made the app.
    folder: of its package, or of the module if it is in no package.
    files: SHA-256 of the Python files by name: all of a package, or the module's own.
    """

    module: str
    folder: str
    files: Mapping[str, str]

    @classmethod
    def of_caller(cls) -> "AppCode | None":
        """The code of the module that calls into fedlsg; None for a script or a notebook."""
        frame = sys._getframe(1)
        while (name := str(frame.f_globals.get("__name__"))).startswith(BETWEEN):
            if frame.f_back is None:
                return None
            frame = frame.f_back
        return _of_module(name)

    def check(self) -> None:
        """Raise SettingsError if this process imported the module with other files than the app's.

        A file that only one of both has is no difference: Flower leaves some out of an app.
        """
        here = _of_module(self.module)
        if here is None or here.folder == self.folder:
            return
        different = sorted(
            name
            for name in here.files.keys() & self.files.keys()
            if here.files[name] != self.files[name]
        )
        if different:
            raise SettingsError(
                f"this client runs the code of another folder: {here.folder} has another "
                f"{', '.join(different)} than the app that was started ({self.folder}). A local "
                "SuperLink keeps the folder of its first app: stop it (pgrep -u $(id -u) -af "
                "flower-superlink; kill its number), then start this app again; or give the app a "
                "package name of its own"
            )


@cache  # of what this process imported, which stays
def _of_module(name: str) -> AppCode | None:
    """The code of an imported module; None for a script or a notebook."""
    module = sys.modules.get(name)
    if name == "__main__" or module is None or getattr(module, "__file__", None) is None:
        return None
    file = Path(str(module.__file__))
    paths = list(getattr(sys.modules.get(name.partition(".")[0]), "__path__", ()))  # of a package
    folder = Path(paths[0]) if paths else file.parent
    files = sorted(folder.rglob("*.py")) if paths else [file]
    return AppCode(
        module=name,
        folder=str(folder),
        files={
            file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
        },
    )
