"""Advice about names of clients that differ in case or blanks only, such as "Aachen" and "aachen ".

Most often this is one client, written in two ways in a table of the user's. As two clients, it
would have two budgets. Only the owner of the data sees the advice, because it has names.
"""

from collections.abc import Sequence

MAX_GROUPS = 3
"""Groups of names that are printed."""


def alike_line(names: Sequence[str] | None) -> str | None:
    """One sentence about names that are alike; None if there are none."""
    groups: dict[str, list[str]] = {}
    for name in names or ():
        without_case_and_blanks = " ".join(name.casefold().split())
        groups.setdefault(without_case_and_blanks, []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    if not alike:
        return None
    words = "; ".join(" and ".join(map(repr, group)) for group in alike[:MAX_GROUPS])
    hidden = len(alike) - MAX_GROUPS
    more = f"; and {hidden:,} more" if hidden > 0 else ""
    return (
        f"names of clients that differ in case or blanks alone are clients of their own: {words}"
        f"{more}. Write them alike where they are one"
    )
