"""Files of an inspection: inspection.json, a CSV for each table, a PNG for each figure, inspection.html."""

import base64
import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulations.inspection.clips import ClipRow
from simulations.inspection.figures import PANELS, figures, spread
from simulations.inspection.measure import SOURCES, Inspection
from simulations.inspection.subject import Subject
from simulations.report.figure import png
from simulations.report.html import render
from simulations.rundir.files.atomic import write_atomically

WARNING = (
    "NOT PRIVATE: made from un-noised gradients of the training data, in a simulation. No epsilon covers these numbers "
    "and pictures, that of the run does not either; they must not leave the simulation."
)
PRINTED = 21
"""Examples whose clip factors are printed, as many as in 002 Listing 1."""

CAPTIONS = {
    "stable-rank": "Stable rank of each layer's batch gradient, ||dW||_F^2 / ||dW||_2^2 (001 Fig. 2).",
    "residual": "What carriers of rank r lose of the batch gradient, ||dW - P(dW)||_F / ||dW||_F (001 Fig. 3). "
    + "; ".join(f"{name}: {text}" for name, text in SOURCES.items())
    + ".",
    "clipping": "Norms of single examples' gradients, and the share that the clip shortens (002 Listing 1).",
    "energy": "Energy of the batch gradient in the rows (out units) and columns (in units) that LSG keeps: of most "
    "importance (top), of least (bottom), or at random (mean over draws). Above grey: the choice helps.",
    "intensity": "Absolute values of a weight and of its batch gradient (000 Fig. 1). A large matrix shows the largest "
    "entry of each tile.",
}

TEMPLATE = """{% extends "layout" %}
{% block content %}
<h1>{{ title }}</h1>
<p class="lead">{{ lead }}</p>
<p class="warning">{{ warning }}</p>
<h2>Clip factors of the first examples</h2>
{% for name, factors in printed.items() %}
<p class="note">{{ name }}</p>
<pre>{{ factors }}</pre>
{% endfor %}
{% for figure in figures %}
<figure><img src="{{ figure.uri }}" alt="{{ figure.name }}"><figcaption>{{ figure.caption }}</figcaption></figure>
{% endfor %}
<h2>Share of an example's squared length</h2>
<table>
<tr><th>parameter</th><th>share</th></tr>
{% for name, share in shares.items() %}
<tr><td>{{ name }}</td><td>{{ "%.3f" | format(share) }}</td></tr>
{% endfor %}
</table>
{% endblock %}
"""


def folder(subject: Subject, out: str | None) -> Path:
    """Where the files go: ``out``, or ``inspection`` in the run, or ``inspection-<workload>-<method>`` here.

    Raises ValueError for a folder that a run lives in, or one with other files in it.
    """
    s = subject.base.settings
    if out is not None:
        path = Path(out).expanduser().resolve()
    elif subject.run is not None:
        path = subject.run / "inspection"
    else:
        path = Path.cwd() / f"inspection-{s.workload}-{s.method}"
    allowed = subject.run is None or path == subject.run / "inspection" or not path.is_relative_to(subject.run)
    if not allowed or (path / "config.toml").exists():
        raise ValueError(f"{path} belongs to a run; choose another --out, or leave it out for inspection/ in the run")
    if path.is_file() or (path.is_dir() and any(path.iterdir()) and not (path / "inspection.json").exists()):
        raise ValueError(f"{path} holds other files; choose another --out")
    return path


def write(subject: Subject, found: Inspection, path: Path, layers: Sequence[str]) -> list[str]:
    """Write everything and return the file names. ``layers`` have an intensity map; none given: some, evenly spread."""
    path.mkdir(parents=True, exist_ok=True)
    maps = [resolve_layer(subject, name) for name in layers] or spread(subject.layers, PANELS)
    images = {name: png(figure) for name, figure in figures(found, subject, maps).items()}
    for stale in path.glob("intensity-*.png"):
        stale.unlink()
    files = {f"{name}.png": image for name, image in images.items()}
    files |= {f"{name}.csv": as_csv(rows).encode() for name, rows in tables(found).items()}
    files["inspection.html"] = page(subject, found, images).encode()
    files["inspection.json"] = (json.dumps(finite(numbers(subject, found)), indent=1) + "\n").encode()
    for name, content in files.items():
        write_atomically(path / name, content)
    return list(files)


