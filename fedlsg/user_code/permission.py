"""Which names of code may run in this process, and which texts of their files.

A setting that names code runs nothing by itself: who names code on a command line, in Python, or
trusts a run directory, permits it. A deployed client permits none.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fedlsg.user_code.names import absolute, path_of
from fedlsg.user_code.text_files import compare, compare_no_more

_PERMITTED: dict[str, str] = {}
"""Names that may run, and the name of what runs for each: the file of a recorded name may have
moved.
"""


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
            compare_no_more(path_of(place).parent)
    compare(files)


def is_permitted(name: str) -> bool:
    """Whether a name may run code in this process."""
    return absolute(name) in _PERMITTED


def stands_for(name: str) -> str:
    """What runs for a permitted name; every other name for itself."""
    return _PERMITTED.get(absolute(name), name)
