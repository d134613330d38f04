"""Tables from columns: what a table says of each item, for pages, terminals, Markdown, CSV and JSON, computed once."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulations.report.page import Row, RowKind, Table
from simulations.rundir.results import as_csv


@dataclass(frozen=True)
class Column:
    """What a table says of an item in one column.

    name: the heading, with the unit; empty: files have the column, and pages do not. value: of an item, for files.
    form: how people read the value, a format as ".2f" or a function; None and NaN are "--". key: the name in CSV, JSON
    and code; empty: not in files. words: of an item, in place of the value in its form. left: words, aligned on the
    left, which may fold. optional: a narrow terminal leaves it out, 1 first.
    """

    name: str
    value: Callable[[Any], Any]
    form: str | Callable[[Any], str] = ""
    key: str = ""
    words: Callable[[Any], str] | None = None
    left: bool = False
    optional: int = 0

    def shown(self, item: Any) -> str:
        """What people read of an item."""
        if self.words is not None:
            return self.words(item)
        value = self.value(item)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "--"
        return self.form(value) if callable(self.form) else format(value, self.form)


def records(columns: Iterable[Column], items: Iterable[Any]) -> list[dict[str, Any]]:
    """The values of items by the keys of their columns, for CSV and JSON."""
    kept = [column for column in columns if column.key]
    return [{column.key: column.value(item) for column in kept} for item in items]


def csv_of(rows: Sequence[Mapping[str, Any]], otherwise: str = "") -> str:
    """CSV with a header, see ``as_csv``; NaN as an empty cell."""
    empty = [{key: None if value != value else value for key, value in row.items()} for row in rows]
    return as_csv(empty, otherwise=otherwise)


def make_table(
    columns: Iterable[Column], items: Iterable[Any], *, title: str = "", note: str = "",
    style: Callable[[Any], RowKind] = lambda item: "", group: Callable[[Any], str] = lambda item: "",
    colour: Callable[[Any], str] = lambda item: "",
) -> Table:  # fmt: skip
    """A row for each item."""
    shown = [column for column in columns if column.name]
    optional = sorted((column.optional, place) for place, column in enumerate(shown) if column.optional)
    rows = (
        Row(cells=tuple(column.shown(one) for column in shown), style=style(one), group=group(one), colour=colour(one))
        for one in items
    )
    return Table(
        columns=tuple(column.name for column in shown), rows=tuple(rows), title=title, note=note,
        left=tuple(place for place, column in enumerate(shown) if column.left or not place),
        optional=tuple(place for _, place in optional),
    )  # fmt: skip
