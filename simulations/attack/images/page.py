"""What attacks found on a run of images: table, facts, picture, numbers."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.attacks.inversion.prior import Prior
from simulations.attack.images.attack import Attacked
from simulations.attack.images.score import Summary, summarise, verdict
from simulations.attack.recorded.report import (
    Findings,
    attacks_in_order,
    privacy_facts,
    summaries,
    update_numbers,
)
from simulations.attack.recorded.rows import FORMS, best_of, split_name
from simulations.report.figure import new_figure, photo, use_style
from simulations.report.page import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("attack", "form", "batch", "images", "PSNR", "SSIM", "blind", "gain", "95 % interval", "seconds")
OPTIONAL = ("seconds", "SSIM")
"""What a narrow terminal leaves out."""
NOTE = (
    "PSNR, blind and gain in dB. blind: PSNR of a guess without the payload. gain: PSNR over it, paired by image. The "
    "95 % interval is that of the mean gain over these images, as if they were independent; another training run or "
    f"other starting points are not in it. {FORMS}"
)
CAPTION = (
    "Originals, blind guesses and recovered images. The number below an image is its PSNR. Pink pixels are unknown to "
    "the attack. Recovered images and blind guesses are paired with the originals by least squared error."
)
LIMITS = "Each PSNR is shown next to that of a blind guess, because a grey image already has 10 to 12 dB."
SHOWN = 8
"""Images in a row."""
CELL, MARGIN, BELOW = 0.76, 1.5, 0.2
"""Inches of one image, of the names on its left, and of the words below it."""
UNKNOWN = (1.0, 0.86, 0.86)
"""Colour of pixels that an attack knows nothing about."""
GRANTED = {"prior": "the public range of pixels, and the mean and covariance of public test images by class"}


def image_findings(one: Attacked) -> Findings:
    """Table, picture and numbers of one run."""
    rows = summaries(one, summarise)
    figure = grid(one, attacks_in_order(rows))
    return Findings(
        label=one.record.base.settings.method,
        verdict=verdict(rows),
        facts=facts(one),
        table=score_table(rows),
        shown=photo(figure, CAPTION),
        numbers=numbers(one, rows),
        refused=one.refused,
        granted=GRANTED,
        limits=LIMITS,
        best=best_of(rows, one.record, one.targets[0].seen, "dB", 1.0),
    )


def facts(one: Attacked) -> dict[str, str]:
    """Epsilon, sigma, membership, labels and the count of numbers received, by name."""
    sizes = sorted({len(target.truth.rows) for target in one.targets})
    return {
        **privacy_facts(one.record, one.targets[0].seen, one.membership),
        "attacked": f"{len(one.targets)} update{'' if len(one.targets) == 1 else 's'} of "
        f"{' or '.join(f'{size:,}' for size in sizes)} example{'' if sizes == [1] else 's'}",
        "search": f"at most {one.seconds:.3g} s for each attack on each update",
        **({} if one.leak is None else one.leak.facts),
        "equations": f"{one.count.received:,} numbers received, {one.count.equations:,} of them independent, for "
        f"{one.count.unknowns:,} unknowns in a batch of {one.count.examples:,}: "
        + ("at least as many as" if one.count.enough else "fewer than")
        + " an exact solution needs without noise",
    }


def score_table(rows: Sequence[Summary]) -> Table:
    """One row for each attack and batch size."""
    return Table(
        columns=COLUMNS,
        rows=tuple(table_row(row) for row in rows),
        left=(0, 1),
        optional=tuple(map(COLUMNS.index, OPTIONAL)),
        note=NOTE,
    )


def table_row(row: Summary) -> Row:
    """One row of the table; the naive forms are dim."""
    reach = "--" if row.gain is None else f"{row.gain.low:+z.1f} to {row.gain.high:+z.1f}"
    name, form = split_name(row.attack)
    cells = (
        name, form, str(row.batch), str(row.images), f"{row.psnr:.1f}", f"{row.ssim:.2f}", f"{row.blind:.1f}",
        f"{row.mean_gain:+z.1f}", reach, f"{row.seconds:.1f}",
    )  # fmt: skip
    return Row(cells=cells, style="dim" if form == "naive" else "")


def numbers(one: Attacked, rows: Sequence[Summary]) -> dict[str, Any]:
    """Everything of attack.json about one run."""
    return {
        "run": one.record.run.path.name,
        "membership_tpr_at_1_percent_fpr": one.membership,
        "classifier": None if one.leak is None else asdict(one.leak),
        "values_received": one.count.received,
        "unknowns": one.count.unknowns,
        "summary": [{**asdict(row), "mean_gain": row.mean_gain} for row in rows],
        "updates": [
            {
                **update_numbers(target),
                "attacks": [
                    {key: value for key, value in vars(result).items() if key != "images"} for result in results
                ],
            }
            for target, results in zip(one.targets, one.results, strict=True)
        ],
    }


def pixels_of(image: Tensor, prior: Prior) -> np.ndarray:
    """(h, w, 3) in 0..1 from (C, h, w) in the units of the model; unknown pixels have the colour UNKNOWN."""
    low, high = prior.bounds
    scaled = ((image.double().cpu() - low) / (high - low)).clamp(0, 1)
    pixels = scaled.expand(3, *scaled.shape[1:]) if len(scaled) == 1 else scaled
    pixels = torch.where(pixels.isnan(), torch.tensor(UNKNOWN, dtype=pixels.dtype).view(3, 1, 1), pixels)
    return pixels.permute(1, 2, 0).numpy()


@use_style
def grid(one: Attacked, order: Sequence[str]) -> "Figure":
    """The first images of a run, as many as fit in a row, attacks in this order. The PSNR is below each image."""
    rows, labels, notes = _rows(one, order)
    columns = min(SHOWN, len(rows[0]))
    figure = new_figure(MARGIN + columns * CELL, 0.1 + len(rows) * (CELL + BELOW))
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, name, images, texts in zip(axes, labels, rows, notes, strict=True):
        for position, axis in enumerate(line):
            axis.imshow(pixels_of(images[position], one.prior), interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_xlabel(texts[position], fontsize=8, labelpad=2)
            axis.grid(False)
            for spine in axis.spines.values():
                spine.set_visible(False)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, labelpad=6)
    return figure


def _rows(one: Attacked, order: Sequence[str]) -> tuple[list[list[Tensor]], list[str], list[list[str]]]:
    truths = [image for target in one.targets for image in _images(target.truth.inputs)]
    sizes = [f"batch {len(target.truth.rows)}" for target in one.targets for _ in target.truth.rows]
    blind = [image for images in one.blind for image in images]
    first = {index: results[0] for index, results in enumerate(one.results) if results}
    below = [
        f"{value:.1f} dB" if index in first else ""
        for index, images in enumerate(one.blind)
        for value in (first[index].blind if index in first else [0.0] * len(images))
    ]
    rows, labels, notes = [truths, blind], ["original", "blind guess"], [sizes, below]
    for name in order:
        images, texts = [], []
        for target, results in zip(one.targets, one.results, strict=True):
            mine = next((result for result in results if result.attack == name), None)
            for index, truth in enumerate(_images(target.truth.inputs)):
                images.append(torch.full_like(truth, torch.nan) if mine is None else mine.images[index])
                texts.append("" if mine is None else f"{mine.psnr[index]:.1f} dB")
        rows.append(images)
        labels.append("\n".join(split_name(name)))
        notes.append(texts)
    return rows, labels, notes


def _images(inputs: object) -> Sequence[Tensor]:
    assert isinstance(inputs, Tensor)
    return list(inputs)
