"""The figure of one run: accuracy, epsilon, bytes and clients over rounds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulations.report.figure import short_bytes
from simulations.rundir.row import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS = (("asked", "#999999", "-"), ("answered", "#117733", "--"), ("rejected", "#D55E00", ":"))


def course(rows: Sequence[Row], chance: float | None) -> "Figure":
    """One run: accuracy, epsilon, bytes so far, and clients that answered or were rejected, over rounds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.2, 4.6))  # fixed places: every run draws this, and a layout engine doubles its time
    places = {"left": 0.08, "right": 0.99, "bottom": 0.09, "top": 0.95, "wspace": 0.22, "hspace": 0.28}
    panels = figure.subplots(2, 2, gridspec_kw=places)
    (accuracy, epsilon), (sent, clients) = panels
    rounds = [row.round for row in rows]
    measured = [(row.round, 100 * row.accuracy) for row in rows if row.accuracy is not None]
    accuracy.plot([r for r, _ in measured], [a for _, a in measured], color="#0072B2")
    accuracy.set_title("test accuracy, %", fontsize=9, loc="left")
    if chance is not None:
        accuracy.axhline(100 * chance, color="#888888", linestyle=":", linewidth=1)
    for name, colour, dashes in (("max", "#D55E00", "-"), ("median", "#000000", "--")):
        spent = [getattr(row, f"epsilon_{name}") for row in rows]
        finite = [(r, e) for r, e in zip(rounds, spent, strict=True) if e < float("inf")]
        epsilon.plot([r for r, _ in finite], [e for _, e in finite], color=colour, linestyle=dashes, label=name)
        if not finite and name == "max":
            epsilon.text(0.5, 0.5, "no finite epsilon", ha="center", transform=epsilon.transAxes, color="#B00020")
    epsilon.set_title("epsilon so far, over clients", fontsize=9, loc="left")
    for name, colour, dashes in (("uplink", "#0072B2", "-"), ("downlink", "#E69F00", "--")):
        total, sums = 0, []
        for row in rows:
            total += getattr(row, f"{name}_bytes")
            sums.append(total)
        sent.plot(rounds, sums, color=colour, linestyle=dashes, label=name)
    sent.yaxis.set_major_formatter(short_bytes)
    sent.set_title("payload bytes so far", fontsize=9, loc="left")
    for name, colour, dashes in CLIENTS:
        counts = [len(getattr(row, name).split()) for row in rows]
        clients.plot(rounds, counts, color=colour, linestyle=dashes, label=name)
    clients.set_ylim(bottom=-0.2)
    clients.set_title("clients", fontsize=9, loc="left")
    for panel in (epsilon, sent, clients):
        panel.legend()
    for panel in (accuracy, epsilon, sent, clients):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        for curve in panel.lines:
            if len(curve.get_xdata()) == 1:  # a line through one point is nothing
                curve.set_marker("o")
        if len(rows) == 1:
            panel.set_xlim(rows[0].round - 1, rows[0].round + 1)
    for panel in (sent, clients):
        panel.set_xlabel("round")
    return figure
