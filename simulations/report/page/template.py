"""The one template of all pages: HTML is nowhere else.

Accessible: landmarks, one h1, tables with scoped headers, figures with their words, boxes that scroll by keyboard.
"""

import base64
from pathlib import PurePath

from simulations.report.page.parts import Download, Facts, Page, Picture
from simulations.report.page.style import CSS

SECTIONS = 3
"""Titled sections from which on a page has a list of them at its top."""
MANY = 7
"""Columns from which on a table may be wider than the text."""
KINDS = {".csv": "text/csv", ".json": "application/json", ".md": "text/markdown", ".toml": "application/toml"}

TEMPLATE = """<!DOCTYPE html>
{% macro facts(part) %}
<dl>
{% for name, words in part.rows %}
<dt>{{ name }}</dt><dd>{{ words }}</dd>
{% endfor %}
</dl>
{% endmacro %}
{% macro table(part, title) %}
<div class="scroll{% if part.columns | length >= many %} wide{% endif %}" role="group" tabindex="0"
 aria-label="{{ part.title or title or "table" }}"><table>
{% if part.title %}<caption>{{ part.title }}</caption>{% endif %}
<thead><tr>{% for name in part.columns %}<th scope="col"{% if loop.index0 in part.left %} class="left"{% endif %}>
{{- name }}</th>
{%- endfor %}</tr></thead>
<tbody>
{% for row in part.rows %}
{% if row.group and (loop.first or row.group != part.rows[loop.index0 - 1].group) %}
<tr class="group"><th scope="rowgroup" colspan="{{ part.columns | length }}">{{ row.group }}</th></tr>
{% endif %}
<tr{% if row.style %} class="{{ row.style }}"{% endif %}>
{% for cell in row.cells %}
{% if loop.first %}
<th scope="row"{% if loop.index0 in part.left %} class="left"{% endif %}>
{%- if row.colour %}<span class="dot" style="background: {{ row.colour }}"></span>{% endif -%}
{{ cell }}</th>
{% else %}
<td{% if loop.index0 in part.left %} class="left"{% endif %}>{{ cell }}</td>
{% endif %}
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
{% if part.note %}<p class="note">{{ part.note }}</p>{% endif %}
{% endmacro %}
{% macro tokens(part) %}
<table class="tokens">
{% for line in part.lines %}
<tr{% if line.first %} class="group"{% endif %}><th scope="row">{{ line.name }}</th><td>
{% for token, mark in line.tokens %}<span{% if mark %} class="{{ mark }}"{% endif %}>{{ token }}</span> {% endfor %}
</td></tr>
{% endfor %}
</table>
<p class="note">{{ part.caption }}</p>
{% endmacro %}
{% macro key(one) %}
<svg viewBox="0 0 30 14" aria-hidden="true" focusable="false">
{% if one.patch %}<rect x="4" y="1" width="22" height="12" fill="{{ one.colour }}"/>{% endif %}
{% if one.line %}<path d="M0 7H30" fill="none" stroke="{{ one.colour }}" stroke-width="2"
{%- if one.dashes %} stroke-dasharray="{{ one.dashes }}"{% endif %}/>{% endif %}
{% if one.marker %}<path d="{{ one.marker }}" transform="translate(15 7)" stroke="{{ one.colour }}" stroke-width="1.5"
 fill="{{ one.colour if one.filled else "#ffffff" }}"/>{% endif %}
</svg>
{% endmacro %}
{% macro keys(legend) %}
{% if legend %}
<ul class="keys">{% for one in legend %}<li>{{ key(one) }}{{ one.name }}</li>{% endfor %}</ul>
{% endif %}
{% endmacro %}
{% macro drawing(part) %}
<figure>
{{ keys(part.legend) }}
<div class="panels {{ "two" if part.columns > 1 and part.panels | length > 1 else "one" }}">
{% for panel in part.panels %}
<div><svg role="img" viewBox="0 0 {{ panel.size[0] }} {{ panel.size[1] }}"
 aria-label="{{ panel.title }}. {{ panel.words }}">
{{- panel.svg | safe }}</svg>
{{ keys(panel.legend) }}</div>
{% endfor %}
</div>
<figcaption>{{ part.caption }}</figcaption></figure>
{% endmacro %}
{% macro parts(section) %}
{% for part in section.parts %}
{% if part.kind == "text" %}
<p{% if part.style != "plain" %} class="{{ part.style }}"{% endif %}>{{ part.words }}</p>
{% elif part.kind == "facts" %}
{% if part.title %}<h3>{{ part.title }}</h3>{% endif %}
{{ facts(part) }}
{% elif part.kind == "table" %}
{{ table(part, section.title) }}
{% elif part.kind == "drawing" %}
{{ drawing(part) }}
{% elif part.kind == "picture" %}
<figure><div class="scroll" role="group" tabindex="0" aria-label="picture">
<img src="{{ part.uri }}" width="{{ part.width }}" alt="{{ part.caption }}"></div>
<figcaption>{{ part.caption }}</figcaption></figure>
{% elif part.kind == "tokens" %}
{{ tokens(part) }}
{% elif part.kind == "downloads" %}
<ul class="files">
{% for file in part.files %}
<li><a href="{{ target(file) }}" download="{{ file.name }}">{{ file.name }}</a>: {{ file.says }}</li>
{% endfor %}
</ul>
{% elif part.kind == "code" %}
{% if part.note %}<p class="note">{{ part.note }}</p>{% endif %}
<pre>{{ part.text }}</pre>
{% endif %}
{% endfor %}
{% endmacro %}
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ page.title }}</title>
<style>{{ css | safe }}</style>
</head>
<body>
<header>
{% if page.kind %}<p class="kind">{{ page.kind }}</p>{% endif %}
<h1>{{ page.title }}</h1>
<p class="lead">{{ page.lead }}</p>
{% if page.headline %}<p class="headline">{{ page.headline | replace(" %", "\u00a0%") }}</p>{% endif %}
{% for words in page.warnings %}
<p class="warning" role="note">{{ words }}</p>
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
{{ parts(section) }}
</details>
{% elif section.title %}
<section aria-labelledby="section-{{ loop.index }}"><h2 id="section-{{ loop.index }}">{{ section.title }}</h2>
{{ parts(section) }}
</section>
{% else %}
{{ parts(section) }}
{% endif %}
{% endfor %}
</main>
<footer>{% if page.kind %}Made by {{ page.kind }}. {% endif %}This file needs no other file and no network.</footer>
</body>
</html>
"""


def render(page: Page) -> str:
    """The page as HTML. Guarantee: text stays text, whatever it holds, and a browser requests nothing.

    Jinja escapes every value. Only the style sheet and the SVG of a panel, whose text matplotlib escaped, are inserted
    as they are.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE).render(page=page, css=CSS, listed=SECTIONS, many=MANY, target=target)


def target(file: Download) -> str:
    """Where the link of a file leads: to the data in the page, or to the file next to it."""
    if file.content is None:
        return file.name
    kind = KINDS.get(PurePath(file.name).suffix, "text/plain")
    return f"data:{kind};base64,{base64.b64encode(file.content).decode()}"


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
