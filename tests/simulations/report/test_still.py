"""A still chart reaches as far as matplotlib's, and its points, bars and ticks are where their
numbers say.
"""

import itertools
import math
import re
import sys

import pytest

from fedlsg.simulations.report.drawing.chart import Axis, Chart, Series, chart_data, guessing
from fedlsg.simulations.report.drawing.still import LETTER, WIDTH_ALONE, Scale, scale, still
from fedlsg.simulations.report.pages.figure import draw_chart, interactive, panel_grid

LINE = Series(
    name="a",
    x=(1, 10, 1000),
    y=(0.01, 0.3, 1),
    low=(0.008, 0.2, 0.9),
    high=(0.02, 0.4, 1.2),
    marker="o",
)
BARS = tuple(
    Series(name=name, kind="bar", x=(0, 1, 2), y=y)
    for name, y in (("b", (10, 20, 5)), ("c", (5, 2, 15)))
)
CHARTS = {
    "linear": Chart(
        title="linear", x=Axis(label="x"), y=Axis(label="y", unit="%"), series=(LINE, guessing(-2))
    ),
    "logarithmic": Chart(
        title="logarithmic", x=Axis(log=True), y=Axis(log=True, label="y"), series=(LINE,)
    ),
    "bars": Chart(title="bars", x=Axis(ticks=((0, "zero"), (2, "two\nlines"))), series=BARS),
    "given ends": Chart(
        title="ends", x=Axis(low=0, whole=True), y=Axis(high=3, down=True), series=(LINE,)
    ),
    "one point": Chart(title="one", x=Axis(low=0, high=2), series=(Series(x=(1,), y=(4,)),)),
}


@pytest.mark.parametrize("name", CHARTS)
def test_its_axes_are_as_long_as_matplotlib_makes_them(name, monkeypatch):
    found = {}
    monkeypatch.setattr(
        "fedlsg.simulations.report.drawing.still.scale",
        lambda *a, **k: found.setdefault(a[0], scale(*a, **k)),
    )
    chart = CHARTS[name]
    still(chart)
    _, (axes,) = panel_grid(1, 1, (5.6, 3.0))
    draw_chart(axes, chart)
    for axis, limits in ((chart.x, axes.get_xlim()), (chart.y, sorted(axes.get_ylim()))):
        assert (found[axis].low, found[axis].high) == pytest.approx(
            tuple(limits), rel=0.02, abs=1e-3
        )


def test_points_and_references_are_where_their_numbers_say():
    chart = Chart(
        title="t",
        x=Axis(low=0, high=10),
        y=Axis(low=0, high=4),
        series=(
            Series(x=(0, 5, 10), y=(0, math.inf, 4), colour="#00f"),
            guessing(1),
            Series(kind="bar", x=(2,), y=(3,)),
        ),
    )
    svg, size = still(chart)
    assert size == (WIDTH_ALONE, chart.height)
    wide, tall = map(float, re.search(r'<svg width="([\d.]+)" height="([\d.]+)"', svg).groups())
    line = re.search(
        r'<path d="M([\d.]+) ([\d.]+)L[^"]*L([\d.]+) ([\d.]+)" fill="none" stroke="#00f"', svg
    ).groups()
    assert tuple(map(float, line)) == (0, tall, wide, 0)
    (level,) = re.findall(
        r'd="M0 ([\d.]+)H[^"]*" fill="none" stroke="[^"]*" stroke-width="1.6"', svg
    )
    assert float(level) == pytest.approx(0.75 * tall, abs=0.1)
    rect = re.search(
        r'<rect x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', svg
    ).groups()
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


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("kind", ["line", "bar", "level", "band"])
def test_numbers_that_no_axis_has_are_left_out(kind, log):
    values = (
        None,
        math.nan,
        -math.inf,
        1e308,
        -1e308,
        5e-324,
        0.0,
        -1.0,
        1e20,
        1e20 + 16384,
        3.4e38,
    )
    for pair in itertools.product(values, values):
        one = Series(kind=kind, x=pair, y=pair[::-1], low=pair, high=pair[::-1])
        svg, _ = still(Chart(title="t", x=Axis(log=log), y=Axis(log=log), series=(one,)))
        assert not re.search(r"\b(nan|inf)\b", svg)
    (sent,) = chart_data(
        Chart(title="t", series=(Series(x=(1, 2, 3), y=(1e308, -3e38, math.inf)),))
    )["series"]
    assert sent["y"] == [None, -3e38, None]  # a browser does not end with an axis of 1e308


def test_numbers_that_print_alike_have_one_tick_each():
    svg, _ = still(Chart(title="t", series=(Series(x=(1, 2), y=(2.3025851, 2.3025852)),)))
    names = re.findall(r'text-anchor="end"[^>]*>([^<]+)<', svg)
    assert len(names) == len(set(names)) > 1


@pytest.mark.parametrize("across", [1, 2])
def test_long_names_leave_room_for_the_chart(across):
    names = ("encoder.layers.11." * 8 + "out_proj", "\u79c1" * 60, "short")
    ticks = tuple((float(place), name) for place, name in enumerate(names))
    svg, (wide, _) = still(
        Chart(title="t", y=Axis(ticks=ticks), series=(Series(x=(1, 2, 3), y=(0, 1, 2)),)), across
    )
    assert float(re.search(r'<svg width="([\d.]+)"', svg).group(1)) > wide / 3
    shown = re.findall(r'text-anchor="end"[^>]*>([^<]+)<', svg)
    assert shown[2] == "short"
    assert all("\N{HORIZONTAL ELLIPSIS}" in name for name in shown[:2])
    assert shown[0].endswith("out_proj")
    assert len(shown[1]) < len(shown[0])


def test_a_name_at_the_end_of_an_axis_stays_on_the_page():
    ticks = ((0.0, "iid"), (1.0, "a-very-long-name-of-a-column"))
    svg, (wide, _) = still(
        Chart(title="t", x=Axis(ticks=ticks), series=(Series(x=(0, 1), y=(0, 1)),))
    )
    left = int(re.search(r"translate\((\d+) ", svg).group(1))
    (at,) = re.findall(r'x="([\d.]+)"[^>]*>a-very', svg)
    assert left + float(at) + LETTER * len(ticks[1][1]) / 2 <= wide
