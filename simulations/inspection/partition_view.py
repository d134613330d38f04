"""``fedlsg partition``: what a partition looks like before anything is trained on it, as table, CSV
and figure.

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

COLOURS = (BLUE, ORANGE, NAVY, SKY, PLUM, GREEN, RED, BLACK, VIOLET, GREY)
"""Of classes; of more, the most frequent ones have a colour, and the others share the last one."""
PLAIN = Axis()
ROWS = "examples"
"""What a client's size counts, unless the unit is a person."""
BARS = 100
"""Bars at most: of more clients a bar is the mean over some that are alike."""
WARNING = (
    "For simulations only: in a federation nobody sees these counts, and they are as private as "
    "the examples are."
)
CAPTION = (
    "What each client holds: a bar for each client, or the mean of clients that are alike where "
    "they are many, and a colour for each class. Equal bars mean that all clients hold the same "
    "mix."
)
ALL_SHOWN = 20
"""Clients up to which the table has a row for each; of more it has the ends and the quantiles."""
ENDS = 5
NAMED = 40
"""Letters of the names of all classes up to which a heading has them."""
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
    """``fedlsg partition``: the table and its conclusions; with ``out`` also partition.html, .csv
    and .png in it.
    """
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
    drawn = charts(balance)
    image = png(plot(drawn, columns=1))
    made = {"csv": data, "png": image, "html": page(balance, data, drawn).encode()}
    # counts have no noise
    write_private(directory, {f"partition.{kind}": content for kind, content in made.items()})
    print_written(directory, ("partition.html", ".csv", ".png"), console)


Said = tuple[str, str | None]
"""A line, and its style on a terminal."""
STYLES: dict[str | None, TextKind] = {"bold red": "warning", "yellow": "warning"}
"""How a page shows a line that the terminal shows so."""


def page(balance: Balance, data: bytes, drawn: Sequence[Chart]) -> str:
    """partition.html; ``data`` are the bytes of partition.csv, ``drawn`` are its charts."""
    lines = tuple(
        Text(words=line, style=STYLES.get(style, "plain"))
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
                ("Clients and classes", [interactive(drawn, CAPTION, columns=1)]),
                ("What follows", lines),
                ("Every client", [replace(table(balance, counted=False), title="")]),
                data_section(download("partition.csv", data, "a row for each client")),
            ),
        )
    )


def headline(balance: Balance) -> str:
    """How many clients there are, and how unlike each other."""
    sizes, apart = balance.sizes, balance.distances
    held = f"{sizes.min():,} to {sizes.max():,}" if np.ptp(sizes) else f"{sizes.min():,}"
    return (
        f"{len(sizes):,} clients hold {held} {balance.counted} each; the class mix of a client "
        f"differs from that of all by {apart.mean():.2f} on average (0: equal, 1: nothing in "
        "common)."
    )


@dataclass(frozen=True, kw_only=True)
class Line:
    """A client, or one level of each column by itself, which is not a client. counts: examples by
    class.
    """

    name: str
    values: Mapping[str, float]
    top: str = ""
    ok: str = ""
    counts: str = ""
    group: str = ""
    style: RowKind = ""


def values_of(balance: Balance) -> dict[str, np.ndarray]:
    """The numbers of all clients, by name."""
    return {
        balance.counted: balance.sizes,
        **({"rows": balance.counts.sum(1)} if balance.counted != ROWS else {}),
        "q": balance.rates,
        "batch": balance.batches,
        "classes": np.count_nonzero(balance.counts, axis=1),
        "top class": 100 * balance.shares.max(1),
        "distance": balance.distances,
    }


