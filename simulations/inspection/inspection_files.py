"""Files of an inspection: inspection.json, a CSV for each table, a PNG for each figure,
inspection.html.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedlsg.simulations.inspection import Costs, Subject
from fedlsg.simulations.inspection.energy import meanings
from fedlsg.simulations.inspection.figures import PANELS, figures, spread
from fedlsg.simulations.inspection.inspection_tables import (
    MEANING,
    masked_tables,
    rows_of,
    share_table,
    sources_words,
    summary_table,
)
from fedlsg.simulations.inspection.measure import SOURCES, Inspection
from fedlsg.simulations.report.pages.figure import interactive, photo, png
from fedlsg.simulations.report.pages.page import (
    Code,
    Drawing,
    Page,
    Part,
    Picture,
    Section,
    Text,
    data_section,
    download,
    facts_of,
    json_text,
    sections,
)
from fedlsg.simulations.report.pages.table import csv_of
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.report.terminals.terminal import write_private
from fedlsg.simulations.report.words import percent
from fedlsg.simulations.storage.atomic_files import check_writable, writing_to

WARNING = (
    "NOT PRIVATE: made from gradients of the training data without noise, in a simulation. No "
    "epsilon covers these numbers and pictures, not even that of the run. They must not leave the "
    "simulation."
)
FACTORS = "Clip factors of the first examples"
SHARES = "Share of each parameter in the squared length of an example's gradient."
PRINTED = 21
"""Examples whose clip factors are shown, as many as in Ito et al. 2024, Listing 1."""

RATIOS = "What freezing a random share p of the coordinates does in one step."
NOISE_RATIO = (
    "Noise: its length, over that without a mask; the line is sqrt(1 - p) (Zhu and Blaschko 2023, "
    "Fig. 1c)."
)
CLIP_RATIO = (
    "Clipped mean: its length on the coordinates that are kept, over that of the same coordinates "
    "without a mask: above 1, the clip leaves them more (Zhu and Blaschko 2023, Fig. 1d); and over "
    "the whole clipped mean gradient: what is left of it."
)
SD = "Bars: standard deviation over masks."
CLIPPED_BLOCKS = (
    "One panel: how long the gradients of single examples are, all blocks together; the clip has "
    "a limit for each block."
)
SHARE = (
    "Other panel: the share that is shortened, if more units are frozen (Ito et al. 2024, "
    "Listing 1)."
)
CAPTIONS = {
    "deviations": "Deviations of single examples from the mean gradient, on two random directions, "
    "without a mask and with one (Zhu and Blaschko 2023, Figs. 6-9). A symmetric law "
    "looks the same when turned by 180 degrees.",
    "mask-counts": "How many coordinates were frozen how often so far (Zhu and Blaschko 2023, Fig. "
    "12). The line is what independent random masks give.",
    "carriers": "How much of the mean gradient (its energy, the squared length) each kind of "
    "carrier keeps at the start of a round: 1 is all of it. ||P(dW)||_F^2 / "
    "||dW||_F^2. Form tangent: dL and dR are sent (Eq. 3); core: L^T dW R^T alone.",
    "stable-rank": "How many directions the gradient of a batch really has in each layer (its "
    "stable rank, ||dW||_F^2 / ||dW||_2^2), against the most that its shape allows. "
    "A small one means that low-rank carriers lose little (Yu et al. 2021, Fig. 2).",
    "residual": "The share of a batch's gradient that carriers of rank r lose: 0 loses nothing, "
    "and lower is better. ||dW - P(dW)||_F / ||dW||_F (Yu et al. 2021, Fig. 3). The carriers come "
    "from",
    "clipping": "One panel: how long the gradients of single examples are; those right of the "
    f"dashed line are shortened by the clip. {SHARE}",
    "energy": "How much of a batch's gradient (its energy, the squared length) is in the units "
    "that LSG would keep, if it keeps those of largest importance (top), of smallest "
    "(bottom), or random ones (mean over draws). Rows are out units, columns are in "
    "units. A line above that of random units says that the choice helps.",
    "intensity": "Each pixel is one weight (first panel) or its gradient, by absolute value: "
    "bright is large. Bright stripes are units that matter more than others (Ito et "
    "al. 2023, Fig. 1). Of a large matrix a pixel is the largest entry of its tile.",
}
MASKED = ("sparsified-ratios", "deviations", "mask-counts")
"""Figures of random masks."""
DATA = {
    "layers.csv": "a row for each layer: shape and stable rank",
    "residuals.csv": "what carriers of each rank lose, by layer",
    "energy.csv": "energy in the kept units, by layer and sparsity",
    "carriers.csv": "energy kept by each kind of carrier",
    "clipping.csv": "norms and clipped shares by mask",
    "sparsified.csv": "noise and clipped gradient under random masks",
    "symmetry.csv": "symmetry of deviations from the mean gradient",
    "mask-counts.csv": "how often coordinates were frozen",
}
"""Tables that a reader may save."""


def folder(subject: Subject, out: str | None) -> Path:
    """Where the files go: ``out``, or ``inspection`` in the run, or
    ``inspection-<workload>-<method>`` here.

    Raises ValueError for a folder of a run, or one with other files in it.
    """
    s = subject.base.settings
    if out is not None:
        path = Path(out).expanduser().resolve()
    elif subject.run is not None:
        path = subject.run / "inspection"
    else:
        path = Path.cwd() / f"inspection-{s.workload}-{s.method}"
    allowed = (
        subject.run is None
        or path == subject.run / "inspection"
        or not path.is_relative_to(subject.run)
    )
    if not allowed or (path / "config.toml").exists():
        raise ValueError(
            f"{path} belongs to a run; choose another --out, or leave it out for inspection/ in "
            "the run"
        )
    if path.is_file() or (
        path.is_dir() and any(path.iterdir()) and not (path / "inspection.json").exists()
    ):
        raise ValueError(f"{path} holds other files; choose another --out")
    check_writable(path)
    return path


def write(subject: Subject, found: Inspection, path: Path, layers: Sequence[str]) -> list[str]:
    """Write everything and return the file names. ``layers`` get an intensity map; by default some
    do.
    """
    maps = [resolve_layer(subject, name) for name in layers] or spread(subject.layers, PANELS)
    charts = figures(found, subject, maps)
    files = {f"{name}.png": png(figure) for name, figure in charts.items()}
    pictures = [
        interactive(figure, _caption(name, found), columns=3 if len(figure) > 2 else 2)
        if isinstance(figure, tuple)
        else photo(figure, _caption(name, found))
        for name, figure in charts.items()
    ]
    shown = ("carriers", "symmetry", "sparsified", *MASKED)
    files |= {f"{name}.csv": csv_of(rows).encode() for name, rows in rows_of(found).items()}
    files["inspection.json"] = json_text(numbers(subject, found))
    files["inspection.html"] = page(subject, found, pictures, files).encode()
    with writing_to(path):
        for stale in (
            *path.glob("intensity-*.png"),
            *(file for name in shown for file in path.glob(f"{name}.*")),
        ):
            stale.unlink()
    write_private(path, files)
    return list(files)


def resolve_layer(subject: Subject, name: str) -> str:
    """The parameter of a layer, named with or without ``.weight``. Raises ValueError for an unknown
    one.
    """
    for candidate in (name, f"{name}.weight"):
        if candidate in subject.layers:
            return candidate
    raise ValueError(f"unknown layer {name!r}; known: {', '.join(subject.layers)}")


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
        "accuracies": None if found.costs is None else asdict(found.costs),
        "sources": SOURCES,
        **rows_of(found),
        "squared_length_shares": dict(found.own.shares),
        "clip_factors": {name: list(factors) for name, factors in first_factors(found).items()},
    }


def first_factors(found: Inspection) -> dict[str, tuple[float, ...]]:
    """Clip factors of the first examples by mask (Ito et al. 2024, Listing 1); none of a run that
    does not clip.
    """
    if not found.mechanism.clips:
        return {}
    rows = {
        "nothing frozen"
        if not row.sparsity
        else f"the run's own mask ({row.choice}, p = {row.sparsity:g})": row
        for row in (*(row for row in found.others if row.choice == "all"), found.own)
    }
    return {name: row.clipping.factors[:PRINTED] for name, row in rows.items()}


def factor_words(found: Inspection) -> dict[str, str]:
    """The same in words."""
    return {
        name: ", ".join(f"{factor:.4f}" for factor in factors)
        for name, factors in first_factors(found).items()
    }


def lead(subject: Subject, found: Inspection) -> str:
    """What was measured, in one line."""
    s = subject.base.settings
    moment = (
        "at its initial weights"
        if subject.state.updates == 0
        else f"after round {subject.state.round}"
    )
    return (
        f"{s.workload} with {s.method}, model {s.model}, seed {s.seed}, {moment}; {found.examples} "
        "training examples"
    )


def _caption(name: str, found: Inspection) -> str:
    """What a figure shows, and of which layer; of clip and noise only what the run has."""
    kind, _, layer = name.partition("intensity-")
    if kind == "clipping" and not found.mechanism.clips:
        return "How long the gradients of single examples are. This run does not clip them."
    if kind == "clipping" and found.mechanism.clip == "per-block":
        return f"{CLIPPED_BLOCKS} {SHARE}"
    if kind == "sparsified-ratios" and found.sparsified is not None:
        there = zip((NOISE_RATIO, CLIP_RATIO), found.sparsified.measured, strict=True)
        return " ".join([RATIOS, *(words for words, measured in there if measured), SD])
    if kind == "residual":
        return f"{CAPTIONS[kind]} {sources_words(found.sources)}"
    return CAPTIONS[kind] if kind else f"{layer}. {CAPTIONS['intensity']}"


def headline(found: Inspection) -> str:
    """What the clip does to the examples that were read, in one sentence; how long their gradients
    are if there is none.
    """
    shares, mechanism = found.own, found.mechanism
    clip, examples = shares.clipping, f"{found.examples} training examples"
    frozen = f"With a share of {shares.sparsity:g} frozen, " if shares.sparsity else ""
    if not mechanism.clips:
        norms = f"median norm {clip.norms[0.5]:.3g}, the longest {clip.norms[1.0]:.3g}"
        words = f"gradients of {examples} are not clipped (mechanism {mechanism.kind}): {norms}."
    elif mechanism.clip == "per-block":
        words = (
            f"the clip of each block, norm {mechanism.clip_norm:g}, shortens "
            f"{100 * clip.clipped:.0f} % of the blocks of {examples}, to {clip.mean_factor:.2f} of "
            "their length on average."
        )
    else:
        words = (
            f"the clip norm {mechanism.clip_norm:g} shortens the gradients of "
            f"{100 * clip.clipped:.0f} % of {examples}, to {clip.mean_factor:.2f} of their length "
            "on average."
        )
    return f"{frozen}{words}" if frozen else f"{words[:1].upper()}{words[1:]}"


def asked(found: Inspection) -> dict[str, str]:
    """What was measured, and at which values."""
    return {
        "examples": f"{found.examples:,} of the training data, without noise",
        "ranks of carriers": ", ".join(map(str, sorted({row.rank for row in found.residuals}))),
        "sparsities that were tried": ", ".join(
            f"{p:g}" for p in sorted({row.sparsity for row in found.clips})
        ),
        "layers": ", ".join(dict.fromkeys(row.layer for row in found.layers)),
    }


def page(
    subject: Subject,
    found: Inspection,
    pictures: Sequence[Picture | Drawing],
    files: Mapping[str, bytes],
) -> str:
    """inspection.html: one file that needs no other. ``files``: what is next to it, by name."""
    data = [download(name, files[name], says) for name, says in DATA.items() if name in files]
    factors = [Code(text=words, note=name) for name, words in factor_words(found).items()]
    costs = [] if found.costs is None else [Text(words=diagnosis(found.costs))]
    kept: list[Part] = (
        [summary_table(found.kept), facts_of(meanings(found.kept))] if found.kept else []
    )
    masked: list[Part] = (
        [*masked_tables(found.sparsified), Text(words=MEANING)] if found.sparsified else []
    )
    return render(
        Page(
            kind="fedlsg inspect",
            title=f"Gradients of {subject.base.settings.workload} with "
            f"{subject.base.settings.method}",
            lead=lead(subject, found),
            headline=headline(found),
            warnings=(WARNING,),
            sections=sections(
                ("In short", [*costs, *kept]),
                ("Random masks", masked),
                ("Figures", pictures),
                *([Section(title=FACTORS, parts=tuple(factors), folded=True)] if factors else []),
                ("Share of each parameter", [Text(words=SHARES, style="note"), share_table(found)]),
                ("What was asked", [facts_of(asked(found))]),
                data_section(*data),
            ),
        )
    )


def diagnosis(costs: Costs) -> str:
    """One sentence: the three accuracies, what the noise of which rho costs, and what the clip
    costs.
    """
    noise = "noise" if costs.rho is None else f"noise (rho {costs.rho:.2f})"
    reached = (
        f"Accuracy {percent(costs.with_noise)} with clip and {noise}, {reach(costs.clip_only)} "
        f"with the clip alone, {reach(costs.neither)} with neither, at the same learning rate"
    )
    words = [f"the noise {costs_of(costs.noise)}", f"the clip {costs_of(costs.clip)}"]
    error = costs.standard_error
    unsure = "" if error is None else f", standard error of each accuracy {100 * error:.1f} points"
    return f"{reached}: {' and '.join(words)} (one seed{unsure})."


def reach(accuracy: float | None) -> str:
    """An accuracy, or that there is none."""
    return "none (training fails)" if accuracy is None else percent(accuracy)


def costs_of(points: float | None) -> str:
    """What something costs or brings, in points."""
    if points is None:
        return "has no known cost"
    return f"{'costs' if points >= 0 else 'brings'} {abs(100 * points):.1f} points"
