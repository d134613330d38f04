"""Clients whose names differ in case or blanks alone, as "Aachen" and "aachen ": most often one
client, written in two ways. A line for their owner, who alone sees names.
"""

from collections.abc import Sequence

SHOWN = 3
"""Groups of names that a line has, at most."""


def alike_line(names: Sequence[str] | None) -> str | None:
    """The names that are alike, in one sentence; None where all differ in more."""
    groups: dict[str, list[str]] = {}
    for name in names or ():
        groups.setdefault(" ".join(name.casefold().split()), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    if not alike:
        return None
    words = "; ".join(" and ".join(map(repr, group)) for group in alike[:SHOWN])
    more = f"; and {len(alike) - SHOWN:,} more" if len(alike) > SHOWN else ""
    return (
        f"names of clients that differ in case or blanks alone are clients of their own: {words}"
        f"{more}. Write them alike where they are one"
    )
