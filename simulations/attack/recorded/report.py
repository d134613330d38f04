"""attack.json and attack.html: verdict, table, pictures or texts, what was granted. Both hold private examples."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedlsg.attacks.observation import Observation, ThreatModel
from simulations.attack.recorded.observations import Record
from simulations.attack.recorded.target import FPR
from simulations.inspection.output import finite
from simulations.report.html import render
from simulations.rundir.files.atomic import write_atomically

WARNING = (
    "This page shows training examples of the clients, the originals and what was recovered of them: made in a "
    "simulation, for judging a method. Do not publish it for data that are not public."
)

TEMPLATE = """{% extends "layout" %}
{% block content %}
<style>.texts td { white-space: normal } .texts td:nth-child(2) { text-align: left }
.texts .moved { color: #555; border-bottom: 1px dotted #555 }
.texts .wrong { color: #b00020; text-decoration: line-through }</style>
<h1>{{ title }}</h1>
<p class="lead">{{ lead }}</p>
<p class="warning">{{ warning }}</p>
{% for run in runs %}
<h2>{{ run.label }}</h2>
<p><strong>{{ run.verdict }}</strong></p>
<p class="note">{{ run.facts }}</p>
<div class="scroll"><table>
<tr>{% for name in run.columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in run.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% if run.picture %}
<figure><img src="{{ run.picture }}" alt="{{ run.label }}: originals, blind guesses and what was recovered">
<figcaption>{{ run.caption }}</figcaption></figure>
{% endif %}
{% if run.texts %}
<table class="texts">
{% for line in run.texts %}
<tr{% if line.first %} class="section"{% endif %}><td>{{ line.name }}</td><td>
{% for token, mark in line.tokens %}<span class="{{ mark }}">{{ token }}</span> {% endfor %}</td></tr>
{% endfor %}
</table>
<p class="note">{{ run.caption }}</p>
{% endif %}
{% for name, why in run.refused.items() %}
<p class="note">{{ name }} does not apply: {{ why }}</p>
{% endfor %}
{% endfor %}
<h2>What the adversary is granted</h2>
<table class="facts">
{% for name, text in granted.items() %}
<tr><td>{{ name }}</td><td>{{ text }}</td></tr>
{% endfor %}
</table>
<p class="note">{{ limits }}</p>
{% endblock %}
"""

LIMITS = "An attack that fails proves nothing: a stronger one may exist, and only the epsilon bounds them all."


@dataclass(frozen=True, kw_only=True, eq=False)
class TextLine:
    """A line of tokens, each with what is thought of it: "", "moved" or "wrong". first: a new text begins."""

    name: str
    tokens: tuple[tuple[str, str], ...]
    first: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """One run on the page, in the terminal, and in attack.json (``numbers``).

    columns, rows: the table. picture: a PNG; texts: lines; caption: below either. granted: assumptions beside the
    threat model's; limits: what a reader should know about the numbers.
    """

    label: str
    verdict: str
    facts: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: Mapping[str, Any]
    refused: Mapping[str, str]
    granted: Mapping[str, str]
    limits: str
    caption: str
    picture: bytes | None = None
    texts: tuple[TextLine, ...] = field(default=())


def write(folder: Path, sections: Sequence[Section], threat: ThreatModel, *, lead: str) -> None:
    """attack.json and attack.html, each replaced whole."""
    assumed = granted(threat, sections)
    numbers = {
        "warning": WARNING,
        "threat_model": asdict(threat),
        "granted": assumed,
        "runs": [
            {
                "label": one.label,
                "verdict": one.verdict,
                "facts": one.facts,
                **one.numbers,
                "not_applicable": dict(one.refused),
            }
            for one in sections
        ],
    }
    write_atomically(folder / "attack.json", (json.dumps(finite(numbers), indent=1) + "\n").encode())
    write_atomically(folder / "attack.html", page(sections, assumed, lead).encode())


def page(sections: Sequence[Section], assumed: Mapping[str, str], lead: str) -> str:
    """attack.html: one file that asks nobody for anything."""
    runs = [
        vars(one) | {"picture": None if one.picture is None else _data_uri(one.picture)}  # the figure lies in the page
        for one in sections
    ]
    limits = " ".join(dict.fromkeys([LIMITS, *(one.limits for one in sections)]))
    return render(
        TEMPLATE,
        {
            "title": "What the updates give away",
            "lead": lead,
            "warning": WARNING,
            "granted": assumed,
            "limits": limits,
            "runs": runs,
        },
    )


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def granted(threat: ThreatModel, sections: Sequence[Section]) -> dict[str, str]:
    """The assumptions in words."""
    common = {
        "sees": "every client's payload as it was sent" if threat.view == "client" else "the sum of all payloads",
        "knows": "architecture, weights of the round, carriers, mask, clip norm, sigma, Poisson rate, local optimizer",
        "labels": "of the batch, without an order" if threat.labels == "known" else "unknown: searched for",
        "number of examples": "of the batch" if threat.examples == "known" else "unknown: the declared expected batch",
    }
    for one in sections:
        common.update(one.granted)
    return common


def privacy_facts(record: Record, seen: Observation, membership: float | None) -> list[str]:
    """Workload, sigma, epsilon and the membership bound, each a part of a sentence."""
    s = record.base.settings
    parts = [f"{s.workload}, model {s.model}, {seen.local.steps} local step(s)"]
    if seen.mechanism.private:
        sigma = seen.noise_std / seen.mechanism.sensitivity(len(seen.frame.blocks))
        of = "per payload" if len(seen.clients) == 1 else f"of the sum of {len(seen.clients)} payloads"
        parts.append(f"sigma {sigma:.3g} {of}, epsilon {epsilon_of(record)} at delta {s.delta:g}")
    else:
        parts.append(f"mechanism {seen.mechanism.kind!r}: no epsilon")
    if s.reproducible:
        parts.append("NOT PRIVATE: its noise can be drawn again (reproducible)")
    if membership is not None:
        parts.append(
            f"whether an example took part in one round is told at {100 * FPR:g} % false alarms with a power of "
            f"{100 * membership:.1f} % (closed form, for an example that is clipped)"
        )
    return parts


def epsilon_of(record: Record) -> str:
    """What the run's summary reports."""
    try:
        value = json.loads(record.run.summary.read_text())["epsilon_max"]
        return value if isinstance(value, str) else f"{value:.3f}"
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown (the run has no summary that can be read)"
