"""One figure style: every figure is made and drawn by ``report.figure``."""

import ast
import re
from pathlib import Path

import strategies
from simulations.report.figure import LOOKS, drawing, legend_outside, new_figure, use_style
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


@use_style
def two_panels():
    """Two panels with one label in common."""
    figure = new_figure(4.0, 2.0)
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], label="both")
    right.plot([0, 1], label="both")
    right.plot([1, 0], label="right")
    legend_outside(figure, [left, right])
    return figure


def test_a_drawing_has_a_panel_for_each_pair_of_axes_and_one_legend():
    figure = two_panels()
    found = drawing(figure, "A caption.")
    assert [key.name for key in found.legend] == ["both", "right"]
    assert len(found.panels) == 2
    for panel in found.panels:
        assert "legend" not in panel.svg
        assert "both: from 0 at 0 to 1 at 1." in panel.words
        named = set(re.findall(r' id="([^"]*)"', panel.svg))
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', panel.svg)) <= named, "what a panel uses is in it"
    assert figure.legends[0].get_visible(), "as it was, for a PNG"


@use_style
def planted(text):
    """A figure with marks, a hollow one, and a text of a user."""
    figure = new_figure(3.0, 2.0)
    axes = figure.subplots()
    axes.plot([0, 1], [1, 2], marker="o", color=LOOKS["lsg"][0], label=text)
    axes.plot([0, 1], [2, 1], marker="s", color=LOOKS["rgp"][0], markerfacecolor="white", label="hollow")
    axes.set_title(text, loc="left")
    legend_outside(figure, [axes])
    return figure


def test_text_stays_text():
    found = drawing(planted("<script>x</script> & y"), "A caption.")
    svg = found.panels[0].svg
    assert "#d55e00" in svg
    assert "font-family" not in svg, "the page's"
    assert set(re.findall(r"font-size: [^;]*", svg)) <= {
        f"font-size: calc({n}px * var(--words, 1))" for n in (9, "10.8")
    }
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
    first, second = found.legend
    assert (first.filled, second.filled) == (True, False)
    assert first.marker
    assert (first.name, first.dashes, first.colour) == ("<script>x</script> & y", "", "#d55e00")
