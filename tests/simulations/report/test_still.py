"""A still chart reaches as far as matplotlib's, and its points, bars and ticks are where their numbers say."""

import math
import re
import sys

import pytest

from simulations.report.chart import Axis, Chart, Series, guessing
from simulations.report.figure import draw_chart, interactive, panel_grid
from simulations.report.still import ALONE, Scale, scale, still

LINE = Series(name="a", x=(1, 10, 1000), y=(0.01, 0.3, 1), low=(0.008, 0.2, 0.9), high=(0.02, 0.4, 1.2), marker="o")
BARS = tuple(Series(name=name, kind="bar", x=(0, 1, 2), y=y) for name, y in (("b", (10, 20, 5)), ("c", (5, 2, 15))))
CHARTS = {
    "linear": Chart(title="linear", x=Axis(label="x"), y=Axis(label="y", unit="%"), series=(LINE, guessing(-2))),
    "logarithmic": Chart(title="logarithmic", x=Axis(log=True), y=Axis(log=True, label="y"), series=(LINE,)),
    "bars": Chart(title="bars", x=Axis(ticks=((0, "zero"), (2, "two\nlines"))), series=BARS),
    "given ends": Chart(title="ends", x=Axis(low=0, whole=True), y=Axis(high=3, down=True), series=(LINE,)),
    "one point": Chart(title="one", x=Axis(low=0, high=2), series=(Series(x=(1,), y=(4,)),)),
}


@pytest.mark.parametrize("name", CHARTS)
def test_its_axes_are_as_long_as_matplotlib_makes_them(name, monkeypatch):
    found = {}
    monkeypatch.setattr("simulations.report.still.scale", lambda *a, **k: found.setdefault(a[0], scale(*a, **k)))
    chart = CHARTS[name]
    still(chart)
    _, (axes,) = panel_grid(1, 1, (5.6, 3.0))
    draw_chart(axes, chart)
    for axis, limits in ((chart.x, axes.get_xlim()), (chart.y, sorted(axes.get_ylim()))):
        assert (found[axis].low, found[axis].high) == pytest.approx(tuple(limits), rel=0.02, abs=1e-3)


def test_points_and_references_are_where_their_numbers_say():
    chart = Chart(title="t", x=Axis(low=0, high=10), y=Axis(low=0, high=4), series=(
        Series(x=(0, 5, 10), y=(0, math.inf, 4), colour="#00f"), guessing(1), Series(kind="bar", x=(2,), y=(3,)),
    ))  # fmt: skip
    svg, size = still(chart)
    assert size == (ALONE, chart.height)
    wide, tall = map(float, re.search(r'<svg width="([\d.]+)" height="([\d.]+)"', svg).groups())
    line = re.search(r'<path d="M([\d.]+) ([\d.]+)L[^"]*L([\d.]+) ([\d.]+)" fill="none" stroke="#00f"', svg).groups()
    assert tuple(map(float, line)) == (0, tall, wide, 0)
    (level,) = re.findall(r'd="M0 ([\d.]+)H[^"]*" fill="none" stroke="[^"]*" stroke-width="1.6"', svg)
    assert float(level) == pytest.approx(0.75 * tall, abs=0.1)
    rect = re.search(r'<rect x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', svg).groups()
    assert tuple(map(float, rect)) == pytest.approx((0.25 * tall, 0.75 * tall), abs=0.1)
    assert re.findall(r">([\d.]+)</text>", svg) == [*map(str, range(11)), *map(str, range(5))]


@pytest.mark.parametrize(
    ("axis", "low", "high", "names"),
    [
        (Axis(), -0.2, 0.25, ["−0.2", "−0.1", "0", "0.1", "0.2"]),
        (Axis(whole=True), 0.9, 3.1, ["1", "2", "3"]),
        (Axis(unit="bytes"), 0, 2.1e6, ["0 B", "500 kB", "1 MB", "1.5 MB", "2 MB"]),
        (Axis(log=True), 0.5e-3, 20, ["0.001", "0.01", "0.1", "1", "10"]),
        (Axis(log=True), 0.9, 30, ["1", "3", "10", "30"]),
        (Axis(log=True), 1e-9, 1e6, ["1e−09", "1e−06", "0.001", "1", "1000", "1e+06"]),
        (Axis(log=True), 3.1, 4.9, ["3.5", "4", "4.5"]),
        (Axis(ticks=((1, "a"), (9, "beyond"))), 0, 5, ["a"]),
    ],
)
def test_ticks_are_round_numbers_that_fit(axis, low, high, names):
    found = Scale(axis=axis, low=low, high=high, size=250).ticks(50)
    assert [line for _, (line,) in found] == names
    assert all(0 <= at <= 250 for at, _ in found)


def test_a_page_needs_no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    drawn = interactive(list(CHARTS.values()), "A caption.")
    assert all("</svg>" in panel.svg for panel in drawn.panels)
    with pytest.raises(ImportError):  # negative control
        panel_grid(1, 1, (1, 1))
