"""The one builder of pages, and its templates: of a page, and of each kind of part. HTML is nowhere
else.

Accessible: landmarks, one h1, tables with scoped headers, figures with their words, boxes that
scroll by keyboard.
``assets/page.js``: figures that answer, tables that sort, slides.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from fedlsg.simulations.report.pages.page import Download, Drawing, Page, Part, Table
from fedlsg.simulations.report.pages.style import CSS

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

SECTIONS = 3
"""Titled sections from which on a page has a list of them at its top."""
KINDS = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".md": "text/markdown",
    ".tex": "application/x-tex",
    ".toml": "application/toml",
}
ASSETS = Path(__file__).parent / "assets"
LIBRARIES = ("chart.umd.min.js", "chartjs-plugin-zoom.min.js")


def render(page: Page, follow: str = "") -> str:
    """The page as HTML. Guarantee: text stays text, whatever it holds, and a browser requests
    nothing.

    Jinja escapes every value. Only the style sheet, the scripts, data that ``script_json`` escaped,
    and the SVG of a panel, whose text is escaped, are inserted as they are. The page's own policy
    lets a browser run these scripts alone, and load nothing. ``follow``: a script after them, for a
    page on loopback that asks its own server.
    """
    drawn = any(isinstance(part, Drawing) for part in _parts(page))
    run = (*scripts(drawn=drawn), *([follow] if follow else []))
    return _template().render(
        page=page,
        css=CSS,
        listed=SECTIONS,
        target=target,
        spark=spark_path,
        half=HALF,
        scripts=run,
        policy=policy(run, asks=bool(follow)),
    )


@functools.cache
def _template() -> "Template":
    """Compiled once a process: it is a constant of this file."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    environment = Environment(
        loader=DictLoader(PARTS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["options"] = options_whole
    return environment.from_string(PAGE)


def options_whole(words: str) -> "Markup":
    """Text whose options of commands, such as ``--rounds``, no browser breaks after a hyphen."""
    from markupsafe import Markup, escape

    return Markup(OPTION.sub(r"<span class='option'>\1</span>", str(escape(words))))


def policy(run: Iterable[str], *, asks: bool = False) -> str:
    """What a browser may do with the page: run these scripts and no other, and load nothing that is
    not in it.
    """
    digests = []
    for text in run:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        digests.append(f"'sha256-{digest}'")
    allowed = " ".join(digests) or "'none'"
    server = "connect-src 'self'; " if asks else ""
    return (
        f"default-src 'none'; {server}script-src {allowed}; "
        "style-src 'unsafe-inline'; img-src data:"
    )


def _parts(page: Page) -> Iterable[Part]:
    for section in page.sections:
        for part in section.parts:
            yield from part.parts


@functools.cache
def scripts(*, drawn: bool) -> tuple[str, ...]:
    """What a page runs, with the library if it has figures; nothing in a Flower bundle, which holds
    no scripts. Read once a process: these files come with the package.
    """
    names = (*LIBRARIES, "page.js") if drawn else ("page.js",)
    files = [ASSETS / name for name in names]
    if not all(file.exists() for file in files):
        return ()
    return tuple(file.read_text().split("//# sourceMappingURL")[0] for file in files)


OPTION = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")
HALF = 16
"""Letters of a cell that leave room for its name in half of a card on a phone."""
SPARK = (96, 22)
"""CSS pixels of a small curve."""


def spark_path(values: Sequence[float]) -> str:
    """A small curve from its least value to its largest, as SVG has paths."""
    low, high = min(values), max(values)
    wide, tall = (size - 4 for size in SPARK)
    apart, reach = wide / max(len(values) - 1, 1), (high - low) or 1.0
    places = (
        f"{2 + at * apart:.1f} {2 + tall * (1 - (value - low) / reach):.1f}"
        for at, value in enumerate(values)
    )
    return "M" + "L".join(places)


def target(file: Download) -> str:
    """Where the link of a file leads: to the data in the page, or to the file next to it."""
    if file.content is None:
        return file.name
    kind = KINDS.get(PurePath(file.name).suffix, "text/plain")
    return f"data:{kind};base64,{base64.b64encode(file.content).decode()}"


PAGE = """<!DOCTYPE html>
{% macro key(one) %}
<svg viewBox="0 0 30 14" aria-hidden="true" focusable="false">
{% if one.patch %}<rect x="4" y="1" width="22" height="12" fill="{{ one.colour }}"/>{% endif %}
{% if one.line and not one.patch %}<path d="M0 7H30" fill="none" stroke="{{ one.colour }}" stroke-width="2"
{%- if one.dashed %} stroke-dasharray="{{ one.dashed }}"{% endif %}/>{% endif %}
{% if one.outline %}<path d="{{ one.outline }}" transform="translate(15 7)" stroke="{{ one.colour }}" stroke-width="1.5"
 fill="{{ one.colour if one.filled else "#ffffff" }}"/>{% endif %}
</svg>
{% endmacro %}
{% macro keys(legend) %}
{% if legend %}
<ul class="keys">{% for one in legend %}<li data-name="{{ one.name }}">{{ key(one) }}
{{- one.name }}</li>{% endfor %}</ul>
{% endif %}
{% endmacro %}
{% macro parts(some, title) %}
{% for part in some %}
{% include part.kind %}
{% endfor %}
{% endmacro %}
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ page.title }}</title>
<style>{{ css | safe }}</style>
</head>
<body>
<header>
{% if page.kind %}<p class="kind">{{ page.kind }}</p>{% endif %}
<h1>{{ page.title }}</h1>
{% if page.badge[0] %}<p class="badge {{ page.badge[1] }}">{{ page.badge[0] }}</p>{% endif %}
<p class="lead">{{ page.lead }}</p>
{% if page.headline %}<p class="headline">{{ page.headline | replace(" %", "\u00a0%") }}</p>{% endif %}
{% for words in page.warnings %}
<p class="warning" role="note">{{ words }}</p>
{% endfor %}
{% for words in page.cautions %}
<p class="warning caution" role="note">{{ words }}</p>
{% endfor %}
{% for words in page.advice %}
<p class="advice" role="note">{{ words }}</p>
{% endfor %}
{% if page.sections | selectattr("title") | list | length >= listed %}
<nav aria-label="On this page"><ul>
{% for section in page.sections %}
{% if section.title %}<li><a href="#section-{{ loop.index }}">{{ section.title }}</a></li>{% endif %}
{% endfor %}
</ul></nav>
{% endif %}
</header>
<main>
{% for section in page.sections %}
{% if section.folded %}
<details><summary><h2 id="section-{{ loop.index }}">{{ section.title }}</h2></summary>
{{ parts(section.parts, section.title) }}
</details>
{% elif section.title %}
<section aria-labelledby="section-{{ loop.index }}"><h2 id="section-{{ loop.index }}">{{ section.title }}</h2>
{{ parts(section.parts, section.title) }}
</section>
{% else %}
{{ parts(section.parts, section.title) }}
{% endif %}
{% endfor %}
</main>
<footer>{% if page.kind %}Made by {{ page.kind }}. {% endif %}This file needs no other file and no network.</footer>
{% for script in scripts %}
<script>{{ script | safe }}</script>
{% endfor %}
</body>
</html>"""
PARTS = {
    "text": """<p{% if part.style != "plain" %} class="{{ part.style }}"{% endif %}>{{ part.words | options }}</p>
""",
    "facts": """{% if part.title %}<h3>{{ part.title }}</h3>{% endif %}
<dl>
{% for name, words in part.rows %}
<dt>{{ name }}</dt><dd>{{ words | options }}</dd>
{% endfor %}
</dl>
""",
    "table": """{% set wide = part.wide %}
<div class="scroll" role="group" tabindex="0" aria-label="{{ part.title or title or "table" }}"><table
 class="{% if part.chosen %}chosen{% else %}data{% if wide %} cards{% endif %}{% endif %}">
{% if part.title %}<caption>{{ part.title }}</caption>{% endif %}
{% if part.chosen %}
<style>{% for name in part.columns[1:] %}main:not(:has(#tick-{{ loop.index }}:checked)) .pick-{{ loop.index }},
{%- endfor %} .none { display: none; }</style>
{% endif %}
<thead><tr>{% for name in part.columns %}<th scope="col" class="{% if loop.index0 in part.left %}left{% endif %}
{%- if part.chosen %} pick-{{ loop.index0 }}{% endif %}">
{{- name }}</th>
{%- endfor %}{% if part.spark %}<th scope="col" class="left">{{ part.spark }}</th>{% endif %}</tr></thead>
<tbody>
{% for row in part.rows %}
{% if row.group and (loop.first or row.group != part.rows[loop.index0 - 1].group) %}
{% if not loop.first %}</tbody><tbody>{% endif %}
<tr class="group"><th scope="rowgroup" colspan="{{ part.columns | length + (1 if part.spark else 0) }}">{{ row.group }}</th></tr>
{% endif %}
<tr{% if row.style %} class="{{ row.style }}"{% endif %}>
{% set row_at = loop.index %}
{% for cell in row.cells %}
{% if loop.first %}
<th scope="row"{% if loop.index0 in part.left %} class="left"{% endif %}>
{%- if row.colour %}<span class="dot" data-colour="{{ row.colour }}"
 style="background: {{ row.colour }}"></span>{% endif -%}
{% if row.ticked is not none %}<input type="checkbox" id="tick-{{ row_at }}" aria-label="compare {{ cell }}"
{%- if row.ticked %} checked{% endif %}> {% endif %}{{ cell }}</th>
{% else %}
{% set at = loop.index0 %}
<td{% if part.chosen %} class="left pick-{{ at }}"{% else %} class="
{%- if at in part.left %}left{% elif at in row.best %}best{% endif %}
{%- if cell | length > half %} long{% endif %}"{% endif %}
{%- if row.values and row.values[at] is not none %} data-v="{{ row.values[at] }}"{% endif %}
{%- if wide %} data-label="{{ part.columns[at] }}"{% endif %}>
{%- if at in row.best %}<span class="hidden">best: </span>{% endif %}{{ cell }}</td>
{% endif %}
{% endfor %}
{% if part.spark %}
<td class="left curve"{% if row.spark %} data-v="{{ row.spark[-1] }}"{% endif %} data-label="{{ part.spark }}">
{%- if row.spark | length > 1 %}<svg class="spark" viewBox="0 0 96 22" role="img"
 aria-label="{{ "from %.3g to %.3g" | format(row.spark[0], row.spark[-1]) }}"><path d="{{ spark(row.spark) }}"/></svg>
{%- else %}--{% endif %}</td>
{% endif %}
</tr>
{% endfor %}
</tbody></table></div>
{% if part.note %}<p class="note">{{ part.note }}</p>{% endif %}

""",
    "tiles": """<ul class="tiles" style="--cards: {{ part.tiles | length }}">
{% for tile in part.tiles %}
<li{% if tile.style %} class="{{ tile.style }}"{% endif %}><span class="name">{{ tile.name }}</span>
<strong>{{ tile.value }}</strong>
{% if tile.note %}<span class="note">{{ tile.note | replace(" %", "\u00a0%") }}</span>{% endif %}</li>
{% endfor %}
</ul>
""",
    "meters": """<ul class="meters">
{% for meter in part.meters %}
<li><span class="name">{{ meter.name }}</span>
<progress max="1" value="{{ meter.share }}" aria-label="{{ meter.name }}"></progress>
<span class="note">{{ meter.words }}</span></li>
{% endfor %}
</ul>
""",
    "gallery": """<figure><div class="scroll" role="group" tabindex="0" aria-label="images"><table class="gallery"
 style="--side: {{ part.side }}px">
<thead><tr>{% for name in part.columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in part.rows %}
<tr>{% for shot in row %}<td data-label="{{ part.columns[loop.index0] }}">{% if shot.uri %}<img src="{{ shot.uri }}"
 alt="{{ part.columns[loop.index0] }}: {{ shot.words }}">
{% endif %}<span{% if shot.style %} class="{{ shot.style }}"{% endif %}>{{ shot.words }}</span></td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% if part.caption %}<figcaption>{{ part.caption }}</figcaption>{% endif %}</figure>
""",
    "versions": """<ul class="versions" style="--side: {{ part.side }}px; --across: {{ part.columns | length - 1 }}">
{% for card in part.cards %}
<li>{% for shot in card %}<div>{% if shot.uri %}<img src="{{ shot.uri }}" alt="{{ part.columns[loop.index0] }}">{% endif %}
<b>{{ part.columns[loop.index0] }}</b>
<span{% if shot.style %} class="{{ shot.style }}"{% endif %}>{{ shot.words }}</span></div>{% endfor %}</li>
{% endfor %}
</ul>
""",
    "slides": """<div class="slides" data-name="{{ part.name }}">
{% for label, own in part.slides %}
<div class="slide" data-label="{{ label }}"><h3>{{ part.name }} {{ label }}</h3>
{{ parts(own, title) }}
</div>
{% endfor %}
</div>
""",
    "drawing": """<figure class="chart">
<div class="panels {{ ["one", "two", "three"][part.columns - 1] }}">
{% for panel in part.panels %}
<div class="panel"><p class="title">{{ panel.title }}</p>
{{ keys(panel.legend) }}
<svg role="img" class="still" style="--wide: {{ panel.size[0] }}px" viewBox="0 0 {{ panel.size[0] }} {{ panel.size[1] }}"
 aria-label="{{ panel.title }}. {{ panel.words }}">
{{- panel.svg | safe }}</svg></div>
{% endfor %}
</div>
{{ keys(part.legend) }}
<script type="application/json">{{ part.data | safe }}</script>
<figcaption>{{ part.caption }}</figcaption></figure>
""",
    "picture": """<figure><div class="scroll" role="group" tabindex="0" aria-label="picture">
<img src="{{ part.uri }}" width="{{ part.width }}" alt="{{ part.caption }}"></div>
<figcaption>{{ part.caption }}</figcaption></figure>
""",
    "tokenlines": """<table class="tokens">
{% for line in part.lines %}
<tr{% if line.first %} class="group"{% endif %}><th scope="row">{{ line.name }}</th><td>
{% for token, mark in line.tokens %}<span{% if mark %} class="{{ mark }}"{% endif %}>{{ token }}</span> {% endfor %}
</td></tr>
{% endfor %}
</table>
<p class="note">{{ part.caption }}</p>

""",
    "downloads": """<ul class="files">
{% for file in part.files %}
<li><a href="{{ target(file) }}" download="{{ file.name }}">{{ file.name }}</a>: {{ file.says }}</li>
{% endfor %}
</ul>
""",
    "code": """{% set dash_c %} <span>-c</span> {% endset %}
{% if part.note %}<p class="note">{{ part.note }}</p>{% endif %}
<pre>{{ part.text.split(" -c ") | join(dash_c) }}</pre>
""",
}
"""How a part of each kind is shown: ``part``, in a section of this ``title``."""
BODY = "<body>"
LIVE_LINE = """
<style>#live {{ margin: 0; max-width: none; padding: .45rem 1rem; font-size: .875rem; background: var(--panel, #8882);
 overflow-wrap: anywhere; }} @media print {{ #live {{ display: none; }} }}</style>
<p id="live" role="status" data-version="{version}" data-gone="{gone}">{words}</p>
"""
"""At the top of a page that follows a run: for ``Markup.format``."""
LIVE_START = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>fedlsg run</title>
<style>body { font: 1rem system-ui, sans-serif; }</style></head>
<body><main><p>The page is being made.</p></main>
<script>SCRIPT</script></body></html>
"""
"""Until the first page of a run is made."""
LIVE_ENTRY = """<!DOCTYPE html>
<meta charset="utf-8"><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url={url}">
<title>fedlsg run</title><p><a href="{url}">The page of this run, while it is going on</a></p>
"""
"""The file that leads a browser to it."""


def notebook_cell(rows: Iterable[tuple[str, str]], image: tuple[str, str, int] | None) -> str:
    """Facts, and an image as (URI, caption, CSS pixels), for the cell of a notebook. Text stays
    text.
    """
    from markupsafe import Markup

    facts = Markup("").join(Markup("<tr><th>{}</th><td>{}</td></tr>").format(*row) for row in rows)
    return str(Markup("<table>{}</table>{}").format(facts, _notebook_image(image)))


def _notebook_image(image: tuple[str, str, int] | None) -> str:
    from markupsafe import Markup

    shown = Markup('<img src="{}" alt="{}" style="width: {}px; max-width: 100%">')
    return shown.format(*image) if image else Markup("")


def notebook_table(words: Iterable[str], table: Table, image: tuple[str, str, int] | None) -> str:
    """Sentences, a table, and an image as in ``notebook_cell``, for the cell of a notebook. Text
    stays text.
    """
    from markupsafe import Markup

    said = Markup("").join(Markup("<p>{}</p>").format(one) for one in words)
    heads = Markup("").join(Markup("<th>{}</th>").format(name) for name in table.columns)
    rows = Markup("")
    for row in table.rows:
        cells = Markup("").join(
            Markup("<td><b>{}</b></td>" if at in row.best else "<td>{}</td>").format(cell)
            for at, cell in enumerate(row.cells)
        )
        rows += Markup("<tr>{}</tr>").format(cells)
    shown = Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(heads, rows)
    return str(said + shown + _notebook_image(image))
