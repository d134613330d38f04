"""``fedlsg partition``: what a partition looks like before anything is trained on it, as table, CSV and figure.

For simulations only: in a federation nobody sees these counts.
"""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from simulations.plan.balance import Balance, measure
from simulations.plan.plan import prepare
from simulations.report.colours import BLACK, BLUE
from simulations.report.figure import drawing, new_figure, png, use_style, whole_numbers
from simulations.report.page import Page, Row, Table, Text, TextKind, data_section, download, render, sections
from simulations.report.terminal import fits, print_table, print_whole
from simulations.rundir.files.atomic import write_atomically, writing_to
from simulations.settings.settings import from_mapping, names_given

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL = ("#010101", "#fefefe")
"""Words on bright and on dark cells; they stay as they are on a dark page, as the cells do."""
WARNING = "For simulations only: in a federation nobody sees these counts, and they are as private as the examples are."
CAPTION = (
    "Top: how many examples each client holds; the dashed line is the mean. Below: what each client's examples are; a "
    "bright cell says that much of what the client holds is of that class. Equal columns mean that all clients hold "
    "the same mix."
)
ALL_SHOWN = 20
"""Clients up to which the table has a row for each; of more it has the ends and the quantiles."""
ENDS = 5
QUANTILES = {"smallest": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "largest": 1.0}


def partition_command(given: dict[str, Any], out: str | None, console: Console) -> None:
    """``fedlsg partition``: the table and its conclusions; with ``out`` also partition.html, .csv and .png in it."""
    settings = from_mapping(given)
    with console.status("loading data") as status:
        balance = measure(prepare(settings, progress=status.update, given=names_given(given)))
    wide = table(balance, counted=True)
    print_table(wide if fits(wide, console.width) else table(balance, counted=False), console)
    for line, style in conclusions(balance):
        print_whole(line, console, style)
    if out is None:
        console.print("add --out DIR for partition.html, .csv and .png", style="dim", highlight=False)
        return
    directory = Path(out).expanduser()
    data = csv_of(balance)
    drawn = figure(balance)
    made = {"csv": data, "png": png(drawn), "html": page(balance, data, drawn).encode()}  # a page changes its figures
    with writing_to(directory):
        for kind, content in made.items():  # counted from the clients' labels without noise
            write_atomically(directory / f"partition.{kind}", content, private=True)
    console.print(f"[bold]written[/bold]  {escape(str(directory))}/partition.html, .csv, .png", highlight=False)


STYLES: dict[str | None, TextKind] = {"bold red": "warning", "yellow": "warning"}
"""How a page shows a line that the terminal shows so."""


def page(balance: Balance, data: bytes, drawn: "Figure") -> str:
    """partition.html; ``data`` are the bytes of partition.csv, ``drawn`` is its figure."""
    counted = balance.counts.shape[1] <= ALL_SHOWN
    lines = tuple(Text(words=line, style=STYLES.get(style, "plain")) for line, style in conclusions(balance))
    return render(
        Page(
            kind="fedlsg partition",
            title="Who holds what",
            lead=balance.title,
            headline=headline(balance),
            warnings=(WARNING,),
            sections=sections(
                ("What follows", lines),
                ("Clients and classes", [drawing(drawn, CAPTION, columns=1)]),
                ("Every client", [table(balance, counted=counted)]),
                data_section(download("partition.csv", data, "a row for each client")),
            ),
        )
    )


def headline(balance: Balance) -> str:
    """How many clients there are, and how unlike each other."""
    sizes, apart = balance.sizes, balance.distances
    held = f"{sizes.min():,} to {sizes.max():,}" if np.ptp(sizes) else f"{sizes.min():,}"
    return (
        f"{len(sizes)} clients hold {held} examples each; the class mix of a client differs from that of all by "
        f"{apart.mean():.2f} on average (0: equal, 1: nothing in common)."
    )


def table(balance: Balance, *, counted: bool) -> Table:
    """A row for each client or, of many, the smallest, the largest and the quantiles of each column.

    counted: with the examples of every class, which take room.
    """
    names = ("client", "examples", "q", "batch", "classes", "top class", "distance", "delta ok")
    few = len(balance.sizes) <= ALL_SHOWN
    by_size = np.argsort(balance.sizes, kind="stable").tolist()
    first = range(len(by_size)) if few else by_size[:ENDS]
    rows = [_row(balance, client, counted, "" if few else "smallest clients") for client in first]
    if not few:
        rows += [_quantile(balance, name, level, counted) for name, level in QUANTILES.items()]
        rows += [_row(balance, client, counted, "largest clients") for client in by_size[-ENDS:]]
    return Table(title=balance.title, columns=(*names, "examples by class") if counted else names, rows=tuple(rows))


