"""What attacks found on a run of images: table, facts, picture, numbers."""

import base64
from collections.abc import Sequence
from dataclasses import asdict
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.attacks.inversion.prior import Prior
from simulations.attack.images.attack import Attacked
from simulations.attack.images.score import FINDING_DB, Scored, Summary, summarise, verdict
from simulations.attack.recorded.report import (
    OF_ATTACK,
    SECONDS,
    Findings,
    attacks_in_order,
    privacy_facts,
    style_of,
    summaries,
    update_numbers,
)
from simulations.attack.recorded.rows import CONVERGED, FORMS, best_of, shown_name
from simulations.report.page import Badge, Gallery, Shot
from simulations.report.table import Column, make_table

COLUMNS = (
    *OF_ATTACK,
    Column("images", lambda row: row.images),
    Column("PSNR", lambda row: row.psnr, ".1f"),
    Column("SSIM", lambda row: row.ssim, ".2f", optional=2),
    Column("blind", lambda row: row.blind, ".1f"),
    Column("gain", lambda row: row.mean_gain, "+z.1f"),
    Column("95 % interval", lambda row: row.gain, lambda gain: f"{gain.low:+z.1f} to {gain.high:+z.1f}"),
    SECONDS,
)
NOTE = (
    "PSNR, blind and gain in dB. blind: PSNR of a guess without the payload. gain: PSNR over it, paired by image. The "
    "95 % interval is that of the mean gain over these images, as if they were independent; another training run or "
    f"other starting points are not in it. {FORMS}"
)
CAPTION = (
    "Each row is one image. The number below it is its PSNR, red where the attack gains more than one decibel over the "
    "blind guess. Pink pixels are unknown to the attack. Recovered images and blind guesses are paired with the "
    "originals by least squared error."
)
LIMITS = "Each PSNR is shown next to that of a blind guess, because a grey image already has 10 to 12 dB."
SHOWN = 12
"""Images on a page."""
SIDE = 180
"""CSS pixels of one."""
UNKNOWN = (1.0, 0.86, 0.86)
"""Colour of pixels that an attack knows nothing about."""
GRANTED = {"prior": "the public range of pixels, and the mean and covariance of public test images by class"}


def image_findings(one: Attacked) -> Findings:
    """Table, picture and numbers of one run."""
    rows = summaries(one, summarise)
    return Findings(
        label=one.record.base.settings.method,
        verdict=verdict(rows),
        facts=facts(one),
        table=make_table(COLUMNS, rows, style=style_of, note=NOTE),
        shown=gallery(one, attacks_in_order(rows)),
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


def gallery(one: Attacked, order: Sequence[str]) -> Gallery:
    """The first images of a run, each PSNR below: original, strongest attack, blind guess, the other attacks.

    A phone shows the first two without scrolling.
    """
    rows = []
    for target, blind, results in zip(one.targets, one.blind, one.results, strict=True):
        known = {result.attack: result for result in results}
        measured = results[0].blind if results else None
        for index, truth in enumerate(_images(target.truth.inputs)):
            said = "" if measured is None else f"{measured[index]:.1f} dB"
            original = _shot(truth, one.prior, f"batch of {len(target.truth.rows)}")
            found = [_recovered(known.get(name), index, one.prior) for name in order]
            rows.append((original, *found[:1], _shot(blind[index], one.prior, said), *found[1:]))
    names = ("original", *map(shown_name, order[:1]), "blind guess", *map(shown_name, order[1:]))
    return Gallery(columns=names, rows=tuple(rows[:SHOWN]), caption=CAPTION, side=SIDE)


def _recovered(result: Scored | None, index: int, prior: Prior) -> Shot:
    """What an attack recovered: green where it is far better than the blind guess; empty where it did not apply."""
    if result is None:
        return Shot(uri="", words="does not apply")
    stuck = result.unexplained is not None and result.unexplained > CONVERGED
    close = result.psnr[index] - result.blind[index] > FINDING_DB
    words = f"{result.psnr[index]:.1f} dB" + (", did not converge" if stuck else "")
    return _shot(result.images[index], prior, words, style="bad" if close else "")


def _shot(image: Tensor, prior: Prior, words: str, style: Badge = "") -> Shot:
    """An image as PNG, with its own pixels: a page shows it larger."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray((255 * pixels_of(image, prior)).round().astype(np.uint8)).save(file, format="png", optimize=True)
    return Shot(uri="data:image/png;base64," + base64.b64encode(file.getvalue()).decode(), words=words, style=style)


def _images(inputs: object) -> Sequence[Tensor]:
    assert isinstance(inputs, Tensor)
    return list(inputs)
