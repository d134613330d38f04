"""The one template of all pages and its style sheet: HTML is nowhere else.

Accessible: landmarks, one h1, tables with scoped headers, figures with their words, boxes that scroll by keyboard. One
column, light and dark, a phone, and paper.
"""

from collections.abc import Iterable

from simulations.report.colours import TEXT, WHITE, declarations

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

RULES = """
* { box-sizing: border-box; }
body { font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: var(--ink);
  background: var(--paper); margin: 0; overflow-wrap: break-word; -webkit-text-size-adjust: 100%; }
header, main, footer { max-width: 48rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
footer { color: var(--dim); font-size: .875rem; padding-top: 1.5rem; padding-bottom: 3rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2.6rem 0 .8rem; }
p { margin: .7rem 0; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; border-radius: 2px; }
.kind { color: var(--dim); font-size: .875rem; margin: 0 0 .3rem; }
.lead { color: var(--dim); margin: 0; }
.headline { font-size: 1.2rem; line-height: 1.45; font-weight: 600; margin: 1.1rem 0; }
.warning { border-left: 4px solid var(--alarm); padding: .6rem 1rem; background: var(--alert); }
.note, figcaption, .files { color: var(--dim); font-size: .9rem; }
.verdict { font-weight: 600; }
nav ul, .files, .keys { list-style: none; padding: 0; margin: .8rem 0; display: flex; flex-wrap: wrap;
  gap: .3rem 1.2rem; }
nav { font-size: .9rem; }
.files { flex-direction: column; }
dl { display: grid; grid-template-columns: minmax(8rem, 11rem) 1fr; margin: .6rem 0;
  border-top: 1px solid var(--rule); }
dt, dd { margin: 0; padding: .45rem 0; border-bottom: 1px solid var(--rule); min-width: 0; overflow-wrap: anywhere; }
dt { color: var(--dim); padding-right: 1rem; }
.scroll { overflow-x: auto; margin: .9rem 0; background: linear-gradient(to right, var(--paper) 40%,
  transparent) 0 0 / 2rem
  100% no-repeat local, linear-gradient(to left, var(--paper) 40%, transparent) 100% 0 / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) 0 0 / .6rem 100% no-repeat, linear-gradient(to left,
  var(--shade),
  transparent) 100% 0 / .6rem 100% no-repeat; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; }
th, td { padding: .34rem .9rem .34rem 0; vertical-align: top; white-space: nowrap; text-align: right;
  border-bottom: 1px solid var(--rule); font-weight: 400; }
th:last-child, td:last-child { padding-right: .3rem; }
thead th { font-weight: 600; border-bottom: 2px solid var(--bar); }
.left, .group th { text-align: left; }
td.left { white-space: normal; min-width: 6rem; }
td.left:last-child { min-width: 15rem; }
tr.group th { border-bottom: 0; padding-top: 1rem; font-weight: 600; }
tr.reference > * { background: var(--panel); }
tr.own > * { font-weight: 600; }
tr.no-epsilon > * { color: var(--warn); }
tr.dim > * { color: var(--dim); }
tr.alert > * { color: var(--alarm); font-weight: 600; }
table.tokens { width: 100%; }
table.tokens th, table.tokens td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.tokens th { width: 8rem; color: var(--dim); }
.moved { border-bottom: 2px dotted var(--dim); }
.wrong { color: var(--alarm); text-decoration: line-through; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em;
  box-shadow: 0 0 0 1px #ffffff; }
figure { margin: 1.8rem 0; break-inside: avoid; }
figcaption { margin-top: .5rem; }
.panels { display: grid; gap: 1rem 1.2rem; }
.two { grid-template-columns: 1fr 1fr; }
[role=img] { display: block; width: 100%; height: auto; }
[role=img] * { stroke-linejoin: round; stroke-linecap: butt; }
.panels image { image-rendering: pixelated; }
.keys { font-size: .875rem; margin: 0 0 .7rem; }
.keys svg { width: 1.9rem; height: .9rem; vertical-align: -.1rem; margin-right: .4rem; overflow: visible; }
img { max-width: 100%; height: auto; display: block; background: #ffffff; }
code, pre { font: .86rem/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: var(--panel); padding: .8rem 1rem; margin: .6rem 0; white-space: pre-wrap;
  overflow-wrap: anywhere; }
summary { cursor: pointer; }
summary h2 { display: inline-block; margin: 1.6rem 0 .6rem .3rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
@media (min-width: 62rem) {
  .wide { margin-inline: calc((100% - min(100vw - 4rem, 74rem)) / 2); }
  .wide table { margin: 0 auto; }
}
@media (min-width: 40.01rem) {
  details dl { grid-template-columns: 11.5rem 1fr 11.5rem 1fr; font-size: .95rem; }
  details dd { padding-right: 1rem; }
}
@media (max-width: 40rem) {
  header { padding-top: 1.4rem; }
  header, main, footer { padding-left: 1rem; padding-right: 1rem; }
  h1 { font-size: 1.45rem; }
  .headline { font-size: 1.1rem; }
  .one { --words: 1.15; }
  .two { grid-template-columns: 1fr; }
  img { max-width: none; }
  dl { grid-template-columns: 1fr; }
  dt { border-bottom: 0; padding-bottom: 0; }
  dd { padding-top: .1rem; }
  table.tokens th { width: 6rem; }
}
@page { margin: 1.6cm; }
@media print {
  html { font-size: 10pt; }
  header, main, footer { max-width: none; padding: 0; }
  nav { display: none; }
  details::details-content { content-visibility: visible; height: auto; }
  summary { list-style: none; }
  h2, h3, caption, thead, .keys { break-after: avoid; }
  tr, .warning, dt, dd { break-inside: avoid; }
  .scroll { overflow: visible; background: none; }
  table { font-size: 7.5pt; }
  th, td { padding-right: .5rem; white-space: normal; }
  details dt, details dd { padding: .15rem .5rem .15rem 0; }
  .wide { margin-inline: 0; }
  .dot { print-color-adjust: exact; }
}
"""
CSS = (
    f":root {{ color-scheme: light dark; {declarations(False)} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {declarations(True)} }} }}\n"
    f".panels, .keys {{ background: {WHITE}; color: {TEXT['ink'][False]}; }}{RULES}"
)


def notebook_cell(rows: Iterable[tuple[str, str]], image: tuple[str, str, int] | None) -> str:
    """Facts, and an image as (URI, caption, CSS pixels), for the cell of a notebook. Text stays text."""
    from markupsafe import Markup

    facts = Markup("").join(Markup("<tr><th>{}</th><td>{}</td></tr>").format(*row) for row in rows)
    shown = Markup('<img src="{}" alt="{}" style="width: {}px; max-width: 100%">').format(*image) if image else ""
    return str(Markup("<table>{}</table>{}").format(facts, shown))
