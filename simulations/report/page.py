"""Pages and JSON that commands write: what a page consists of, the one template of all pages, and JSON of numbers.

A page is texts, facts, tables, pictures, token lists and code in titled sections. ``render`` makes one HTML file of it,
readable on a screen, a phone and paper; ``terminal.terminal_table`` shows its tables on a terminal in the same words.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

TextKind = Literal["plain", "note", "warning", "verdict"]
RowKind = Literal["", "reference", "own", "no-epsilon", "dim", "alert"]
Mark = Literal["", "moved", "wrong"]


@dataclass(frozen=True, kw_only=True)
class Text:
    """One paragraph. A note is small, a warning has a red bar, a verdict is bold."""

    kind: ClassVar[str] = "text"
    words: str
    style: TextKind = "plain"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Two columns: a name and what is true of it."""

    kind: ClassVar[str] = "facts"
    rows: tuple[tuple[str, str], ...]


def facts_of(values: Mapping[str, object]) -> Facts:
    """The items of a mapping as facts."""
    return Facts(rows=tuple((name, str(value)) for name, value in values.items()))


@dataclass(frozen=True, kw_only=True)
class Row:
    """Cells of a table. Rows of one ``group`` follow its name; ``colour`` is that of the row's line in a figure.

    style: a ``reference`` is what the others are compared with, ``own`` is the run itself, ``no-epsilon`` claims no
    epsilon, ``dim`` is not part of the method, ``alert`` must be changed.
    """

    cells: tuple[str, ...]
    style: RowKind = ""
    group: str = ""
    colour: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of text. ``note`` explains them below the table.

    left: positions of columns of words, which are aligned on the left and may be folded; numbers are on the right.
    optional: positions of columns that a narrow terminal leaves out, in this order; a page has them all.
    """

    kind: ClassVar[str] = "table"
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    title: str = ""
    note: str = ""
    left: tuple[int, ...] = (0,)
    optional: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image as a data URI, ``width`` in CSS pixels, and the caption below it."""

    kind: ClassVar[str] = "picture"
    uri: str
    width: int
    caption: str


@dataclass(frozen=True, kw_only=True)
class TokenLine:
    """Tokens, each with what is thought of it. ``first``: a new text begins."""

    name: str
    tokens: tuple[tuple[str, Mark], ...]
    first: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenLines:
    """Texts next to what was recovered of them, and the caption below."""

    kind: ClassVar[str] = "tokens"
    lines: tuple[TokenLine, ...]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Code:
    """A command, a file or numbers, in a fixed-width font; ``note`` says before it what it is."""

    kind: ClassVar[str] = "code"
    text: str
    note: str = ""


Part = Text | Facts | Table | Picture | TokenLines | Code