def table(balance: Balance, *, counted: bool) -> Table:
    """A row for each client or, of many, the smallest, the largest and the quantiles of each
    column.

    counted: with the examples of every class, which take room.
    """
    values, top, holds = values_of(balance), balance.counts.argmax(1), balance.delta_holds
    width, few = len(str(balance.counts.max())), len(top) <= ALL_SHOWN

    def client(at: int, group: str = "") -> Line:
        return Line(
            name=printable(name_in(_row(balance, at))),
            values={name: column[at] for name, column in values.items()},
            top=f"{class_name(balance, int(top[at]))}: ",
            ok="--" if balance.delta is None else "yes" if holds[at] else "NO",
            group=group,
            counts=" ".join(f"{count:>{width}}" for count in balance.counts[at]),
            style="" if holds[at] else "alert",
        )

    def level(name: str, at: float) -> Line:
        row = {key: float(np.quantile(column, at)) for key, column in values.items()}
        return Line(
            name=name, values=row, group="quantiles", style="own" if name == "median" else ""
        )

    by_size = np.argsort(balance.sizes, kind="stable").tolist()
    lines = (
        [client(at) for at in range(len(by_size))]
        if few
        else [
            *(client(at, "smallest clients") for at in by_size[:ENDS]),
            *(level(*one) for one in QUANTILES.items()),
            *(client(at, "largest clients") for at in by_size[-ENDS:]),
        ]
    )

    def column(name: str, form: str) -> Column:
        return Column(name, lambda one: one.values[name], form)

    columns = [
        Column("client", "name"),
        column(balance.counted, ",.0f"),
        *([column("rows", ",.0f")] if "rows" in values else []),
        column("q", ".4g"),
        column("batch", ".1f"),
        column("classes", ".0f"),
        Column(
            "top class",
            lambda one: one.values["top class"],
            words=lambda one: f"{one.top}{one.values['top class']:.0f} %",
        ),
        column("distance", ".2f"),
        Column("delta ok", "ok"),
        *([Column(_counted(balance), "counts")] if counted else []),
    ]
    return make_table(
        columns,
        lines,
        title=balance.title,
        style=lambda one: one.style,
        group=lambda one: one.group,
    )


def _counted(balance: Balance) -> str:
    """The heading of the examples of every class, with the names of few."""
    names = ", ".join(class_name(balance, label) for label in range(len(balance.classes)))
    return f"examples by class ({names})" if 0 < len(names) <= NAMED else "examples by class"


def conclusions(balance: Balance) -> list[Said]:
    """Lines with their style: the rate, the extremes, whether delta holds, clients with nearly no
    examples.
    """
    rates = balance.rates
    rate = f"{rates.min():.4g} to {rates.max():.4g}" if np.ptp(rates) else f"{rates[0]:.4g}"
    plain = (
        *([balance.dealt] if balance.dealt else []),
        f"q = {rate}; the server divides every sum by the expected batch of a client, "
        f"{balance.expected_batch:.1f}",
        *extremes(balance),
    )
    lines = [*((line, None) for line in plain), _about_delta(balance)]
    if idle := int((balance.batches < 1).sum()):
        raised = (
            f"{idle} clients expect less than one of their {balance.counted} in a step: raise q, "
            "or take fewer clients"
        )
        lines.append((raised, "yellow"))
    return lines


def extremes(balance: Balance) -> tuple[str, str]:
    """The sizes and class mixes at the ends, which a page shows in its figure and its headline."""
    sizes, apart = balance.sizes, balance.distances
    smallest, largest = sizes.argmin(), sizes.argmax()
    who = [client_words(_row(balance, int(at))) for at in (smallest, largest)]
    return (
        f"smallest: {who[0]} with {sizes[smallest]:,} {balance.counted}; largest: {who[1]} with "
        f"{sizes[largest]:,}",
        f"distance to the class mix of all (total variation): mean {apart.mean():.2f}, largest "
        f"{apart.max():.2f}",
    )


