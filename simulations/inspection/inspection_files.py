"""Files of an inspection: inspection.html and .json, a CSV a table, a PNG a figure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedlsg.simulations.inspection import Costs, Subject
from fedlsg.simulations.inspection.energy import meanings
from fedlsg.simulations.inspection.figures import PANELS, figures, spread
from fedlsg.simulations.inspection.inspection_tables import (
    SYMMETRY_NOTE,
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
FACTORS_TITLE = "Clip factors of the first examples"
SHARES_NOTE = "Share of each parameter in the squared length of an example's gradient."
MAX_PRINTED = 21
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
MASK_FIGURES = ("sparsified-ratios", "deviations", "mask-counts")
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
"""Tables that a reader may save, by file name."""


def folder(subject: Subject, out: str | None) -> Path:
    """The folder of the files: ``out``, else ``inspection`` in the run, else one in the current
    folder with a name after workload and method.

    Raises ValueError for a folder of a run, or one with other files in it.
    """
    settings = subject.base.settings
    if out is not None:
        path = Path(out).expanduser().resolve()
    elif subject.run is not None:
        path = subject.run / "inspection"
    else:
        path = Path.cwd() / f"inspection-{settings.workload}-{settings.method}"
    in_run = (
        subject.run is not None
        and path != subject.run / "inspection"
        and path.is_relative_to(subject.run)
    )
    if in_run or (path / "config.toml").exists():
        raise ValueError(
            f"{path} belongs to a run; choose another --out, or leave it out for inspection/ in "
            "the run"
        )
    has_others = path.is_dir() and any(path.iterdir()) and not (path / "inspection.json").exists()
    if path.is_file() or has_others:
        raise ValueError(f"{path} holds other files; choose another --out")
    check_writable(path)
    return path


def write(subject: Subject, found: Inspection, path: Path, layers: Sequence[str]) -> list[str]:
    """Write everything and return the file names.

    layers: with an intensity map; if empty, some spread over the model.
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
    files |= {f"{name}.csv": csv_of(rows).encode() for name, rows in rows_of(found).items()}
    files["inspection.json"] = json_text(numbers(subject, found))
    files["inspection.html"] = page(subject, found, pictures, files).encode()
    with writing_to(path):  # files of an earlier inspection that this one may not have
        for name in ("intensity-*", "carriers", "symmetry", "sparsified", *MASK_FIGURES):
            for stale in path.glob(f"{name}.*"):
                stale.unlink()
    write_private(path, files)
    return list(files)


def resolve_layer(subject: Subject, name: str) -> str:
    """The parameter of a layer, from its name with or without ``.weight``.

    Raises ValueError for an unknown layer.
    """
    for candidate in (name, f"{name}.weight"):
        if candidate in subject.layers:
            return candidate
    raise ValueError(f"unknown layer {name!r}; known: {', '.join(subject.layers)}")


