"""Tables from columns: what a table says of each item, for pages, terminals, Markdown, CSV and
JSON, computed once.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from fedlsg.simulations.report.pages.page import Row, RowKind, Table
from fedlsg.simulations.storage.results import as_csv

Words = Callable[[Any], str]
"""What people read of an item, or of a value."""


@dataclass(frozen=True)
class Column:
    """What a table says of an item in one column.

    name: the heading, with the unit; empty: files have the column, and pages do not.
    value: of an item, for files: a function, or the name of its attribute, with dots.
    form: how people read the value, a format as ".2f" or a function; None and NaN are "--".
    key: the name in CSV, JSON and code; empty: not in files.
    words: of an item, in place of the value in its form.
    left: words, aligned on the left, which may fold.
    optional: a narrow terminal leaves it out, 1 first.
    best: which value of a group of rows a page marks, the most or the least; or
        whether that of an item is marked.
    """

    name: str
    value: Callable[[Any], Any] | str
    form: str | Words = ""
    key: str = ""
    words: Words | None = None
    left: bool = False
    optional: int = 0
    best: Literal["", "most", "least"] | Callable[[Any], bool] = ""

    def of(self, item: Any) -> Any:
        """Its value of an item."""
        return attrgetter(self.value)(item) if isinstance(self.value, str) else self.value(item)

    def shown(self, item: Any) -> str:
        """What people read of an item."""
        if self.words is not None:
            return self.words(item)
        value = self.of(item)
        if value is None or value != value:
            return "--"
        return self.form(value) if callable(self.form) else format(value, self.form)


def records(columns: Iterable[Column], items: Iterable[Any]) -> list[dict[str, Any]]:
    """The values of items by the keys of their columns, for CSV and JSON."""
    kept = [column for column in columns if column.key]
    return [{column.key: column.of(item) for column in kept} for item in items]


def csv_of(rows: Sequence[Mapping[str, Any]], otherwise: str = "") -> str:
    """CSV with a header, see ``as_csv``; NaN as an empty cell."""
    empty = [{key: None if value != value else value for key, value in row.items()} for row in rows]
    return as_csv(empty, otherwise=otherwise)


def make_table(
    columns: Iterable[Column],
    items: Iterable[Any],
    *,
    title: str = "",
    note: str = "",
    style: Callable[[Any], RowKind] = lambda item: "",
    group: Words = lambda item: "",
    colour: Words = lambda item: "",
) -> Table:
    """A row for each item."""
    shown = [column for column in columns if column.name]
    optional = sorted(
        (column.optional, place) for place, column in enumerate(shown) if column.optional
    )
    items = list(items)
    best = _best(shown, items, group)
    rows = (
        Row(
            cells=tuple(column.shown(one) for column in shown),
            style=style(one),
            group=group(one),
            colour=colour(one),
            values=tuple(_number(column, one) for column in shown),
            best=frozenset(best.get(at, ())),
        )
        for at, one in enumerate(items)
    )
    return Table(
        columns=tuple(column.name for column in shown),
        rows=tuple(rows),
        title=title,
        note=note,
        # the first column says what a row is of: always on the left
        left=tuple(place for place, column in enumerate(shown) if column.left or place == 0),
        optional=tuple(place for _, place in optional),
    )


def _number(column: Column, item: Any) -> float | None:
    """The value of an item, if it is a number."""
    value = column.of(item)
    known = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    return float(value) if known else None


def _best(columns: Sequence[Column], items: Sequence[Any], group: Words) -> dict[int, set[int]]:
    """Positions of the columns in which an item is the best of its group, by the item's number."""
    columns_of_item: dict[int, set[int]] = {}
    for place, column in enumerate(columns):
        if callable(column.best):
            best_items = [number for number, item in enumerate(items) if column.best(item)]
        elif column.best:
            best_items = _extreme_items(column, items, group)
        else:
            continue
        for number in best_items:
            columns_of_item.setdefault(number, set()).add(place)
    return columns_of_item


def _extreme_items(column: Column, items: Sequence[Any], group: Words) -> list[int]:
    """Numbers of the items with the most, or the least, of each group.

    A group whose values are all equal has none.
    """
    groups: dict[str, dict[int, float]] = {}
    for number, item in enumerate(items):
        if (value := _number(column, item)) is not None:
            groups.setdefault(group(item), {})[number] = value
    extreme_of = max if column.best == "most" else min
    extreme_items = []
    for values in groups.values():
        if len(set(values.values())) > 1:
            extreme = extreme_of(values.values())
            extreme_items += [number for number, value in values.items() if value == extreme]
    return extreme_items