@dataclass(frozen=True, kw_only=True)
class Section:
    """Parts under a title; without a title they follow what is before."""

    title: str = ""
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page: what it is about, one line on what was measured, what nobody may overlook, and the sections."""

    title: str
    lead: str
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...]


CSS = """
:root { color-scheme: light; }
body { font: 15px/1.5 "Source Sans 3", "Helvetica Neue", Arial, sans-serif; color: #1b1b1b; background: #fff;
  max-width: 60rem; margin: 2.5rem auto; padding: 0 1.5rem; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.lead { color: #555; margin: 0 0 1.5rem; }
p.warning { border-left: 4px solid #b00020; padding: .5rem .9rem; background: #fdf3f4; margin: 1rem 0; }
p.note, figcaption { color: #444; font-size: .9rem; }
p.verdict { font-weight: 600; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th { text-align: right; font-weight: 600; border-bottom: 1.5px solid #1b1b1b; }
td { text-align: right; border-bottom: 1px solid #e4e4e4; }
th, td { padding: .28rem .9rem .28rem 0; vertical-align: top; white-space: nowrap; }
th.left, td.left, tr.group td { text-align: left; }
tr.group td { border-bottom: 0; padding-top: .9rem; font-weight: 600; }
tr.reference td { background: #f3f3f3; }
tr.own td { font-weight: 600; }
tr.no-epsilon td { color: #8a3b00; }
tr.dim td { color: #777; }
tr.alert td { color: #b00020; font-weight: 600; }
table.facts, table.tokens { width: 100%; margin: .6rem 0; }
table.facts td, table.tokens td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.facts td:first-child { color: #555; width: 10rem; overflow-wrap: break-word; }
table.tokens td:first-child { width: 8rem; overflow-wrap: break-word; }
.moved { color: #555; border-bottom: 1px dotted #555; }
.wrong { color: #b00020; text-decoration: line-through; }
.dot { display: inline-block; width: .65em; height: .65em; border-radius: 50%; margin-right: .5em; }
figure { margin: 1.4rem 0; break-inside: avoid; }
img { max-width: 100%; display: block; margin: .4rem 0; }
code, pre { font: .86em/1.45 "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: #f6f6f6; padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere; }
@media screen and (max-width: 40rem) { body { margin: 1.2rem auto; padding: 0 1rem; } img { max-width: none; }
  table.facts td:first-child, table.tokens td:first-child { width: 6.5rem; } }
@media print { body { margin: 0; max-width: none; font-size: 10.5pt; } h2 { break-after: avoid; }
  tr, .warning { break-inside: avoid; } table { font-size: 8pt; } th, td { padding-right: .5rem; } }
"""

TEMPLATE = """<!DOCTYPE html>
{% macro table(part) %}
<div class="scroll"><table>
{% if part.title %}<caption>{{ part.title }}</caption>{% endif %}
<tr>{% for name in part.columns %}<th{% if loop.index0 in part.left %} class="left"{% endif %}>{{ name }}</th>
{%- endfor %}</tr>
{% for row in part.rows %}
{% if row.group and (loop.first or row.group != part.rows[loop.index0 - 1].group) %}
<tr class="group"><td colspan="{{ part.columns | length }}">{{ row.group }}</td></tr>
{% endif %}
<tr{% if row.style %} class="{{ row.style }}"{% endif %}>
{% for cell in row.cells %}
<td{% if loop.index0 in part.left %} class="left"{% endif %}>
{%- if loop.first and row.colour %}<span class="dot" style="background: {{ row.colour }}"></span>{% endif -%}
{{ cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</table></div>
{% if part.note %}<p class="note">{{ part.note }}</p>{% endif %}
{% endmacro %}
{% macro tokens(part) %}
<table class="tokens">
{% for line in part.lines %}
<tr{% if line.first %} class="group"{% endif %}><td>{{ line.name }}</td><td>
{% for token, mark in line.tokens %}<span{% if mark %} class="{{ mark }}"{% endif %}>{{ token }}</span> {% endfor %}
</td></tr>
{% endfor %}
</table>
<p class="note">{{ part.caption }}</p>
{% endmacro %}
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ page.title }}</title>
<style>{{ css }}</style>
</head>
<body>
<h1>{{ page.title }}</h1>
<p class="lead">{{ page.lead }}</p>
{% for words in page.warnings %}
<p class="warning">{{ words }}</p>
{% endfor %}
{% for section in page.sections %}
{% if section.title %}<h2>{{ section.title }}</h2>{% endif %}
{% for part in section.parts %}
{% if part.kind == "text" %}
<p{% if part.style != "plain" %} class="{{ part.style }}"{% endif %}>{{ part.words }}</p>
{% elif part.kind == "facts" %}
<table class="facts">
{% for name, words in part.rows %}
<tr><td>{{ name }}</td><td>{{ words }}</td></tr>
{% endfor %}
</table>
{% elif part.kind == "table" %}
{{ table(part) }}
{% elif part.kind == "picture" %}
<figure><div class="scroll"><img src="{{ part.uri }}" width="{{ part.width }}" alt="{{ part.caption }}"></div>
<figcaption>{{ part.caption }}</figcaption></figure>
{% elif part.kind == "tokens" %}
{{ tokens(part) }}
{% elif part.kind == "code" %}
{% if part.note %}<p class="note">{{ part.note }}</p>{% endif %}
<pre>{{ part.text }}</pre>
{% endif %}
{% endfor %}
{% endfor %}
</body>
</html>
"""


def render(page: Page) -> str:
    """The page as HTML. Guarantee: text stays text, whatever it holds, and a browser requests nothing.

    Jinja escapes every value. Only the style sheet is inserted as it is.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE).render(page=page, css=Markup(CSS))


def cell(facts: Facts, picture: Picture | None) -> str:
    """The same as HTML for the cell of a notebook, without a page around it. Text stays text."""
    from markupsafe import Markup

    rows = Markup("").join(Markup("<tr><th>{}</th><td>{}</td></tr>").format(*row) for row in facts.rows)
    shown = (
        ""
        if picture is None
        else Markup('<img src="{}" alt="{}" style="width: {}px; max-width: 100%">').format(
            picture.uri, picture.caption, picture.width
        )
    )
    return str(Markup("<table>{}</table>{}").format(rows, shown))


def json_text(value: Any, *, indent: int = 1, not_finite: Callable[[float], str | None] = lambda number: None) -> bytes:
    """The bytes of a JSON file; ``not_finite`` replaces NaN and infinity."""
    return (json.dumps(finite(value, not_finite), indent=indent) + "\n").encode()


def finite(value: Any, not_finite: Callable[[float], str | None] = lambda number: None) -> Any:
    """The same values with ``not_finite`` of those that JSON has no number for."""
    if isinstance(value, Mapping):
        return {str(key): finite(item, not_finite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item, not_finite) for item in value]
    return not_finite(value) if isinstance(value, float) and not math.isfinite(value) else value
