"""report.html of many runs: the table, the figures, what failed, and what the numbers do and do not mean."""

from collections.abc import Sequence
from typing import Any

from simulations.compare import bytes_axis
from simulations.compare.plots import figures, looks_of
from simulations.compare.table import COLUMNS, PROBE, Line, notes, shown, unfinished, variants
from simulations.compare.view import PLAIN, View
from simulations.report.facts import HELD_OUT, facts, privacy
from simulations.report.figure import svg
from simulations.report.html import render
from simulations.rundir.results import Result

CAPTIONS = {
    "accuracy-epsilon": "Test accuracy against epsilon; bars are one standard deviation over "
    "seeds. Dotted, if near: chance. Dashed lines across: methods without privacy.",
    "accuracy-bytes": "Accuracy against everything that all clients sent in the whole run; bars are one standard "
    "deviation over seeds. Filled: the largest epsilon, or none.",
    "accuracy-total-bytes": "Accuracy against the payload bytes of all clients in the whole run: uplink, and uplink "
    "plus downlink. A row holds one epsilon, delta and trust. Bars are one standard deviation over seeds. Filled: "
    "private; hollow: NOT private.",
    "learning-curves": "Accuracy over rounds: mean over seeds; the band reaches from the worst to the best seed.",
}

TEMPLATE = """{% extends "layout" %}
{% block content %}
<h1>{{ title }}</h1>
<p class="lead">{{ lead }}</p>
{% for text in warnings %}
<p class="warning">{{ text }}</p>
{% endfor %}
<div class="scroll"><table>
<tr>{% for key in keys %}<th>{{ columns[key] }}</th>{% endfor %}</tr>
{% for row in rows %}
{% if row.section %}
<tr class="section"><td colspan="{{ keys | length }}">{{ row.section }}</td></tr>
{% endif %}
<tr class="{{ row.kind }}">{% for key in keys %}<td>{% if loop.first -%}
<span class="dot" style="background: {{ row.colour }}"></span>{% endif %}{{ row.cells[key] }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% for text in notes %}
<p class="note">{{ text }}.</p>
{% endfor %}
{% if variants %}
<table class="facts">
{% for name, text in variants.items() %}
<tr><td>{{ name }}</td><td>{{ text }}</td></tr>
{% endfor %}
</table>
{% endif %}
{% for panel in panels %}
<h2>Accuracy against bytes: {{ panel.title }}</h2>
<div class="scroll"><table>
<tr>{% for key in panel.rows[0] %}<th>{{ bytes_columns[key] }}</th>{% endfor %}</tr>
{% for row in panel.rows %}
<tr>{% for value in row.values() %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% if loop.last %}
<p class="note">{{ bytes_note }}.</p>
{% endif %}
{% endfor %}
{% for figure in figures %}
<figure><img src="{{ figure.uri }}" alt="{{ figure.caption }}"><figcaption>{{ figure.caption }}</figcaption></figure>
{% endfor %}
<h2>What epsilon means here</h2>
{% for text in privacy %}
<p>{{ text }}</p>
{% endfor %}
{% if left %}
<h2>Not in the means</h2>
<table class="facts">
{% for name, text in left.items() %}
<tr><td>{{ name }}</td><td>{{ text }}</td></tr>
{% endfor %}
</table>
{% endif %}
<h2>How it was made</h2>
<table class="facts">
{% for name, text in facts.items() %}
<tr><td>{{ name }}</td><td>{{ text }}</td></tr>
{% endfor %}
</table>
{% if command %}
<pre>{{ command }}</pre>
{% endif %}
{% if grid %}
<p class="note">The grid; <code>fedlsg compare --grid grid.toml</code> runs it again.</p>
<pre>{{ grid }}</pre>
{% endif %}
{% endblock %}
"""


def page(
    title: str, results: Sequence[Result], table: Sequence[Line], *, command: str = "", grid: str = "",
    view: View = PLAIN,
) -> str:  # fmt: skip
    """The page of a comparison. ``command`` made it; ``grid`` is the text of its grid.toml."""
    own = shown(table)
    keys = list(own[0]) if own else ["method"]
    done = [run for run in results if run.done]
    drawn = {name: svg(figure) for name, figure in figures(table, view).items()}
    return render(
        TEMPLATE,
        {
            "title": title,
            "lead": lead(results, table),
            "warnings": warnings(table) + ([HELD_OUT] if any(run.held_out for run in results) else []),
            "keys": keys,
            "columns": COLUMNS,
            "rows": _rows(table, own),
            "notes": notes(table),
            "variants": variants(table),
            "bytes_columns": bytes_axis.COLUMNS,
            "bytes_note": bytes_axis.NOTE,
            "panels": [
                {"title": panel.title, "rows": bytes_axis.cells(panel)}
                for panel in (bytes_axis.panels(table) if view.bytes else [])
            ],
            "figures": [{"uri": uri, "caption": CAPTIONS[name]} for name, uri in drawn.items()],
            "privacy": privacy(results),
            "left": unfinished(table),
            "facts": facts(done),
            "command": command,
            "grid": grid,
        },
    )


def lead(results: Sequence[Result], table: Sequence[Line]) -> str:
    """How much there is."""
    done = sum(run.done for run in results)
    seeds = sorted({run.settings["seed"] for run in results if "seed" in run.settings})
    shown_seeds = ", ".join(map(str, seeds)) if len(seeds) <= 12 else f"{seeds[0]} to {seeds[-1]}"
    return f"{done} of {len(results)} runs finished, {len(table)} settings, seeds {shown_seeds or '--'}."


def warnings(table: Sequence[Line]) -> list[str]:
    """What must not be overlooked: rows without privacy, rows at chance, a comparison without the linear probe."""
    found = []
    open_lines = list(dict.fromkeys(line.name for line in table if line.private is False))
    if open_lines:
        found.append(f"NOT PRIVATE: {', '.join(open_lines)}. Their accuracies bought no privacy.")
    lost = [
        line.name if line.epsilon_target is None else f"{line.name} at epsilon {line.epsilon_target:g}"
        for line in table
        if line.beats_chance is False
    ]
    if lost:
        found.append(f"Not above chance by three standard errors: {', '.join(lost)}.")
    private = [line for line in table if line.private]
    if private and not any(line.method == PROBE for line in private):
        found.append(
            "The private linear probe is missing. A private method that does not beat it has not earned its noise: "
            f"add {PROBE} to the methods."
        )
    return found


def _rows(table: Sequence[Line], cells: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    looks, rows = looks_of(table), []
    before: object = object()
    for line, own in zip(table, cells, strict=True):
        target = line.epsilon_target
        title = "no epsilon target" if target is None else f"epsilon {target:g}"
        kind = "open" if line.private is False else "probe" if line.method == PROBE else ""
        rows.append(
            {
                "section": title if target != before else "",
                "kind": kind,
                "colour": looks[line.name][0],
                "cells": own,
            }
        )
        before = target
    return rows
