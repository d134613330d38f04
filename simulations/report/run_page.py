"""report.html of one run, written at its end: what it reached, what it cost, and every setting."""

import logging
import shlex
from dataclasses import fields

from simulations.report.course import course
from simulations.report.facts import HELD_OUT, facts, privacy
from simulations.report.figure import drawn, svg
from simulations.report.html import render
from simulations.report.terminal import empty_line, human_bytes, percent, privacy_line, transfer_line
from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.results import Result, read_run
from simulations.rundir.rundir import RunDir
from simulations.settings.settings import Settings
from simulations.workloads.chance import beats_chance

log = logging.getLogger(__name__)

TEMPLATE = """{% extends "layout" %}
{% block content %}
<h1>{{ title }}</h1>
<p class="lead">{{ lead }}</p>
{% for text in warnings %}
<p class="warning">{{ text }}</p>
{% endfor %}
<table class="facts">
{% for name, text in outcome.items() %}
<tr><td>{{ name }}</td><td>{{ text }}</td></tr>
{% endfor %}
</table>
{% if figure %}
<figure><img src="{{ figure }}" alt="accuracy, epsilon, bytes and clients over rounds">
<figcaption>Over rounds. Dotted: chance.</figcaption></figure>
{% endif %}
{% if rejections %}
<h2>Rejected payloads</h2>
<table class="facts">
{% for round, text in rejections %}
<tr><td>round {{ round }}</td><td>{{ text }}</td></tr>
{% endfor %}
</table>
{% endif %}
<h2>What epsilon means here</h2>
{% for text in privacy %}
<p>{{ text }}</p>
{% endfor %}
<h2>How it was made</h2>
<table class="facts">
{% for name, text in facts.items() %}
<tr><td>{{ name }}</td><td>{{ text }}</td></tr>
{% endfor %}
</table>
<p class="note">The same settings again:</p>
<pre>{{ command }}</pre>
<h2>Settings</h2>
<table class="facts">
{% for name, value in settings.items() %}
<tr><td>{{ name }}</td><td>{{ value }}</td></tr>
{% endfor %}
</table>
{% endblock %}
"""

PLACES = frozenset({"run_dir", "data_dir"})
"""Settings that name folders of one machine."""


def write_run_page(run: RunDir) -> None:
    """Write report.html into a run directory.

    A report that cannot be made is logged and costs nothing else: the run and its numbers are already on disk, and
    ``fedlsg report RUN`` makes it later.
    """
    try:
        text = run_page(read_run(run.path))
        write_atomically(run.path / "report.html", text.encode())
    except Exception:
        log.exception("no report.html; try again with: fedlsg report %s", run.path)


def run_page(result: Result) -> str:
    """The page of one run, finished or not."""
    settings = {name: value for name, value in result.settings.items() if value is not None and name not in PLACES}
    chance = None if result.chance is None else result.chance.level
    figure = svg(drawn(lambda: course(result.rows, chance))) if result.rows else ""
    return render(
        TEMPLATE,
        {
            "title": f"{result.settings['workload']} with {result.method}, seed {result.settings['seed']}",
            "lead": result.name,
            "warnings": _warnings(result),
            "outcome": _outcome(result),
            "figure": figure,
            "rejections": [(row.round, row.reasons) for row in result.rows if row.rejected],
            "privacy": privacy([result]),
            "facts": facts([result]) if result.done else {"rounds": str(len(result.rows))},
            "command": command(result),
            "settings": settings,
        },
    )


def command(result: Result) -> str:
    """The ``fedlsg run`` that has these settings, without the folders of this machine."""
    defaults = {f.name: f.default for f in fields(Settings)}
    given = {
        name: value
        for name, value in result.settings.items()
        if value != defaults[name] and name not in PLACES and name != "workload"
    }
    words = ["fedlsg", "run", str(result.settings["workload"])]
    for name, value in given.items():
        words += ["-c", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)


def _warnings(result: Result) -> list[str]:
    found = []
    if not result.done:
        found.append(f"{result.status}: {result.reason or 'this run is not finished; continue it with fedlsg resume'}")
    elif not result.private:
        found.append(privacy_line(dict(result.summary)))
    measured = [] if result.accuracy is None else [result.accuracy]
    if result.done and measured and result.chance is not None and not beats_chance(measured, result.chance):
        found.append("The accuracy is not above chance by three standard errors.")
    if result.held_out:
        found.append(HELD_OUT)
    if result.done and result.reason:
        found.append(f"stopped early: {result.reason}")
    return found


def _transfer(result: Result) -> dict[str, str]:
    """Seconds on the link that was asked for, else on the named ones; nothing for runs that did not count them."""
    text = transfer_line(result.summary) if result.transfer is None else f"{result.transfer:.3g} s on {result.link}"
    return {"transfer": text} if text else {}


def _outcome(result: Result) -> dict[str, str]:
    if not result.done:
        return {"test accuracy so far": percent(result.accuracy), "rounds": str(len(result.rows))}
    summary = result.summary
    saved = "" if result.saved is None else f" ({result.saved:.1f} times fewer)"
    return {
        "test accuracy": f"{percent(result.accuracy)}, loss {float(summary['loss']):.3f}",
        "privacy": privacy_line(dict(summary)),
        "uplink": f"{human_bytes(summary['uplink_bytes'])} of payload; dense updates would have taken "
        f"{human_bytes(summary['uplink_bytes_dense'])}{saved}",
        "downlink": human_bytes(summary["downlink_bytes"]),
        **_transfer(result),
        **({"empty rounds": empty} if (empty := empty_line(summary)) else {}),
        "time": f"{summary['wall_seconds']:.1f} s",
    }
