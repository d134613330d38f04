"""Permission to run the code that a name in a setting stands for, in this process.

A setting that names code runs nothing by itself. Code is permitted by a user who names it on a
command line or in Python, or who trusts a run directory. A deployed client permits none.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fedlsg.user_code.names import absolute, path_of
from fedlsg.user_code.text_files import allow_any, allow_only

_PERMITTED: dict[str, str] = {}
"""Names that may run, each with the name of the code that runs for it: the file of a recorded name
may have moved.
"""


def permit(
    *names: str, of: str | None = None, files: Mapping[Path, str] = MappingProxyType({})
) -> None:
    """Permit the code of these names in this process.

    names: of code that the user of the process wrote, or whose author the user trusts.
    of: the recorded name that the single name given here stands for, if a run directory has another
        path.
    files: SHA-256 of the files for which the permission was given. Without any, the text runs that
        is there at the time.
    """
    for name in names:
        _PERMITTED[absolute(of or name)] = absolute(name)
        place = name.rpartition(":")[0]
        if place.endswith(".py") and not files:
            allow_any(path_of(place).parent)
    allow_only(files)


def is_permitted(name: str) -> bool:
    """Whether a name may run code in this process."""
    return absolute(name) in _PERMITTED


def stands_for(name: str) -> str:
    """The name of the code that runs for a permitted name; every other name itself."""
    return _PERMITTED.get(absolute(name), name)
