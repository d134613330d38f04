"""The figure of one run: accuracy, epsilon, bytes and clients after each round."""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from simulations.report.figure import (
    ALARM,
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GUESSING,
    ORANGE,
    RED,
    new_figure,
    short_bytes,
    use_style,
    whole_numbers,
)
from simulations.rundir.tables import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLIENTS = (("asked", "selected", GREY, "-"), ("answered", "replied", GREEN, "--"), ("rejected", "rejected", RED, ":"))
"""Columns of rounds.csv, and how the legend names them."""
CAPTION = (
    "Test accuracy, epsilon, payload bytes and clients after each round. The dotted line is the accuracy of guessing."
)


@use_style
def course(rows: Sequence[Row], chance: float | None) -> "Figure":
    """The rounds of one run in four panels; ``chance`` is the accuracy of guessing."""
    figure = new_figure(7.2, 4.8, arrange=False)  # every run draws this, and finding places doubles its time
    places = {"left": 0.09, "right": 0.985, "bottom": 0.095, "top": 0.95, "wspace": 0.22, "hspace": 0.3}
    panels = figure.subplots(2, 2, gridspec_kw=places)
    (accuracy, epsilon), (sent, clients) = panels
    _accuracy(accuracy, rows, chance)
    _epsilon(epsilon, rows)
    _bytes(sent, rows)
    for name, label, colour, dashes in CLIENTS:
        counts = [len(getattr(row, name).split()) for row in rows]
        clients.plot([row.round for row in rows], counts, color=colour, linestyle=dashes, label=label)
    clients.set_ylim(bottom=-0.2)
    clients.set_title("clients in each round", fontsize=9, loc="left")
    for panel in (epsilon, sent, clients):
        panel.legend()
    for panel in panels.flat:
        whole_numbers(panel.xaxis)
        for curve in panel.lines:
            if len(curve.get_xdata()) == 1:  # a line through one point is invisible
                curve.set_marker("o")
        if len(rows) == 1:
            panel.set_xlim(rows[0].round - 1, rows[0].round + 1)
    for panel in (sent, clients):
        panel.set_xlabel("round")
    return figure


def _accuracy(panel: "Axes", rows: Sequence[Row], chance: float | None) -> None:
    measured = [(row.round, 100 * row.accuracy) for row in rows if row.accuracy is not None]
    panel.plot([r for r, _ in measured], [a for _, a in measured], color=BLUE)
    panel.set_title("test accuracy, %", fontsize=9, loc="left")
    if chance is not None:
        panel.axhline(100 * chance, **GUESSING)


def _epsilon(panel: "Axes", rows: Sequence[Row]) -> None:
    for name, label, colour, dashes in (("max", "largest client", RED, "-"), ("median", "median client", BLACK, "--")):
        spent = [(row.round, getattr(row, f"epsilon_{name}")) for row in rows]
        finite = [(r, e) for r, e in spent if e < float("inf")]
        panel.plot([r for r, _ in finite], [e for _, e in finite], color=colour, linestyle=dashes, label=label)
        if not finite and name == "max":
            panel.text(0.5, 0.4, "no finite epsilon", ha="center", transform=panel.transAxes, color=ALARM)
    panel.set_title("epsilon so far", fontsize=9, loc="left")


def _bytes(panel: "Axes", rows: Sequence[Row]) -> None:
    for name, colour, dashes in (("uplink", BLUE, "-"), ("downlink", ORANGE, "--")):
        sums = list(accumulate(getattr(row, f"{name}_bytes") for row in rows))
        panel.plot([row.round for row in rows], sums, color=colour, linestyle=dashes, label=name)
    panel.yaxis.set_major_formatter(short_bytes)
    panel.set_title("payload bytes so far, all clients", fontsize=9, loc="left")