def numbers(subject: Subject, found: Inspection) -> dict[str, Any]:
    """The content of inspection.json."""
    settings, mechanism = subject.base.settings, subject.base.method.mechanism
    return {
        "private": False,
        "warning": WARNING,
        "workload": settings.workload,
        "model": settings.model,
        "method": settings.method,
        "seed": settings.seed,
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
    """Clip factors of the first examples by mask (Ito et al. 2024, Listing 1).

    Empty for a run that does not clip.
    """
    if not found.mechanism.clips:
        return {}
    factors = {}
    for row in (*(row for row in found.others if row.choice == "all"), found.own):
        name = "nothing frozen"
        if row.sparsity:
            name = f"the run's own mask ({row.choice}, p = {row.sparsity:g})"
        factors[name] = row.clipping.factors[:MAX_PRINTED]
    return factors


def factor_words(found: Inspection) -> dict[str, str]:
    """Clip factors of the first examples by mask, in words."""
    return {
        name: ", ".join(f"{factor:.4f}" for factor in factors)
        for name, factors in first_factors(found).items()
    }


def lead(subject: Subject, found: Inspection) -> str:
    """The first line of the page: the subject, its round, and the number of examples."""
    settings, round = subject.base.settings, subject.state.round
    moment = f"after round {round}" if subject.state.updates else "at its initial weights"
    return (
        f"{settings.workload} with {settings.method}, model {settings.model}, seed "
        f"{settings.seed}, {moment}; {found.examples} training examples"
    )


def _caption(name: str, found: Inspection) -> str:
    """The words under a figure, about clip and noise only if the run has them."""
    kind, _, layer = name.partition("intensity-")
    if kind == "clipping" and not found.mechanism.clips:
        return "How long the gradients of single examples are. This run does not clip them."
    if kind == "clipping" and found.mechanism.clip == "per-block":
        return f"{CLIPPED_BLOCKS} {SHARE}"
    if kind == "sparsified-ratios" and found.sparsified is not None:
        has_noise, clips = found.sparsified.measured
        ratios = [NOISE_RATIO] if has_noise else []
        ratios += [CLIP_RATIO] if clips else []
        return " ".join([RATIOS, *ratios, SD])
    if kind == "residual":
        return f"{CAPTIONS[kind]} {sources_words(found.sources)}"
    return CAPTIONS[kind] if kind else f"{layer}. {CAPTIONS['intensity']}"


def headline(found: Inspection) -> str:
    """The effect of the clip on the examples in one sentence; without a clip, their norms."""
    own, mechanism = found.own, found.mechanism
    clip, examples = own.clipping, f"{found.examples} training examples"
    frozen = f"With a share of {own.sparsity:g} frozen, " if own.sparsity else ""
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


def parameters(found: Inspection) -> dict[str, str]:
    """The examples, ranks, sparsities and layers of the measurements, in words."""
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
    """inspection.html, as one file that needs no other.

    files: the content of the other files, by name.
    """
    data = [download(name, files[name], says) for name, says in DATA.items() if name in files]
    factors = [Code(text=words, note=name) for name, words in factor_words(found).items()]
    costs = [] if found.costs is None else [Text(words=diagnosis(found.costs))]
    kept: list[Part] = []
    if found.kept:
        kept = [summary_table(found.kept), facts_of(meanings(found.kept))]
    masked: list[Part] = []
    if found.sparsified:
        masked = [*masked_tables(found.sparsified), Text(words=SYMMETRY_NOTE)]
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
                *(
                    [Section(title=FACTORS_TITLE, parts=tuple(factors), folded=True)]
                    if factors
                    else []
                ),
                (
                    "Share of each parameter",
                    [Text(words=SHARES_NOTE, style="note"), share_table(found)],
                ),
                ("What was asked", [facts_of(parameters(found))]),
                data_section(*data),
            ),
        )
    )


def diagnosis(costs: Costs) -> str:
    """The three accuracies, and the costs of noise and clip, in one sentence."""
    noise = "noise" if costs.rho is None else f"noise (rho {costs.rho:.2f})"
    reached = (
        f"Accuracy {percent(costs.with_noise)} with clip and {noise}, {reach(costs.clip_only)} "
        f"with the clip alone, {reach(costs.neither)} with neither, at the same learning rate"
    )
    words = [f"the noise {costs_of(costs.noise)}", f"the clip {costs_of(costs.clip)}"]
    error = costs.standard_error
    errors = "" if error is None else f", standard error of each accuracy {100 * error:.1f} points"
    return f"{reached}: {' and '.join(words)} (one seed{errors})."


def reach(accuracy: float | None) -> str:
    """An accuracy in words; None: training failed."""
    return "none (training fails)" if accuracy is None else percent(accuracy)


def costs_of(points: float | None) -> str:
    """Costs in points of accuracy, in words; a negative cost is a gain."""
    if points is None:
        return "has no known cost"
    return f"{'costs' if points >= 0 else 'brings'} {abs(100 * points):.1f} points"
