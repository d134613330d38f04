"""Pages are lists of sections: HTML is in one file, every part of a page arrives, text stays text."""

import ast
import re
from pathlib import Path

from simulations.report.page import (
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
