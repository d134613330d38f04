"""Pages are lists of sections: HTML is in one file, every part of a page arrives, text stays text."""

import ast
import re
from pathlib import Path

from simulations.report.page import (
    Code,
    Download,
    Downloads,
    Drawing,
    Facts,
    Key,
    Page,
    Panel,
    Picture,
    Row,
    Section,
    Table,
    Text,
    TokenLine,
    TokenLines,
)
from simulations.report.render import render, scripts
from tests.places import REPOSITORY

TAGS = "html|head|body|style|title|h[1-6]|p|div|span|table|caption|tr|th|td|img|figure|figcaption|pre|code|ul|ol|li|a"
TAG = re.compile(rf"</?({TAGS})(\s[^<>]*)?>")
"""Tags of a page. ``<br>`` is not among them: it is the only line break in a cell of Markdown."""
OWNER = "simulations/report/template.py"


def html_in(source: str) -> list[str]:
    """Tags in the string literals of a source."""
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [match.group() for text in texts if isinstance(text, str) for match in TAG.finditer(text)]


def sources() -> list[Path]:
    return [path for top in ("fedlsg", "strategies", "simulations") for path in (REPOSITORY / top).rglob("*.py")]


def test_html_is_in_one_file_only():
    found = {str(path.relative_to(REPOSITORY)): html_in(path.read_text()) for path in sources()}
    assert {name for name, tags in found.items() if tags} == {OWNER}


def page_of(*parts: object) -> str:
    section = Section(title="S", parts=parts)  # type: ignore[arg-type]
    return render(Page(title="T", lead="L", headline="Own headline.", warnings=("W",), sections=(section,)))


def key(name: str) -> Key:
    return Key(name=name, colour="#d55e00")


def test_every_part_arrives():
    table = Table(
        title="A table",
        columns=("name", "number"),
        rows=(
            Row(cells=("one", "1"), group="first group", colour="#123456"),
            Row(cells=("two", "2"), group="first group", style="no-epsilon"),
            Row(cells=("three", "3"), group="second group", style="reference"),
        ),
        note="Its note.",
        optional=(1,),
    )
    tokens = TokenLines(lines=(TokenLine(name="original", tokens=(("word", "wrong"),), first=True),), caption="Tokens.")
    source = page_of(
        Text(words="A verdict.", style="verdict"),
        Facts(rows=(("fact", "is true"),)),
        table,
        Picture(uri="data:image/png;base64,AA", width=300, caption="A picture."),
        Drawing(
            panels=(Panel(svg="<g/>", size=(30, 20), title="One panel", words="It rises.", legend=(key("own"),)),),
            legend=(key("shared"),),
            caption="A drawing.",
        ),
        Downloads(
            files=(Download(name="a.csv", content=b"1", says="kept"), Download(name="b", content=None, says="x"))
        ),
        tokens,
        Code(text="fedlsg run", note="A command:"),
    )
    for words in (
        "<h1>T</h1>", "L", '<p class="warning" role="note">W</p>', ">S</h2>", "Own headline.",
        'aria-label="One panel. It rises."', "own</li>", "shared</li>", "A drawing.",
        'href="data:text/csv;base64,MQ==" download="a.csv"', 'href="b" download="b"',
        '<th scope="col" class="left">name', '<th scope="row" class="left">', '<p class="verdict">A verdict.</p>',
        "is true",
        "A table", "Its note.", 'background: #123456', '<tr class="no-epsilon">', '<tr class="reference">',
        'width="300"', "A picture.", '<span class="wrong">word</span>', "Tokens.", "A command:",
        "<pre>fedlsg run</pre>",
    ):  # fmt: skip
        assert words in source, words
    assert source.count("first group") == source.count("second group") == 1
    assert source.count("<td") == 3 + 1, "a page has optional columns as well"


def test_text_stays_text():
    bad = '<script>"&'
    parts = (
        Text(words=bad), Facts(rows=((bad, bad),)), Code(text=bad, note=bad),
        Table(columns=(bad,), rows=(Row(cells=(bad,), group=bad),), title=bad, note=bad),
        TokenLines(lines=(TokenLine(name=bad, tokens=((bad, ""),)),), caption=bad),
    )  # fmt: skip
    whole = page_of(*parts)
    (own,) = scripts(drawn=False)
    source = whole.replace(f"<script>{own}</script>", "")
    assert "<script" not in source
    assert source.count("&lt;script&gt;&#34;&amp;") == 14