def _row(balance: Balance, client: int, counted: bool, group: str) -> Row:
    counts, shares = balance.counts[client], balance.shares[client]
    cells = [
        str(client),
        f"{balance.sizes[client]:,}",
        f"{balance.rates[client]:.4g}",
        f"{balance.batches[client]:.1f}",
        str(np.count_nonzero(counts)),
        f"{shares.argmax()}: {100 * shares.max():.0f} %",
        f"{balance.distances[client]:.2f}",
        "--" if balance.delta is None else "yes" if balance.delta_holds[client] else "NO",
    ]
    width = len(str(balance.counts.max()))
    counted_cells = [" ".join(f"{count:>{width}}" for count in counts)] if counted else []
    return Row(cells=(*cells, *counted_cells), style="" if balance.delta_holds[client] else "alert", group=group)


def _quantile(balance: Balance, name: str, level: float, counted: bool) -> Row:
    """One level of each column by itself: such a row is no client."""

    def at(values: np.ndarray) -> float:
        return float(np.quantile(values, level))

    cells = (
        name,
        f"{at(balance.sizes):,.0f}",
        f"{at(balance.rates):.4g}",
        f"{at(balance.batches):.1f}",
        f"{at(np.count_nonzero(balance.counts, axis=1)):.0f}",
        f"{100 * at(balance.shares.max(1)):.0f} %",
        f"{at(balance.distances):.2f}",
        "",
    )
    return Row(cells=(*cells, "") if counted else cells, style="own" if name == "median" else "", group="quantiles")


def conclusions(balance: Balance) -> list[tuple[str, str | None]]:
    """Lines with their style: the rate, the extremes, whether delta holds, clients with nearly no examples."""
    sizes, rates, apart = balance.sizes, balance.rates, balance.distances
    smallest, largest = int(sizes.argmin()), int(sizes.argmax())
    rate = f"{rates[0]:.4g}" if np.ptp(rates) == 0 else f"{rates.min():.4g} to {rates.max():.4g}"
    lines: list[tuple[str, str | None]] = [
        (
            f"q = {rate}; the server divides every sum by the expected batch of a client, {balance.expected_batch:.1f}",
            None,
        ),
        (f"smallest client {smallest}: {sizes[smallest]:,} examples; largest {largest}: {sizes[largest]:,}", None),
        (
            f"distance to the class mix of all (total variation): mean {apart.mean():.2f}, largest {apart.max():.2f}",
            None,
        ),
        _about_delta(balance),
    ]
    idle = int((balance.batches < 1).sum())
    if idle:
        lines.append(
            (f"{idle} clients expect less than one example in a step: raise q, or take fewer clients", "yellow")
        )
    return lines


def _about_delta(balance: Balance) -> tuple[str, str | None]:
    if balance.delta is None:
        return "the method claims no epsilon, so it needs no delta", None
    bound = 1 / balance.sizes.max()
    failing = int((~balance.delta_holds).sum())
    if not failing:
        return f"delta = {balance.delta:g} < 1/N_k for every client; the smallest 1/N_k is {bound:.3g}", None
    return (
        f"delta = {balance.delta:g} is not below 1/N_k for {failing} of {len(balance.sizes)} clients; a run refuses "
        f"that: take delta < {bound:.3g}",
        "bold red",
    )


def csv_of(balance: Balance) -> bytes:
    """A line for each client: examples, rate, expected batch, distance, delta, and the examples of each class."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    names = ["client", "examples", "sample_rate", "expected_batch", "class_distance", "delta_below_1_over_n"]
    writer.writerow([*names, *(f"class_{label}" for label in range(balance.counts.shape[1]))])
    for client, counts in enumerate(balance.counts):
        writer.writerow(
            [
                client,
                balance.sizes[client],
                f"{balance.rates[client]:.6g}",
                f"{balance.batches[client]:.6g}",
                f"{balance.distances[client]:.6g}",
                "" if balance.delta is None else str(bool(balance.delta_holds[client])).lower(),
                *counts,
            ]
        )
    return text.getvalue().encode()


@use_style
def figure(balance: Balance) -> "Figure":
    """Sizes as bars over a map of the class mix of every client."""
    clients, classes = balance.counts.shape
    made = new_figure(min(12, max(7, 2.5 + 0.45 * clients)), 5.6)
    upper, lower = made.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    upper.bar(range(clients), balance.sizes, width=0.8, color=BLUE)
    upper.axhline(balance.sizes.mean(), color=BLACK, linewidth=1, linestyle="--")
    upper.grid(visible=False, axis="x")
    upper.set_ylabel("examples $N_k$")
    upper.set_title(balance.title, fontsize=9, loc="left")
    upper.set_title("dashed line: mean", fontsize=8, loc="right")
    shares = 100 * balance.shares.T
    image = lower.imshow(shares, aspect="auto", origin="lower", cmap="viridis", vmin=0, interpolation="nearest")
    lower.grid(visible=False)
    if clients <= 12 and classes <= 12:
        for (label, client), share in np.ndenumerate(shares):
            colour = CELL[int(share < 0.6 * shares.max())]
            lower.text(client, label, balance.counts[client, label], ha="center", va="center", color=colour, fontsize=8)
    lower.set(xlabel="client", ylabel="class")
    whole_numbers(lower.xaxis, lower.yaxis, most=20)
    made.colorbar(image, ax=lower, label="share of the client's examples, %", pad=0.01)
    return made
