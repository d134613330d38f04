"""One figure style: every figure is made and drawn by ``report.figure``."""

import ast
from pathlib import Path

import strategies
from simulations.report.figure import LOOKS, legend_outside, new_figure, picture, png, use_style
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


def test_the_style_and_one_legend_for_all_panels():
    figure = two_panels()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["both", "right"]
    assert not figure.axes[0].spines["top"].get_visible()
    assert new_figure(1, 1).subplots().spines["top"].get_visible(), "without the decorator there is no style"


def test_a_picture_has_the_size_of_its_figure():
    figure = two_panels()
    assert picture(figure, "A caption.").width == 4 * 96
    assert picture(figure, "A caption.").uri.startswith("data:image/svg+xml;base64,")
    assert picture(figure, "A caption.", png(figure)).uri.startswith("data:image/png;base64,")
