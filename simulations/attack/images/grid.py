"""The image grid: one column for each image; rows for originals, blind guesses and each attack."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedlsg.attacks.inversion.prior import Prior
from simulations.attack.images.attack import Attacked
from simulations.report.figure import new_figure, use_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 8
CELL = 1.05
"""Inches of one image."""
UNKNOWN = (1.0, 0.86, 0.86)
"""Colour of pixels that an attack knows nothing about."""


def shown(image: Tensor, prior: Prior) -> np.ndarray:
    """(h, w, 3) in 0..1 from (C, h, w) in the units of the model; unknown pixels have the colour UNKNOWN."""
    low, high = prior.bounds
    scaled = ((image.double().cpu() - low) / (high - low)).clamp(0, 1)
    pixels = scaled.expand(3, *scaled.shape[1:]) if len(scaled) == 1 else scaled
    pixels = torch.where(pixels.isnan(), torch.tensor(UNKNOWN, dtype=pixels.dtype).view(3, 1, 1), pixels)
    return pixels.permute(1, 2, 0).numpy()


@use_style
def grid(one: Attacked) -> "Figure":
    """The first images of a run, as many as fit in a row. The PSNR is below each image."""
    rows, labels, notes = _rows(one)
    columns = min(COLUMNS, len(rows[0]))
    figure = new_figure(1.9 + columns * CELL, 0.5 + len(rows) * (CELL + 0.18))
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, name, images, texts in zip(axes, labels, rows, notes, strict=True):
        for position, axis in enumerate(line):
            axis.imshow(shown(images[position], one.prior), interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_xlabel(texts[position], fontsize=7, labelpad=2)
            axis.grid(False)
            for spine in axis.spines.values():
                spine.set_visible(False)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8, labelpad=8)
    return figure


def _rows(one: Attacked) -> tuple[list[list[Tensor]], list[str], list[list[str]]]:
    truths = [image for target in one.targets for image in _images(target.truth.inputs)]
    sizes = [f"batch of {len(target.truth.rows)}" for target in one.targets for _ in target.truth.rows]
    blind = [image for images in one.blind for image in images]
    first = {index: results[0] for index, results in enumerate(one.results) if results}
    below = [
        f"{value:.1f} dB" if index in first else ""
        for index, images in enumerate(one.blind)
        for value in (first[index].blind if index in first else [0.0] * len(images))
    ]
    rows, labels, notes = [truths, blind], ["original", "blind guess"], [sizes, below]
    for name in dict.fromkeys(result.attack for results in one.results for result in results):
        images, texts = [], []
        for target, results in zip(one.targets, one.results, strict=True):
            mine = next((result for result in results if result.attack == name), None)
            for index, truth in enumerate(_images(target.truth.inputs)):
                images.append(torch.full_like(truth, torch.nan) if mine is None else mine.images[index])
                texts.append("" if mine is None else f"{mine.psnr[index]:.1f} dB")
        rows.append(images)
        labels.append(name)
        notes.append(texts)
    return rows, labels, notes


def _images(inputs: object) -> Sequence[Tensor]:
    assert isinstance(inputs, Tensor)
    return list(inputs)
