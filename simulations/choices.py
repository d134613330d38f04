"""Look a name up in a table of choices, and help whoever misspelt it."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return ``table[name]``.

    Raises:
        ValueError: unknown name; the message lists the known names and the nearest one.
    """
    if name in table:
        return table[name]
    nearest = get_close_matches(name, table, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"unknown {kind} {name!r}, expected one of {', '.join(table)}{hint}")
