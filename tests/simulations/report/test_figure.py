"""One figure style: every figure is made and drawn by ``report.figure``."""

import ast
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import strategies
from simulations.exports import save_paper
from simulations.inspection.figures import PANELS, intensity
from simulations.report.chart import Axis, Chart, Series, describe, spaced
from simulations.report.colours import LOOKS
from simulations.report.figure import interactive, photo
from simulations.report.run_page import MOST, thinned
from tests.places import REPOSITORY

OWNER = "simulations/report/figure.py"
DRAWING = {"Figure", "savefig", "rc_context"}


def drawing_calls(source: str) -> set[str]:
    """Calls that make a figure, save it or set a style."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = {call.id if isinstance(call, ast.Name) else getattr(call, "attr", "") for call in calls}
    return names & DRAWING


def test_every_figure_goes_through_one_file():
    found = {path: drawing_calls(path.read_text()) for path in (REPOSITORY / "simulations").rglob("*.py")}
    assert {str(Path(path).relative_to(REPOSITORY)) for path, calls in found.items() if calls} == {OWNER}


def test_a_figure_made_elsewhere_is_found():
    """Negative control."""
    assert drawing_calls("from matplotlib.figure import Figure\nx = Figure(figsize=(1, 2))") == {"Figure"}
    assert drawing_calls("def f(figure):\n    figure.savefig('x.png')") == {"savefig"}


def test_every_recipe_has_a_colour_of_its_own():
    """So that learning curves, which have no markers, can be distinguished."""
    assert strategies.names()
    assert set(strategies.names()) <= LOOKS.keys()
    colours = [colour for colour, _ in LOOKS.values()]
    assert len(set(colours)) == len(colours)
    assert "#000000" not in colours, "matplotlib leaves a black fill out"


def two_charts() -> tuple[Chart, ...]:
    """Two charts with one name in common."""
    both = Series(name="both", x=(0, 1), y=(0, 1))
    return (
        Chart(title="left", series=(both,)),
        Chart(title="right", series=(both, Series(name="right", x=(0, 1), y=(1, 0)))),
    )


def test_a_page_of_six_photos_of_noise_is_small_enough_for_the_library():
    """The worst case of ``fedlsg inspect``: nothing in them can be compressed."""
    noise = torch.randn(400, 400, generator=torch.Generator().manual_seed(0))
    assert PANELS * len(photo(intensity("layer", noise, noise**3), "A caption.").uri) < 600_000


def test_a_figure_of_a_page_has_a_panel_for_each_chart_and_one_legend():
    found = interactive(two_charts(), "A caption.")
    assert [key.name for key in found.legend] == ["both", "right"]
    assert len(found.panels) == 2
    for panel in found.panels:
        assert "legend" not in panel.svg
        assert "both: from 0 at 0 to 1 at 1." in panel.words
        named = set(re.findall(r' id="([^"]*)"', panel.svg))
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', panel.svg)) <= named, "what a panel uses is in it"
    first, second = json.loads(found.data)
    assert [one["name"] for one in second["series"]] == ["both", "right"]
    assert first["series"][0]["y"] == [0.0, 1.0]


def test_charts_without_a_name_in_common_have_legends_of_their_own():
    left, right = two_charts()
    found = interactive([left, replace(right, series=right.series[1:])], "A caption.")
    assert found.legend == ()
    assert [[key.name for key in panel.legend] for panel in found.panels] == [["both"], ["right"]]


def planted(text: str) -> Chart:
    """A chart with marks, a hollow one, and a text of a user."""
    marks = Series(name=text, x=(0, 1), y=(1, 2), marker="o", colour=LOOKS["lsg"][0], words=(text, text))
    hollow = replace(marks, name="hollow", marker="s", filled=False)
    return Chart(title=text, x=Axis(label=text), series=(marks, hollow))


def test_text_stays_text():
    hostile = "</script><script>x</script> & $\\frac y"
    found = interactive([planted(hostile)], "A caption.")
    svg = found.panels[0].svg
    assert "#e03840" in svg
    assert "font-family" not in svg, "the page's"
    assert set(re.findall(r"font-size: [^;]*", svg)) <= {
        f"font-size: calc({n}px * var(--words, 1))" for n in (9, "10.8")
    }
    for text in (svg, found.data):
        assert "<script" not in text
        assert "</script" not in text
    assert "&lt;script&gt;" in svg
    assert json.loads(found.data)[0]["series"][0]["name"] == hostile
    first, second = found.panels[0].legend
    assert (first.filled, second.filled) == (True, False)
    assert first.marker
    assert (first.name, first.dashes, first.colour) == (hostile, "", "#e03840")


def test_named_places_are_said_by_their_names():
    """As of ``fedlsg compare --vary schedule=constant,cosine``."""
    x = Axis(ticks=((0.0, "constant"), (1.0, "cosine")))
    chart = Chart(title="loss", x=x, series=(Series(x=(0, 1), y=(14.0, 15.5)),))
    assert describe(chart) == "Up: loss. from 14 at constant to 15.5 at cosine."


def test_names_of_ticks_do_not_cover_each_other():
    epsilons = [(value, f"{value:g}") for value in (0.5, 1.0, 3.0, 3.05, 8.0)]
    assert [words for _, words in spaced(epsilons, log=True)] == ["0.5", "1", "3.05", "8"]
    assert len(spaced(epsilons[:3], log=True)) == 3


@pytest.mark.parametrize(("kind", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_a_figure_for_a_paper_is_as_wide_as_a_column_and_the_same_again(kind, start):
    found = save_paper(planted("a name"), kind)
    assert found.startswith(start)
    assert found == save_paper(planted("a name"), kind)
    if kind == "svg":
        assert float(re.search(rb'width="([\d.]+)pt"', found)[1]) == pytest.approx(3.3 * 72)


def test_a_line_of_ten_thousand_rounds_keeps_its_peaks_and_ends():
    values = [round(math.sin(place / 300), 6) for place in range(10_000)]
    values[4321], values[8765] = 5.0, -5.0
    line = thinned(Series(x=range(10_000), y=values))
    assert 500 < len(line.x) <= MOST + 2
    assert all(values[place] == value for place, value in zip(line.x, line.y, strict=True))
    assert {4321, 8765, 0, 9_999} <= set(line.x)
    short = Series(x=range(MOST), y=values[:MOST])
    assert thinned(short) is short
