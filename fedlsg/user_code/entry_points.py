"""What installed packages offer in entry point groups."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedlsg.user_code.failure import run


@cache  # of installed packages: for a process
def offered(group: str) -> Mapping[str, EntryPoint]:
    """What installed packages offer in an entry point group, by name; nothing of it is imported.

    Raises ValueError where two packages offer one name.
    """
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        before = points.setdefault(point.name, point)
        if before.value != point.value:
            raise ValueError(
                f"two packages offer {point.name!r} in {group}: {before.value} and {point.value}; "
                "uninstall one of them"
            )
    return points


def imported(point: EntryPoint) -> Any:
    """What an entry point stands for. Raises ImportError, naming it, for code that fails."""
    return run(f"{point.group}: {point.name} = {point.value}", point.load)
