"""One figure style: every figure is made and drawn by ``report.figure``."""

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from simulations.report.chart import Axis, Chart, Series
from simulations.report.figure import interactive, save_paper
from simulations.report.looks import LOOKS
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


def planted(text: str) -> Chart:
    """A chart with marks, a hollow one, and a text of a user."""
    marks = Series(name=text, x=(0, 1), y=(1, 2), marker="o", colour=LOOKS["lsg"][0], words=(text, text))
    hollow = replace(marks, name="hollow", marker="s", filled=False)
    return Chart(title=text, x=Axis(label=text), series=(marks, hollow))


def test_text_stays_text():
    hostile = "</script><script>x</script> & $\\frac y"
    found = interactive([planted(hostile)], "A caption.")
    svg = found.panels[0].svg
    assert "#d55e00" in svg
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
    assert (first.name, first.dashes, first.colour) == (hostile, "", "#d55e00")


@pytest.mark.parametrize(("kind", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_a_figure_for_a_paper_is_as_wide_as_a_column_and_the_same_again(kind, start):
    found = save_paper(planted("a name"), kind)
    assert found.startswith(start)
    assert found == save_paper(planted("a name"), kind)
    if kind == "svg":
        assert float(re.search(rb'width="([\d.]+)pt"', found)[1]) == pytest.approx(3.3 * 72)
