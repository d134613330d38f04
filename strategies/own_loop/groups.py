"""The persons whose rows a loop has: ``PrivateStep(groups=...)``."""

from typing import Any

from fedlsg.config.units import UNITS, PersonGradient, Unit, unit_named
from fedlsg.training.persons import Persons, numbers_of

PERSON = "person"
"""The unit's name if the groups have no name."""


def unit_of_groups(groups: Any) -> Unit:
    """The unit of persons, with the name of the column if that is not taken."""
    name = getattr(groups, "name", None)
    is_usable = isinstance(name, str) and bool(name.strip()) and name not in UNITS
    return unit_named(name if is_usable else PERSON)


def persons_of(
    groups: Any, num_examples: int, most_rows: int, gradient: PersonGradient
) -> Persons | None:
    """The persons of the rows; None without groups.

    Raises ValueError, naming the argument, for groups that are no column, for another number of
    values than of rows, and for settings of persons without groups.
    """
    if type(most_rows) is not int or most_rows < 0:
        raise ValueError(f"expected person_rows={most_rows!r} to be an integer >= 0 (0: all rows)")
    if gradient not in ("mean", "sum"):
        raise ValueError(f"expected person_gradient={gradient!r} to be 'mean' or 'sum'")
    if groups is None:
        if most_rows or gradient != "mean":
            raise ValueError("person_rows and person_gradient are of persons: give groups=, too")
        return None
    if isinstance(groups, str):
        raise ValueError(
            f"groups={groups!r}: expected the values of the column, one a row, such as "
            f"table[{groups!r}]"
        )
    numbers = numbers_of(groups, "groups")
    if len(numbers) != num_examples or not num_examples:
        raise ValueError(
            f"groups: expected one value for each of {num_examples=} rows, got {len(numbers)}"
        )
    return Persons(numbers, most_rows=most_rows, gradient=gradient)