def _about_delta(balance: Balance) -> Said:
    if balance.delta is None:
        return "the method claims no epsilon, so it needs no delta", None
    bound, holds = 1 / balance.sizes.max(), balance.delta_holds
    said = f"delta = {balance.delta:g}"
    if balance.deltas is not None:
        said = f"each client's own delta ({balance.deltas.min():g} to {balance.deltas.max():g})"
    if holds.all():
        return f"{said} < 1/N_k for every client; the smallest 1/N_k is {bound:.3g}", None
    return (
        f"{said} is not below 1/N_k for {(~holds).sum()} of {len(holds)} "
        f"clients; a run refuses that: take delta < {bound:.3g}",
        "bold red",
    )


def rows_of(balance: Balance) -> list[dict[str, Any]]:
    """Each client: examples (and persons, where they are the unit), rate, expected batch, distance,
    delta, and the examples of each class.
    """
    columns = {
        "sample_rate": balance.rates,
        "expected_batch": balance.batches,
        "class_distance": balance.distances,
    }
    holds = balance.delta_holds
    return [
        {
            **_row(balance, client),
            "examples": sum(counts),
            **({"persons": int(balance.sizes[client])} if balance.counted != ROWS else {}),
            **{name: f"{column[client]:.6g}" for name, column in columns.items()},
            "delta_below_1_over_n": None if balance.delta is None else str(holds[client]).lower(),
            **{f"class_{class_name(balance, label)}": count for label, count in enumerate(counts)},
        }
        for client, counts in enumerate(balance.counts.tolist())
    ]


def class_name(balance: Balance, label: int) -> str:
    """What the data call a class: a folder's name, a label; else its number."""
    return printable(balance.classes[label]) if label < len(balance.classes) else f"{label}"


def _row(balance: Balance, client: int) -> dict[str, Any]:
    """The number of a client, and its name if it has one."""
    return {"client": client, **({"name": balance.names[client]} if balance.names else {})}


def charts(balance: Balance) -> tuple[Chart, ...]:
    """The classes of every client as stacked bars; of many clients their shares, in groups, and the
    sizes.
    """
    clients, classes = balance.counts.shape
    by_total = np.argsort(-balance.counts.sum(0), kind="stable")
    own = np.sort(by_total[: len(COLOURS) - (classes > len(COLOURS))])
    rest = [("other classes", np.setdiff1d(by_total, own))] if classes > len(COLOURS) else []
    word = "" if balance.classes else "class "
    parts = [(f"{word}{class_name(balance, label)}", np.array([label])) for label in own] + rest
    if clients <= BARS:
        ticks = (
            spaced(
                [
                    (float(client), printable(name_in(_row(balance, client))))
                    for client in range(clients)
                ]
            )
            if clients > 1
            else ()
        )
        values, x = balance.counts, Axis(label="client", ticks=ticks, low=-0.6, high=clients - 0.4)
        return (
            _stacked("What each client holds", values, range(clients), x, parts, Axis(label=ROWS)),
        )
    order = np.lexsort((-balance.shares.max(1), balance.shares.argmax(1)))
    groups = np.array_split(order, BARS)
    values = 100 * np.stack([balance.shares[group].mean(0) for group in groups])
    places = [
        float(group) for group in np.cumsum([len(group) for group in groups]) - len(groups[0]) / 2
    ]
    label = f"clients in the order of their largest class, about {clients // BARS} a bar"
    x = Axis(label=label, low=0.0, high=float(clients))
    sizes = np.sort(balance.sizes)[::-1]
    at = np.unique(np.linspace(0, clients - 1, 400).astype(int))
    sized = Series(x=(at + 1).tolist(), y=sizes[at].tolist(), colour=BLUE)
    mean = level(float(sizes.mean()), "mean", BLACK)
    return (
        _stacked(
            "What the clients hold",
            values,
            places,
            x,
            parts,
            Axis(label="% of their examples", high=100.0, unit="%"),
        ),
        Chart(
            title="Size of each client",
            x=Axis(label="clients, the largest first"),
            y=Axis(label=ROWS, low=0),
            series=(sized, mean),
            height=240,
        ),
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
        for (name, labels), colour in zip(parts, COLOURS, strict=False)
    ]
    return Chart(title=title, x=x, y=y, series=series, height=380)
