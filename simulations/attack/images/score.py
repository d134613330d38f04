"""Guesses compared with the truth and with the blind guess: the only place that sees both."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.metrics import Interval, best_matching, mean_interval, psnr, squared_errors, ssim
from fedlsg.attacks.observation import Guess
from simulations.attack.recorded.best import not_converged
from simulations.attack.recorded.names import shown_name

EXACT_DB = 200.0
"""The PSNR of a perfect image, which has no finite one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """One attack on one update; images are paired with the true ones, in their order.

    images: (B, C, h, w) of the guess, NaN where it knows nothing; psnr, ssim, blind: one number an image, decibels for
    the first and the last.
    """

    attack: str
    images: Float[Tensor, "batch c h w"]
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    blind: tuple[float, ...]
    seconds: float
    objective: float | None
    note: str
    unexplained: float | None = None

    @property
    def gains(self) -> list[float]:
        """Decibels over the blind baseline, image by image."""
        return [own - other for own, other in zip(self.psnr, self.blind, strict=True)]


def scored(
    name: str,
    guess: Guess,
    truth: Float[Tensor, "batch c h w"],
    blind: Tensor,
    prior: Prior,
    seconds: float,
) -> Scored:
    """Pair with the true images, fill unknown pixels with what the prior expects, measure in the public range.

    If there are more guesses than examples, the first ones count: the nearest ones would be chosen by the truth.
    """
    low, high = prior.bounds
    truth, images = truth.double(), guess.inputs.detach().double().cpu().reshape(-1, *truth.shape[1:])[: len(truth)]
    expected = prior.expected(len(images), None if guess.labels is None else guess.labels[: len(images)].cpu())
    filled = torch.where(images.isnan(), expected, images).clamp(low, high)
    blind = in_order(blind.clamp(low, high), truth)
    guesses, truths = best_matching(squared_errors(filled, truth))
    paired, shown = blind.clone(), torch.full_like(truth, math.nan)
    paired[truths], shown[truths] = filled[guesses], images[guesses].clamp(low, high)
    return Scored(
        attack=name,
        images=shown,
        psnr=decibels(paired, truth, prior),
        ssim=tuple(ssim(paired, truth, data_range=prior.span).tolist()),
        blind=decibels(blind, truth, prior),
        seconds=seconds,
        objective=guess.objective,
        note=guess.note,
        unexplained=guess.unexplained,
    )


def in_order(blind: Tensor, truth: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
    """The blind images in the order of the true ones: labels are granted without an order, for every attack."""
    guesses, truths = best_matching(squared_errors(blind, truth))
    return blind[guesses[truths.argsort()]]


def decibels(images: Tensor, truth: Tensor, prior: Prior) -> tuple[float, ...]:
    """PSNR of each image, bounded for exact ones."""
    return tuple(min(value, EXACT_DB) for value in psnr(images, truth, data_range=prior.span).tolist())


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One attack over all images of one run and batch size. ``gain`` is None for fewer than two images.

    unexplained: the largest share of an update that its guess leaves open; None for attacks that do not search.
    """

    attack: str
    batch: int
    images: int
    psnr: float
    ssim: float
    blind: float
    gain: Interval | None
    seconds: float
    unexplained: float | None = None

    @property
    def mean_gain(self) -> float:
        """Decibels over the blind baseline."""
        return self.psnr - self.blind


def summarise(results: Sequence[Scored], batch: int) -> Summary:
    """Means over the images of one attack's results."""
    gains = [gain for one in results for gain in one.gains]
    unexplained = [one.unexplained for one in results if one.unexplained is not None]
    return Summary(
        attack=results[0].attack,
        batch=batch,
        images=len(gains),
        psnr=statistics.fmean(value for one in results for value in one.psnr),
        ssim=statistics.fmean(value for one in results for value in one.ssim),
        blind=statistics.fmean(value for one in results for value in one.blind),
        gain=mean_interval(torch.tensor(gains)) if len(gains) > 1 else None,
        seconds=statistics.fmean(one.seconds for one in results),
        unexplained=max(unexplained, default=None),
    )


FINDING_DB = 1.0


def verdict(rows: Sequence[Summary]) -> str:
    """Whether the strongest attack gets more than the blind guess, which needs no payload, in words."""
    if not rows:
        return "no attack applies to these updates, for the given reasons: that is no proof of privacy"
    best = max(rows, key=lambda row: (-math.inf if row.gain is None else row.gain.low, row.mean_gain))
    best_words = (
        f"the strongest attack ({shown_name(best.attack)}, batch of {best.batch}) gains {best.mean_gain:z.1f} dB"
    )
    stuck = not_converged(rows)
    if stuck and (best.gain is None or best.gain.low <= 0):
        return f"{stuck}: {best_words} over the blind guess"
    if best.gain is None:
        return f"{best_words} over the blind guess on one image: too few for a verdict"
    reach = f"{best_words} over the blind guess, 95 % interval {best.gain.low:z.1f} to {best.gain.high:z.1f} dB"
    if best.gain.low > FINDING_DB:
        return f"THESE UPDATES LEAK IMAGES: {reach}"
    if best.gain.low > 0:
        return f"slightly better than a blind guess: {reach}"
    if any(row.gain is None or row.gain.high > FINDING_DB for row in rows):
        return f"undecided, too few images: {reach}"
    return f"no image recovered better than a blind guess: {reach}. Other attacks may do better"
