"""The clients of a run as a table and a figure: epsilon, and results on their parts of test.

Rows are those of clients.csv, or ``by_client`` of summary.json, the worst client first.
Their keys are declared in storage/results.py and made in server/client_rows.py.
"""

import math
from collections.abc import Sequence
from typing import Any

from fedlsg.simulations.report.drawing.chart import Axis, Chart, Series, guessing, spaced
from fedlsg.simulations.report.pages.figure import interactive
from fedlsg.simulations.report.pages.page import Part, Table
from fedlsg.simulations.report.pages.table import Column, make_table
from fedlsg.simulations.report.words import client_words, epsilon_words, percent, printable
from fedlsg.simulations.storage.atomic_files import Record

Rows = Sequence[Record]
ON_TERMINAL, ON_PAGE = 20, 200
"""The most rows of a table: the first ones, which are the worst clients."""
BARS = 60
"""The most bars of a figure; for more clients it has a line."""
LETTERS = 16
"""Letters of a name below a bar."""
CAPTION = (
    "Each client's own part of the public test split, the worst client first. A part of few rows "
    "says little: of 25 rows, an accuracy is known within 20 points."
)


def client_table(rows: Rows, most: int, title: str = "") -> Table:
    """A row for each client, ``most`` at most."""
    left = len(rows) - most
    note = f"and {left:,} more: all are in clients.csv" if left > 0 else ""
    named = any("name" in row for row in rows)

    def column(key: str, name: str, form: Any) -> list[Column]:
        known = any(row.get(key) is not None for row in rows)
        return [Column(name, lambda row: row.get(key), form, key)] if known else []

    columns = [
        Column("client", lambda row: row["client"], words=lambda row: printable(name_in(row))),
        *([Column("number", lambda row: row["client"], "d", optional=1)] if named else []),
        *column("examples", "examples", ",d"),
        *column("persons", "persons", ",d"),
        *column("planned", "planned epsilon", epsilon_words),
        *column("delta", "delta", "g"),
        *column(
            "epsilon",
            "spent" if any("planned" in row for row in rows) else "epsilon",
            epsilon_words,
        ),
        *column("left", "left", _left_words),
        *column("weight", "weight", ".3g"),
        *column("test_rows", "test rows", ",d"),
        *column("accuracy", "accuracy", percent),
        *column("loss", "loss", ".3f"),
    ]
    return make_table(columns, rows[:most], title=title, note=note)


def _left_words(left: float) -> str:
    """Epsilon left, rounded down to 3 places.

    The tiny rest that calibration leaves shows as 0, because no round fits into it.
    """
    return f"{math.floor(1000 * left) / 1000:g}"


def name_in(row: Record) -> str:
    """What a row calls its client."""
    return str(row.get("name", row["client"]))


def _tick_name(row: Record) -> str:
    """The name below a client's bar, cut to LETTERS."""
    name = printable(name_in(row))
    return f"{name[: LETTERS - 1]}…" if len(name) > LETTERS else name


def client_parts(rows: Rows, chance: float | None) -> list[Part]:
    """The figure, if clients were evaluated, and the table, for a page; empty without rows.

    chance: the accuracy of guessing; None if it is not known.
    """
    if not rows:
        return []
    table = client_table(rows, ON_PAGE)
    drawn = client_charts(rows, chance)
    return [*([interactive(drawn, CAPTION)] if drawn else []), table]


def client_charts(rows: Rows, chance: float | None = None) -> tuple[Chart, ...]:
    """Accuracy of each client that has test rows, or its loss, in the order of the rows."""
    tested = [row for row in rows if row.get("loss") is not None]
    if not tested:
        return ()
    if tested[0].get("accuracy") is None:
        losses = [row["loss"] for row in tested]
        return (_chart("Loss of each client", tested, losses, Axis(label="test loss", low=0)),)
    shares = [100 * row["accuracy"] for row in tested]
    level = () if chance is None else (guessing(100 * chance),)
    y = Axis(label="test accuracy, %", unit="%", low=0, high=100)
    return (_chart("Accuracy of each client", tested, shares, y, level),)


def _chart(
    title: str,
    rows: Rows,
    values: Sequence[float],
    y: Axis,
    more: tuple[Series, ...] = (),
) -> Chart:
    """A bar for each client, or a line over many."""
    many = len(rows) > BARS
    places = [float(place) for place in range(1, len(rows) + 1)]
    if many:
        x = Axis(label="clients, the worst first", whole=True)
    else:
        ticks = [(place, _tick_name(row)) for place, row in zip(places, rows, strict=True)]
        x = Axis(
            label="client, the worst first",
            ticks=spaced(ticks) if len(rows) > 1 else tuple(ticks),
            low=0.4,
            high=len(rows) + 0.6,
        )
    words = tuple(f"{client_words(row)}, {row['test_rows']:,} test rows" for row in rows)
    own = Series(x=places, y=list(values), kind="line" if many else "bar", words=words)
    return Chart(title=title, x=x, y=y, series=(own, *more), height=300)
