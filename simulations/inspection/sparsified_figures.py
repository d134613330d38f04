"""Figures and tables of random sparsification: noise and clipped gradients, symmetry of deviations, counts of masks."""

from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.inspection.sparsified import Counts, Deviations, Sparsified
from simulations.report.colours import BLACK, BLUE, GREEN, GREY, LIGHT, RED
from simulations.report.figure import legend_outside, new_figure, use_style
from simulations.report.page import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS = {
    "sparsified-ratios": "What freezing a random share p of the coordinates does in one step. Left: the length of the "
    "noise, over that without a mask; the line is sqrt(1 - p) (Zhu and Blaschko 2023, Fig. 1c). Right: the length of "
    "the clipped mean gradient on the coordinates that are kept, over that of the same coordinates without a mask: "
    "above 1, the clip leaves them more (Fig. 1d); and over the whole clipped mean gradient: what is left of it. Bars: "
    "standard deviation over masks.",
    "deviations": "Deviations of single examples from the mean gradient, on two random directions, without a mask and "
    "with one (Zhu and Blaschko 2023, Figs. 6-9). A symmetric law looks the same when turned by 180 degrees.",
    "mask-counts": "How many coordinates were frozen how often so far (Zhu and Blaschko 2023, Fig. 12). The line is "
    "what independent random masks give.",
}
FIGURES = tuple(CAPTIONS)
MEANING = (
    "Asymmetry: the Kolmogorov-Smirnov distance between the deviations on a direction and the same with the sign "
    "turned, mean over random directions. By chance: the same if each sign were random, and its 95 % quantile."
)


def figures(found: Sparsified) -> dict[str, "Figure"]:
    """Every figure by file name."""
    counts = {} if found.counts is None else {"mask-counts": mask_counts(found.counts)}
    return {"sparsified-ratios": ratios(found), "deviations": planes(found.deviations), **counts}


@use_style
def ratios(found: Sparsified) -> "Figure":
    """Left: the ratio of the noise. Right: those of the clipped gradient."""
    figure = new_figure(7.6, 3.3)
    left, right = figure.subplots(1, 2)
    p = [row.sparsity for row in found.rows]
    fine = np.linspace(0, max(p), 100)
    left.plot(fine, np.sqrt(1 - fine), color=BLACK, linestyle="--", label="sqrt(1 - p)")
    left.errorbar(
        p, [r.noise for r in found.rows], [r.noise_sd for r in found.rows], color=BLUE, marker="o", linestyle="none",
        label="noise with the mask / without",
    )  # fmt: skip
    for name, colour, marker, label in (
        ("relaxed", RED, "o", "kept coordinates, with the mask / without"),
        ("kept", GREEN, "s", "with the mask / whole gradient"),
    ):
        values = [(getattr(r, name), getattr(r, f"{name}_sd")) for r in found.rows]
        right.errorbar(p, *zip(*values, strict=True), color=colour, marker=marker, label=label)
    right.plot(fine, 1 / np.sqrt(1 - fine), color=GREY, linestyle=":", label="1 / sqrt(1 - p)")
    for axes, says in ((left, "length of the noise, ratio"), (right, "length of the clipped mean, ratio")):
        axes.set_xlabel("sparsification rate p")
        axes.set_ylabel(says)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    return figure


@use_style
def planes(found: "tuple[Deviations, ...] | Any") -> "Figure":
    """A panel for each rate, with equal scales in both directions."""
    figure = new_figure(3.4 * len(found), 3.6)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, one in zip(panels, found, strict=True):
        most = float(np.quantile(np.abs(one.plane), 0.995)) or 1.0
        axes.plot(*one.plane.T, color=BLUE, marker=".", markersize=3, linestyle="none", alpha=0.5)
        axes.axhline(0, color=LIGHT)
        axes.axvline(0, color=LIGHT)
        axes.set_xlim(-most, most)
        axes.set_ylim(-most, most)
        axes.set_aspect("equal")
        axes.set_title("no mask" if not one.sparsity else f"mask of p = {one.sparsity:g}", fontsize="medium")
        axes.set_xlabel("first random direction")
    panels[0].set_ylabel("second random direction")
    return figure


@use_style
def mask_counts(found: Counts) -> "Figure":
    """Bars of the shares, a line of what independent masks give."""
    figure = new_figure(6.0, 3.2)
    axes = figure.subplots()
    counts = np.arange(len(found.shares))
    axes.bar(counts, found.shares, color=LIGHT, width=0.8, label=f"masks of the run, ranking={found.ranking}")
    axes.plot(counts, found.expected, color=RED, marker="o", markersize=4, label="independent random masks")
    seen = counts[np.maximum(found.shares, found.expected) > 1e-4]
    axes.set_xlim(seen.min() - 0.7, seen.max() + 0.7)
    axes.set_xlabel(f"how often a coordinate was frozen, of {found.masks} masks")
    axes.set_ylabel("share of the coordinates")
    legend_outside(figure, [axes], "outside upper left", 2)
    return figure


def page_tables(found: Sparsified) -> tuple[Table, ...]:
    """The numbers of the figures, for the terminal and the page."""
    first = Table(
        title="Noise and clipped gradient under random masks of rate p",
        columns=("p", "noise", "sqrt(1 - p)", "kept coordinates", "1 / sqrt(1 - p)", "of the whole"),
        rows=tuple(
            Row(
                cells=(
                    f"{r.sparsity:g}", f"{r.noise:.4f}", f"{r.expected_noise:.4f}",
                    f"{r.relaxed:.3f} ± {r.relaxed_sd:.3f}",
                    f"{1 / r.expected_noise:.3f}", f"{r.kept:.3f} ± {r.kept_sd:.3f}",
                )
            )
            for r in found.rows
        ),
    )  # fmt: skip
    second = Table(
        title="Symmetry of the deviations of examples from their mean gradient",
        columns=("mask", "asymmetry", "by chance", "95 %", "skewness", "by chance"),
        rows=tuple(
            Row(
                cells=(
                    "none" if not d.sparsity else f"p = {d.sparsity:g}",
                    *(f"{x:.3f}" for x in (d.asymmetry, d.chance, d.chance_95, d.skewness, d.chance_skewness)),
                )
            )
            for d in found.deviations
        ),
    )
    c = found.counts
    if c is None:
        return first, second
    third = Table(
        title="How often a coordinate was frozen",
        columns=("ranking", "masks", "mean", "sd", "sd, independent", "total variation"),
        rows=(
            Row(
                cells=(
                    c.ranking, f"{c.masks}", f"{c.mean:.3f}", f"{c.sd:.3f}", f"{c.expected_sd:.3f}", f"{c.distance:.4f}"
                )
            ),
        ),
    )  # fmt: skip
    return first, second, third


def files(found: Sparsified) -> dict[str, list[dict[str, Any]]]:
    """Rows of the tables that a reader may save, by name."""
    symmetry = [{name: value for name, value in vars(d).items() if name != "plane"} for d in found.deviations]
    counts = [] if found.counts is None else [
        {"frozen": k, "share": float(share), "independent": float(law)}
        for k, (share, law) in enumerate(zip(found.counts.shares, found.counts.expected, strict=True))
    ]  # fmt: skip
    made = {"sparsified": [vars(row) for row in found.rows], "symmetry": symmetry}
    return made | ({"mask-counts": counts} if counts else {})
