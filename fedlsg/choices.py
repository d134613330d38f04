"""Look a name up in a table of choices, and suggest the nearest one for a misspelt name."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")

REMOVED = "was removed; commit 293cb648 of November 2026 still runs it"
"""The end of an error message for what was deleted."""


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return ``table[name]``.

    Raises:
        ValueError: unknown name; the message lists the known names and the nearest one.
    """
    if name in table:
        return table[name]
    raise ValueError(f"unknown {kind} {name!r}, expected one of {', '.join(table)}{did_you_mean(name, table)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known word, or nothing."""
    match = get_close_matches(word, list(known), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""