def resolve_layer(subject: Subject, name: str) -> str:
    """The parameter of a layer's name, with or without ``.weight``. Raises ValueError for an unknown one."""
    for candidate in (name, f"{name}.weight"):
        if candidate in subject.layers:
            return candidate
    raise ValueError(f"unknown layer {name!r}; known: {', '.join(subject.layers)}")


def tables(found: Inspection) -> dict[str, list[dict[str, Any]]]:
    """Rows of every table by its name."""
    layers = [{**asdict(row), "shape": f"{row.shape[0]}x{row.shape[1]}"} for row in found.layers]
    return {
        "layers": layers,
        "residuals": [asdict(row) for row in found.residuals],
        "energy": [asdict(row) for row in found.energies],
        "clipping": [clip_numbers("the run's own", found.own), *(clip_numbers(r.choice, r) for r in found.clips)],
    }


def clip_numbers(name: str, row: ClipRow) -> dict[str, Any]:
    """One line of the table of clips."""
    measured = row.clipping
    return {
        "kept_units": name,
        "sparsity": row.sparsity,
        "kept_coordinates": row.kept,
        "clipped": measured.clipped,
        "mean_factor": measured.mean_factor,
        "dropped": measured.dropped,
        **{f"norm_q{level:g}": value for level, value in measured.norms.items()},
    }


def numbers(subject: Subject, found: Inspection) -> dict[str, Any]:
    """Everything of inspection.json."""
    s, mechanism = subject.base.settings, subject.base.method.mechanism
    return {
        "private": False,
        "warning": WARNING,
        "workload": s.workload,
        "model": s.model,
        "method": s.method,
        "seed": s.seed,
        "rounds_done": subject.state.round,
        "updates": subject.state.updates,
        "examples": found.examples,
        "clip": mechanism.clip if mechanism.clips else "none",
        "clip_norm": mechanism.clip_norm if mechanism.clips else None,
        "sources": SOURCES,
        **tables(found),
        "squared_length_shares": dict(found.own.shares),
        "clip_factors": {name: list(factors) for name, factors in printed(found).items()},
    }


def printed(found: Inspection) -> dict[str, tuple[float, ...]]:
    """Clip factors of the first examples by mask, as 002 Listing 1 prints them."""
    dense = next((row for row in found.clips if row.choice == "all"), None)
    rows = {} if dense is None else {"nothing frozen": dense}
    rows[f"the run's own mask ({found.own.choice}, p = {found.own.sparsity:g})"] = found.own
    return {name: row.clipping.factors[:PRINTED] for name, row in rows.items()}


def lead(subject: Subject, found: Inspection) -> str:
    """What was looked at, in one line."""
    s = subject.base.settings
    moment = "at its initial weights" if subject.state.updates == 0 else f"after round {subject.state.round}"
    return f"{s.workload} with {s.method}, model {s.model}, seed {s.seed}, {moment}; {found.examples} training examples"


def page(subject: Subject, found: Inspection, images: Mapping[str, bytes]) -> str:
    """inspection.html: one file that needs no other."""
    return render(
        TEMPLATE,
        {
            "title": "Gradients as the papers show them",
            "lead": lead(subject, found),
            "warning": WARNING,
            "printed": {
                name: ", ".join(f"{factor:.4f}" for factor in factors) for name, factors in printed(found).items()
            },
            "figures": [
                {
                    "name": name,
                    "caption": CAPTIONS["intensity" if name.startswith("intensity-") else name],
                    "uri": "data:image/png;base64," + base64.b64encode(image).decode(),
                }
                for name, image in images.items()
            ],
            "shares": dict(found.own.shares),
        },
    )


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a header; NaN as an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows([{key: "" if _nan(value) else value for key, value in row.items()} for row in rows])
    return text.getvalue()


def finite(value: Any) -> Any:
    """The same with null for NaN and infinity, so that any JSON reader takes it."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
