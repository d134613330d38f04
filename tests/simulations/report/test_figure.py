"""One figure style: every figure is made and drawn by ``report.figure``."""

import ast
import re
from pathlib import Path

import torch

import strategies
from simulations.inspection.figures import PANELS, intensity
from simulations.report.figure import LOOKS, drawing, legend_outside, new_figure, photo, use_style
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


def test_the_style_and_one_legend_for_all_panels():
    figure = two_panels()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["both", "right"]
    assert not figure.axes[0].spines["top"].get_visible()
    assert new_figure(1, 1).subplots().spines["top"].get_visible(), "without the decorator there is no style"


def test_a_photo_has_the_size_of_its_figure():
    found = photo(two_panels(), "A caption.")
    assert found.width == 4 * 96
    assert found.uri.startswith("data:image/webp;base64,")


def test_a_page_of_six_photos_of_noise_is_below_a_megabyte():
    """The worst case of ``fedlsg inspect``: nothing in them can be compressed."""
    noise = torch.randn(400, 400, generator=torch.Generator().manual_seed(0))
    assert PANELS * len(photo(intensity("layer", noise, noise**3), "A caption.").uri) < 800_000


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


@use_style
def bytes_of_a_run():
    """Labels of the axis are long where ticks are close, and short where they are not."""
    figure = new_figure(7.2, 4.8, arrange=False)
    places = {"left": 0.09, "right": 0.985, "bottom": 0.095, "top": 0.95, "wspace": 0.22, "hspace": 0.3}
    axes = figure.subplots(2, 2, gridspec_kw=places)[1, 0]
    axes.plot([0, 30], [0, 2.89])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} MB")
    return figure


def test_the_words_of_a_panel_are_within_it():
    """Ticks follow the style: measured in another one, panels were cut for other, shorter labels."""
    panel = drawing(bytes_of_a_run(), "A caption.").panels[2]
    assert "0.5 MB" in panel.svg
    moved = float(re.search(r"translate\((\S+)", panel.svg)[1])
    for x, words in re.findall(r'text-anchor: end[^>]* x="([\d.]+)"[^>]*>([^<]+)</text>', panel.svg):
        assert float(x) + moved >= 9 * 0.6 * len(words), words


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


def test_numbers_and_colours_in_words_stay_as_they_are():
    """What shortens paths and exchanges colours looks at no text."""
    label = "rate 0.0125, url(#d55e00), #d55e00 > 1"
    svg = drawing(planted(label), "A caption.").panels[0].svg
    assert "rate 0.0125, url(#d55e00), #d55e00 &gt; 1</text>" in svg
    assert not re.findall(r'd="[^"]*\d\.\d{3}', svg)


@use_style
def levels():
    """A curve without a name, and a level across the panel."""
    figure = new_figure(3.0, 2.0)
    axes = figure.subplots()
    axes.plot([1, 2, 6], [8.9, 20, 64.4])
    axes.axhline(10.3)
    axes.set_title("test accuracy, %", loc="left")
    return figure


def test_a_curve_is_described_by_its_ends_and_a_level_by_its_height():
    (panel,) = drawing(levels(), "A caption.").panels
    assert panel.title == "test accuracy, %"
    assert panel.words == "Up: test accuracy, %. from 8.9 at 1 to 64.4 at 6. a line across: 10.3."


def test_words_across_are_said_as_they_are():
    """As of ``fedlsg compare --vary schedule=constant,cosine``."""
    figure = new_figure(3.0, 2.0)
    figure.subplots().plot(["constant", "cosine"], [14.0, 15.5])
    (panel,) = drawing(figure, "A caption.").panels
    assert panel.words == "from 14 at constant to 15.5 at cosine."


def test_guessing_is_the_last_entry_of_every_legend():
    figure = two_panels()
    figure.axes[0].plot([0, 1], label="guessing")
    figure.axes[1].plot([0, 1], label="later")
    figure.legends.clear()
    legend_outside(figure, figure.axes, order=["later", "right"])
    expected = ["later", "right", "both", "guessing"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == expected
    assert [key.name for key in drawing(figure, "A caption.").legend] == expected
