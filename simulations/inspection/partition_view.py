"""``fedlsg partition``: sizes and class mixes of clients before training, as table, CSV, figure.

For simulations only: in a federation nobody sees these counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedlsg.simulations.planning.advice.balance import Balance, measure
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.report.drawing.chart import Axis, Chart, Series, level, spaced
from fedlsg.simulations.report.drawing.colours import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    NAVY,
    ORANGE,
    PLUM,
    RED,
    SKY,
    VIOLET,
)
from fedlsg.simulations.report.page_of_run.client_table import name_in
from fedlsg.simulations.report.pages.figure import check_drawing, interactive, plot, png
from fedlsg.simulations.report.pages.page import (
    Page,
    RowKind,
    Table,
    Text,
    TextKind,
    data_section,
    download,
    sections,
)
from fedlsg.simulations.report.pages.table import Column, csv_of, make_table
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.report.terminals.terminal import (
    fits,
    print_table,
    print_whole,
    print_written,
    write_private,
)
from fedlsg.simulations.report.words import client_words, printable
from fedlsg.simulations.settings.settings import from_mapping, names_given

CLASS_COLOURS = (BLUE, ORANGE, NAVY, SKY, PLUM, GREEN, RED, BLACK, VIOLET, GREY)
"""Colours of classes. Of more classes the most frequent ones have a colour, the rest has the last.
"""
PLAIN = Axis()
ROWS = "examples"
"""The unit of a client's size, unless it is a person."""
MAX_BARS = 100
"""Bars at most: of more clients a bar is the mean over several alike ones."""
WARNING = (
    "For simulations only: in a federation nobody sees these counts, and they are as private as "
    "the examples are."
)
CAPTION = (
    "What each client holds: a bar for each client, or the mean of clients that are alike where "
    "they are many, and a colour for each class. Equal bars mean that all clients hold the same "
    "mix."
)
MAX_ROWS = 20
"""The table has a row for each of so many clients; of more it has the ends and the quantiles."""
CLIENTS_AT_ENDS = 5
"""Smallest, and largest, clients in the table of many."""
MAX_HEADING_LETTERS = 40
"""A heading has the names of all classes if they have so many letters at most."""
QUANTILES = {
    "smallest": 0.0,
    "5 %": 0.05,
    "25 %": 0.25,
    "median": 0.5,
    "75 %": 0.75,
    "95 %": 0.95,
    "largest": 1.0,
}


def partition_command(given: dict[str, Any], out: str | None, console: Console) -> None:
    """Print the table and its conclusions; with ``out``, write partition.html, .csv and .png."""
    settings = from_mapping(given)
    if out is not None:
        check_drawing()
    with console.status("loading data") as status:
        balance = measure(prepare(settings, progress=status.update, given=names_given(given)))
    wide = table(balance, counted=True)
    print_table(wide if fits(wide, console.width) else table(balance, counted=False), console)
    for line, style in conclusions(balance):
        print_whole(line, console, style)
    if out is None:
        console.print(
            "add --out DIR for partition.html, .csv and .png", style="dim", highlight=False
        )
        return
    directory = Path(out).expanduser()
    data = csv_of(rows_of(balance)).encode()
    drawings = charts(balance)
    files = {
        "partition.csv": data,
        "partition.png": png(plot(drawings, columns=1)),
        "partition.html": page(balance, data, drawings).encode(),
    }
    write_private(directory, files)  # counts have no noise
    print_written(directory, ("partition.html", ".csv", ".png"), console)


StyledLine = tuple[str, str | None]
"""A line, and its style on a terminal."""
PAGE_STYLES: dict[str | None, TextKind] = {"bold red": "warning", "yellow": "warning"}
"""Style of a line on a page, by its style on a terminal."""


