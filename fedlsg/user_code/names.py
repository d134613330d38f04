"""Names of code and of public data in settings: ``FILE.py:NAME``, ``MODULE:NAME``, ``data:PATH``.

Nothing here runs or imports what a name stands for.
"""

import sys
from pathlib import Path
from typing import Any

DATA = "data:"
"""Before a path or name of public data in a setting."""


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
        return f"{DATA}{path_of(path)}" if set(path) & set("/.~") else name
    return f"{path_of(place)}{colon}{attribute}" if place.endswith(".py") else name


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


def path_of(place: str) -> Path:
    """The absolute path of a place, without links."""
    return Path(place).expanduser().resolve()


def name_of(thing: Any) -> str:
    """The name under which any process can find a function of a file or module.

    Its own name if no other process could find it.
    Functions of ``__main__`` and of notebooks, lambdas, and functions inside functions have only
    their own name.
    """
    qualified = str(getattr(thing, "__qualname__", type(thing).__name__))
    module = sys.modules.get(str(getattr(thing, "__module__", "")))
    if (
        module is None
        or module.__name__ == "__main__"
        or getattr(module, qualified, None) is not thing
    ):
        return qualified.rpartition(".")[2].strip("<>")
    file = getattr(module, "__file__", None)
    installed = file is None or "site-packages" in Path(file).parts
    return f"{module.__name__}:{qualified}" if installed else f"{file}:{qualified}"
