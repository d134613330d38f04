"""Pages and figures: HTML and drawing are in one file each, text stays text, figures are as wide as
a column.
"""

import ast
import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedlsg.simulations.cli.export import save_paper
from fedlsg.simulations.report.drawing.chart import Axis, Chart, Series
from fedlsg.simulations.report.drawing.colours import LOOKS
from fedlsg.simulations.report.pages.figure import interactive, picture, plot
from fedlsg.simulations.report.pages.page import (
    Code,
    Facts,
    Page,
    Row,
    Section,
    Table,
    Text,
    TokenLine,
    TokenLines,
)
from fedlsg.simulations.report.pages.template import render, scripts
from tests.places import REPOSITORY

TAGS = "html|head|body|style|title|h[1-6]|p|div|span|table|caption|tr|th|td|img|figure|figcaption|pre|code|ul|ol|li|a"
TAG = re.compile(rf"</?({TAGS})(\s[^<>]*)?>")
"""Tags of a page. ``<br>`` is not among them: it is the only line break in a cell of Markdown."""
OWNER = "simulations/report/pages/template.py"


def html_in(source: str) -> list[str]:
    """Tags in the string literals of a source."""
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [
        match.group() for text in texts if isinstance(text, str) for match in TAG.finditer(text)
    ]


def sources() -> list[Path]:
    return [
        path
        for top in ("fedlsg", "strategies", "simulations")
        for path in (REPOSITORY / top).rglob("*.py")
    ]


@pytest.mark.slow
def test_html_is_in_one_file_only():
    found = {str(path.relative_to(REPOSITORY)): html_in(path.read_text()) for path in sources()}
    assert {name for name, tags in found.items() if tags} == {OWNER}


def page_of(*parts: object) -> str:
    section = Section(title="S", parts=parts)  # type: ignore[arg-type]
    return render(
        Page(title="T", lead="L", headline="Own headline.", warnings=("W",), sections=(section,))
    )


def test_text_stays_text():
    bad = '<script>"&'
    parts = (
        Text(words=bad),
        Facts(rows=((bad, bad),)),
        Code(text=bad, note=bad),
        Table(columns=(bad,), rows=(Row(cells=(bad,), group=bad),), title=bad, note=bad),
        TokenLines(lines=(TokenLine(name=bad, tokens=((bad, ""),)),), caption=bad),
    )
    whole = page_of(*parts)
    (own,) = scripts(drawn=False)
    source = whole.replace(f"<script>{own}</script>", "")
    assert "<script" not in source
    assert source.count("&lt;script&gt;&#34;&amp;") == 14


def planted(text: str) -> Chart:
    """A chart with marks, a hollow one, and a text of a user."""
    marks = Series(
        name=text, x=(0, 1), y=(1, 2), marker="o", colour=LOOKS["lsg"][0], words=(text, text)
    )
    hollow = replace(marks, name="hollow", marker="s", filled=False)
    return Chart(title=text, x=Axis(label=text), series=(marks, hollow))


def test_text_of_a_figure_stays_text():
    hostile = "</script><script>x</script> & $\\frac y"
    found = interactive([planted(hostile)], "A caption.")
    svg = found.panels[0].svg
    assert "#e03840" in svg
    assert "font-family" not in svg, "the page's"
    assert set(re.findall(r'font-size: [^;"]*', svg)) == {"font-size: calc(12px * var(--words, 1))"}
    for text in (svg, found.data):
        assert "<script" not in text
        assert "</script" not in text
    assert "&lt;script&gt;" in svg
    assert json.loads(found.data)[0]["series"][0]["name"] == hostile
    first, second = found.panels[0].legend
    assert (first.filled, second.filled) == (True, False)
    assert first.outline
    assert (first.name, first.dashed, first.colour) == (hostile, "", "#e03840")


def test_a_figure_of_another_kind_is_an_image_that_loads_nothing():
    found = picture(plot([planted("<script>")]), "A caption.")
    svg = base64.b64decode(found.uri.removeprefix("data:image/svg+xml;base64,"))
    assert svg.startswith(b"<?xml")
    assert b"<script" not in svg


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("kind", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")]
)
def test_a_figure_for_a_paper_is_as_wide_as_a_column_and_the_same_again(kind, start):
    found = save_paper(planted("a name"), kind)
    assert found.startswith(start)
    assert found == save_paper(planted("a name"), kind)
    if kind == "svg":
        assert float(re.search(rb'width="([\d.]+)pt"', found)[1]) == pytest.approx(3.3 * 72)