def page(balance: Balance, data: bytes, drawings: Sequence[Chart]) -> str:
    """partition.html; ``data`` are the bytes of partition.csv."""
    lines = tuple(
        Text(words=line, style=PAGE_STYLES.get(style, "plain"))
        for line, style in conclusions(balance)
        if line not in extremes(balance)
    )
    return render(
        Page(
            kind="fedlsg partition",
            title="Who holds what",
            lead=balance.title,
            headline=headline(balance),
            warnings=(WARNING,),
            sections=sections(
                ("Clients and classes", [interactive(drawings, CAPTION, columns=1)]),
                ("What follows", lines),
                ("Every client", [replace(table(balance, counted=False), title="")]),
                data_section(download("partition.csv", data, "a row for each client")),
            ),
        )
    )


def headline(balance: Balance) -> str:
    """The number of clients, their sizes, and how much their class mixes differ."""
    sizes = balance.sizes
    size = f"{sizes.min():,} to {sizes.max():,}" if np.ptp(sizes) else f"{sizes.min():,}"
    return (
        f"{len(sizes):,} clients hold {size} {balance.counted} each; the class mix of a client "
        f"differs from that of all by {balance.distances.mean():.2f} on average (0: equal, 1: "
        "nothing in common)."
    )


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table: a client, or a quantile of each column by itself.

    name: of the client, or of the quantile.
    values: numbers by the name of their column.
    top: the most frequent class in words; empty for a quantile.
    ok: whether delta holds for the client, in words; empty for a quantile.
    counts: examples of each class in words; empty for a quantile.
    group: heading of the rows.
    style: of the row.
    """

    name: str
    values: Mapping[str, float]
    top: str = ""
    ok: str = ""
    counts: str = ""
    group: str = ""
    style: RowKind = ""


def values_of(balance: Balance) -> dict[str, np.ndarray]:
    """The numbers of all clients, by the name of their column."""
    values = {balance.counted: balance.sizes}
    if balance.counted != ROWS:
        values["rows"] = balance.counts.sum(1)
    return values | {
        "q": balance.rates,
        "batch": balance.batches,
        "classes": np.count_nonzero(balance.counts, axis=1),
        "top class": 100 * balance.shares.max(1),
        "distance": balance.distances,
    }


def table(balance: Balance, *, counted: bool) -> Table:
    """A row for each client; of many, the smallest, the quantiles of each column, and the largest.

    counted: whether to add the examples of every class, which need room.
    """
    values = values_of(balance)

    def column(name: str, form: str) -> Column:
        return Column(name, lambda line: line.values[name], form)

    columns = [
        Column("client", "name"),
        column(balance.counted, ",.0f"),
        *([column("rows", ",.0f")] if "rows" in values else []),
        column("q", ".4g"),
        column("batch", ".1f"),
        column("classes", ".0f"),
        Column(
            "top class",
            lambda line: line.values["top class"],
            words=lambda line: f"{line.top}{line.values['top class']:.0f} %",
        ),
        column("distance", ".2f"),
        Column("delta ok", "ok"),
        *([Column(counts_heading(balance), "counts")] if counted else []),
    ]
    return make_table(
        columns,
        lines_of(balance, values),
        title=balance.title,
        style=lambda line: line.style,
        group=lambda line: line.group,
    )


def lines_of(balance: Balance, values: Mapping[str, np.ndarray]) -> list[Line]:
    """The rows of the table, from the numbers of all clients."""
    clients = len(balance.sizes)
    if clients <= MAX_ROWS:
        return [client_line(balance, values, client) for client in range(clients)]
    by_size = np.argsort(balance.sizes, kind="stable").tolist()
    quantiles = [
        Line(
            name=name,
            values={key: float(np.quantile(column, level)) for key, column in values.items()},
            group="quantiles",
            style="own" if name == "median" else "",
        )
        for name, level in QUANTILES.items()
    ]
    return [
        *(
            client_line(balance, values, client, "smallest clients")
            for client in by_size[:CLIENTS_AT_ENDS]
        ),
        *quantiles,
        *(
            client_line(balance, values, client, "largest clients")
            for client in by_size[-CLIENTS_AT_ENDS:]
        ),
    ]


def client_line(
    balance: Balance, values: Mapping[str, np.ndarray], client: int, group: str = ""
) -> Line:
    """The row of one client."""
    counts, holds = balance.counts[client], balance.delta_holds[client]
    width = len(str(balance.counts.max()))
    ok = "yes" if holds else "NO"
    return Line(
        name=printable(name_in(client_row(balance, client))),
        values={name: column[client] for name, column in values.items()},
        top=f"{class_name(balance, int(counts.argmax()))}: ",
        ok="--" if balance.delta is None else ok,
        group=group,
        counts=" ".join(f"{count:>{width}}" for count in counts),
        style="" if holds else "alert",
    )


def counts_heading(balance: Balance) -> str:
    """The heading of the examples of every class, with the names of a few classes."""
    names = ", ".join(class_name(balance, label) for label in range(len(balance.classes)))
    return (
        f"examples by class ({names})"
        if 0 < len(names) <= MAX_HEADING_LETTERS
        else "examples by class"
    )


def conclusions(balance: Balance) -> list[StyledLine]:
    """Lines with their style: rate, extremes, whether delta holds, clients with tiny batches."""
    rates = balance.rates
    rate = f"{rates.min():.4g} to {rates.max():.4g}" if np.ptp(rates) else f"{rates[0]:.4g}"
    plain = [balance.dealt] if balance.dealt else []
    plain.append(
        f"q = {rate}; the server divides every sum by the expected batch of a client, "
        f"{balance.expected_batch:.1f}"
    )
    plain += extremes(balance)
    lines: list[StyledLine] = [(line, None) for line in plain]
    lines.append(_about_delta(balance))
    if idle := int((balance.batches < 1).sum()):
        advice = (
            f"{idle} clients expect less than one of their {balance.counted} in a step: raise q, "
            "or take fewer clients"
        )
        lines.append((advice, "yellow"))
    return lines


def extremes(balance: Balance) -> tuple[str, str]:
    """The extreme sizes and class mixes in words; a page has them in figure and headline."""
    sizes, distances = balance.sizes, balance.distances
    smallest, largest = int(sizes.argmin()), int(sizes.argmax())
    return (
        f"smallest: {client_words(client_row(balance, smallest))} with {sizes[smallest]:,} "
        f"{balance.counted}; largest: {client_words(client_row(balance, largest))} with "
        f"{sizes[largest]:,}",
        f"distance to the class mix of all (total variation): mean {distances.mean():.2f}, largest "
        f"{distances.max():.2f}",
    )


def _about_delta(balance: Balance) -> StyledLine:
    """Whether delta is below 1/N_k for every client, in words."""
    if balance.delta is None:
        return "the method claims no epsilon, so it needs no delta", None
    bound, holds = 1 / balance.sizes.max(), balance.delta_holds
    delta = f"delta = {balance.delta:g}"
    if balance.deltas is not None:
        delta = f"each client's own delta ({balance.deltas.min():g} to {balance.deltas.max():g})"
    if holds.all():
        return f"{delta} < 1/N_k for every client; the smallest 1/N_k is {bound:.3g}", None
    return (
        f"{delta} is not below 1/N_k for {(~holds).sum()} of {len(holds)} "
        f"clients; a run refuses that: take delta < {bound:.3g}",
        "bold red",
    )


def rows_of(balance: Balance) -> list[dict[str, Any]]:
    """The lines of partition.csv, one a client: sizes, rate, batch, distance, delta, classes."""
    columns = {
        "sample_rate": balance.rates,
        "expected_batch": balance.batches,
        "class_distance": balance.distances,
    }
    holds = balance.delta_holds
    return [
        {
            **client_row(balance, client),
            "examples": sum(counts),
            **({"persons": int(balance.sizes[client])} if balance.counted != ROWS else {}),
            **{name: f"{column[client]:.6g}" for name, column in columns.items()},
            "delta_below_1_over_n": None if balance.delta is None else str(holds[client]).lower(),
            **{f"class_{class_name(balance, label)}": count for label, count in enumerate(counts)},
        }
        for client, counts in enumerate(balance.counts.tolist())
    ]


def class_name(balance: Balance, label: int) -> str:
    """The name of a class in the data, such as that of a folder; else its number."""
    return printable(balance.classes[label]) if label < len(balance.classes) else f"{label}"


def client_row(balance: Balance, client: int) -> dict[str, Any]:
    """The number of a client, and its name if it has one."""
    return {"client": client, **({"name": balance.names[client]} if balance.names else {})}


def charts(balance: Balance) -> tuple[Chart, ...]:
    """The classes of every client as stacked bars; of many clients mean shares, and the sizes."""
    parts = class_parts(balance)
    if len(balance.counts) <= MAX_BARS:
        return (counts_chart(balance, parts),)
    return shares_chart(balance, parts), sizes_chart(balance)


def class_parts(balance: Balance) -> list[tuple[str, np.ndarray]]:
    """Names and labels of the coloured parts: a class each, and the less frequent ones together."""
    classes = balance.counts.shape[1]
    by_total = np.argsort(-balance.counts.sum(0), kind="stable")
    alone = np.sort(by_total[: len(CLASS_COLOURS) - (classes > len(CLASS_COLOURS))])
    word = "" if balance.classes else "class "
    parts = [(f"{word}{class_name(balance, label)}", np.array([label])) for label in alone]
    if classes > len(CLASS_COLOURS):
        parts.append(("other classes", np.setdiff1d(by_total, alone)))
    return parts


def counts_chart(balance: Balance, parts: Sequence[tuple[str, np.ndarray]]) -> Chart:
    """A bar of examples for each client."""
    clients = len(balance.counts)
    ticks: tuple[tuple[float, str], ...] = ()
    if clients > 1:
        names = [printable(name_in(client_row(balance, client))) for client in range(clients)]
        ticks = spaced([(float(client), name) for client, name in enumerate(names)])
    x = Axis(label="client", ticks=ticks, low=-0.6, high=clients - 0.4)
    return _stacked(
        "What each client holds", balance.counts, range(clients), x, parts, Axis(label=ROWS)
    )


def shares_chart(balance: Balance, parts: Sequence[tuple[str, np.ndarray]]) -> Chart:
    """``MAX_BARS`` bars of class shares, each the mean over clients with similar mixes."""
    clients = len(balance.counts)
    order = np.lexsort((-balance.shares.max(1), balance.shares.argmax(1)))
    groups = np.array_split(order, MAX_BARS)
    values = 100 * np.stack([balance.shares[group].mean(0) for group in groups])
    ends = np.cumsum([len(group) for group in groups])
    label = f"clients in the order of their largest class, about {clients // MAX_BARS} a bar"
    return _stacked(
        "What the clients hold",
        values,
        (ends - len(groups[0]) / 2).tolist(),
        Axis(label=label, low=0.0, high=float(clients)),
        parts,
        Axis(label="% of their examples", high=100.0, unit="%"),
    )


def sizes_chart(balance: Balance) -> Chart:
    """The sizes of all clients in descending order, at 400 points at most, and their mean."""
    sizes = np.sort(balance.sizes)[::-1]
    ranks = np.unique(np.linspace(0, len(sizes) - 1, 400).astype(int))
    curve = Series(x=(ranks + 1).tolist(), y=sizes[ranks].tolist(), colour=BLUE)
    return Chart(
        title="Size of each client",
        x=Axis(label="clients, the largest first"),
        y=Axis(label=ROWS, low=0),
        series=(curve, level(float(sizes.mean()), "mean", BLACK)),
        height=240,
    )


def _stacked(
    title: str,
    values: np.ndarray,
    places: Sequence[float],
    x: Axis,
    parts: Sequence[tuple[str, np.ndarray]],
    y: Axis = PLAIN,
) -> Chart:
    """A bar for each row of ``values``, stacked by parts of its columns."""
    series = [
        Series(
            name=name,
            kind="bar",
            x=list(places),
            y=values[:, labels].sum(1).tolist(),
            colour=colour,
        )
        for (name, labels), colour in zip(parts, CLASS_COLOURS, strict=False)
    ]
    return Chart(title=title, x=x, y=y, series=series, height=380)
