"""membership.json and membership.html: rates beside guessing and beside what the claim allows, and what was granted."""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlsg.attacks.membership.roc import LOW_RATES, Roc
from simulations.attack.membership.findings import Report, facts, granted, tables, verdict
from simulations.attack.membership.measure import GRID
from simulations.inspection.output import finite
from simulations.report.figure import drawn, svg
from simulations.report.html import render
from simulations.rundir.files.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = {"loss threshold": ("#E69F00", "-"), "LiRA offline": ("#56B4E9", "-"), "LiRA online": ("#0072B2", "-")}
LIMITS = "An attack that fails proves nothing: a stronger one may exist."
BOUNDS = (
    "The bounds hold for every attacker, also one that sees all payloads of all rounds; they follow from the claim and "
    "were not measured."
)
CAPTION = (
    "True positives against false positives, both logarithmic, all models in turn. Left of the first point there are "
    "too few non-members to tell. Dotted: guessing."
)
DASHED = "Dashed: what the claim allows; no attacker is above."

TEMPLATE = """{% extends "layout" %}
{% macro rows(table) %}
<div class="scroll"><table>
<tr>{% for name in table.columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in table.rows %}
<tr{% if row[0] in marked %} class="probe"{% endif %}>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
<p class="note">{{ table.note }}</p>
{% endmacro %}
{% block content %}
<h1>{{ title }}</h1>
<p class="lead">{{ lead }}</p>
<p><strong>{{ verdict }}</strong></p>
<p class="note">{{ facts }}</p>
<figure><img src="{{ picture }}" alt="true positive rates against false positive rates"><figcaption>{{ caption }}
</figcaption></figure>
{% for table in tables %}
<h2>{{ table.title }}</h2>
{{ rows(table) }}
{% endfor %}
<h2>What the attacker is granted</h2>
<table class="facts">
{% for name, text in granted.items() %}
<tr><td>{{ name }}</td><td>{{ text }}</td></tr>
{% endfor %}
</table>
<p class="note">{{ limits }}</p>
{% endblock %}
"""


def picture(report: Report) -> "Figure":
    """The ROC curves, logarithmic on both axes."""
    return drawn(lambda: _picture(report))


def _picture(report: Report) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    shown = np.isfinite(report.found[0].curve)
    start = float(GRID[shown].min(initial=1.0))
    rates = GRID[start <= GRID]
    axes.plot(rates, rates, color="#888888", linestyle=":", linewidth=1.2, label="guessing")
    for one in report.found:
        colour, dashes = LOOKS[one.attack]
        heights = np.where(one.curve > 0, one.curve, np.nan)
        axes.plot(GRID, heights, color=colour, linestyle=dashes, label=one.attack)
    for limit, dashes in zip(report.limits, ("--", "-."), strict=False):
        axes.plot(rates, [limit.bound(float(x)) for x in rates], color="#000000", linestyle=dashes, linewidth=1.2,
                  label=textwrap.fill(limit.name, 28))  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(start, 1)
    axes.set_ylim(start, 1.3)
    per_cent = FuncFormatter(lambda value, _: f"{100 * value:g} %")
    axes.xaxis.set_major_formatter(per_cent)
    axes.yaxis.set_major_formatter(per_cent)
    axes.set_xlabel("false positive rate: non-members called members")
    axes.set_ylabel("true positive rate: members found")
    figure.legend(loc="outside right upper")
    return figure


def write(folder: Path, report: Report, lead: str) -> None:
    """membership.json and membership.html, each replaced whole."""
    write_atomically(folder / "membership.json", (json.dumps(finite(numbers(report)), indent=1) + "\n").encode())
    write_atomically(folder / "membership.html", page(report, lead).encode())


def page(report: Report, lead: str) -> str:
    """membership.html: one file that asks nobody for anything. It shows no example."""
    values: Mapping[str, Any] = {
        "title": "Who was in the training set",
        "lead": lead,
        "verdict": verdict(report),
        "facts": facts(report),
        "picture": svg(picture(report)),
        "caption": f"{CAPTION} {DASHED}" if report.limits else CAPTION,
        "tables": tables(report),
        "marked": ("guessing",),
        "granted": granted(report),
        "limits": f"{LIMITS} {BOUNDS}" if report.limits else LIMITS,
    }
    return render(TEMPLATE, values)


def numbers(report: Report) -> dict[str, Any]:
    """Everything of membership.json."""
    s, models = report.settings, report.models
    return {
        "workload": s.workload,
        "model": s.model,
        "method": s.method,
        "public_seed": s.seed,
        "seed": report.seed,
        "shadows": len(models.inside) - 1,
        "candidates": len(models.rows),
        "members_of_target": int(models.inside[0].sum()),
        "test_accuracy": list(models.accuracy),
        "claim": None if report.claim is None else asdict(report.claim),
        "attacks": {
            one.attack: {
                "right_answers": asdict(one.success),
                "target": _roc(one.target),
                "in_turn": _roc(one.in_turn),
                "curve": [[x, y] for x, y in zip(GRID.tolist(), one.curve.tolist(), strict=True) if y == y],
            }
            for one in report.found
        },
        "guessing": {"right_answers": 0.5, "auc": 0.5, "tpr": {f"{rate:g}": rate for rate in LOW_RATES}},
        "bounds": {
            one.name: {"auc": one.auc, "tpr": {f"{rate:g}": one.bound(rate) for rate in LOW_RATES}}
            for one in report.limits
        },
        "own_model_loss_threshold": None
        if report.own is None
        else {"right_answers": asdict(report.own.success), "examples": report.own.examples, **_roc(report.own.roc)},
        "one_round": [asdict(one) for one in report.rounds],
        "granted": granted(report),
        "verdict": verdict(report),
        "seconds": round(report.seconds, 1),
    }


def _roc(found: Roc) -> dict[str, Any]:
    return {"auc": asdict(found.auc), "tpr": {f"{rate:g}": asdict(tpr) for rate, tpr in found.tpr.items()}}
