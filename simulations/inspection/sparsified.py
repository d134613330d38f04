"""Effects of random sparsification on noise and gradients (Zhu and Blaschko 2023, RS).

The measurements are those of its Figs. 1c, 1d, 6-9 and 12.

Symbols: d coordinates, p the sparsification rate, m a mask that keeps d - floor(p d) of them, g_i
the gradient of example i, g its mean over examples, xi_i = g_i - g its deviation, C the clip norm,
n Gaussian noise in d coordinates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from scipy.stats import kstest
from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.masks.freezing import uniform
from fedlsg.randomness import public_generator
from fedlsg.simulations.inspection import Rows, Subject, passes, unmasked
from fedlsg.simulations.storage.atomic_files import load_array
from fedlsg.simulations.storage.updates import round_folder

MAX_DRAWS = 5
"""Masks of each rate at most."""
MAX_MASK_VALUES = 5 * 10**7
"""Numbers in all masks, or in all directions, at most: a large model has fewer of them."""
MAX_DIRECTIONS = 64
"""Random directions at most: the first two are the axes of the figure, all are tested for
symmetry.
"""


Law = Float[np.ndarray, " counts"]
"""Probability of each number of events, from 0 on."""


@dataclass(frozen=True, kw_only=True)
class SparsifiedRow:
    """One rate: means over masks, and their standard deviations (``_sd``).

    sparsity: p.
    noise: ||m n|| / ||n|| (Fig. 1c); NaN without noise.
    expected_noise: sqrt(1 - p).
    relaxed: ||mean clip(m g_i)|| / ||m mean clip(g_i)||, how much longer the mean is on the kept
        coordinates if the clip is after the mask (Fig. 1d). It is at most 1 / sqrt(1 - p) if all
        examples are clipped and their energy is spread evenly. NaN without a clip.
    kept: ||mean clip(m g_i)|| / ||mean clip(g_i)||, the length left of the whole mean. NaN without
        a clip.
    """

    sparsity: float
    noise: float
    noise_sd: float
    expected_noise: float
    relaxed: float
    relaxed_sd: float
    kept: float
    kept_sd: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Deviations:
    """Symmetry of the deviations xi_i on random directions (Figs. 6-9).

    sparsity: p of the mask; 0 without one.
    plane: deviations on the first two directions.
    asymmetry: Kolmogorov-Smirnov distance between deviations and their negatives, mean over
        directions.
    chance: the same mean after random signs, as in a symmetric law.
    chance_95: 95 % quantile over directions of the distance after random signs.
    skewness: absolute third standardised moment, mean over directions.
    chance_skewness: the same mean after random signs.
    """

    sparsity: float
    plane: Float[np.ndarray, "n 2"]
    asymmetry: float
    chance: float
    chance_95: float
    skewness: float
    chance_skewness: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """How often coordinates were frozen (Fig. 12).

    ranking: how the masks were chosen.
    masks: their number.
    shares: share of the coordinates by count.
    expected: the same for independent masks.
    """

    ranking: str
    masks: int
    shares: Law
    expected: Law

    @property
    def distance(self) -> float:
        """Total variation between ``shares`` and ``expected``."""
        return float(np.abs(self.shares - self.expected).sum() / 2)

    @property
    def mean(self) -> float:
        """Mean count of a coordinate."""
        return float(self.shares @ np.arange(len(self.shares)))

    @property
    def sd(self) -> float:
        """Standard deviation of the count over coordinates."""
        return spread_of(self.shares)

    @property
    def expected_sd(self) -> float:
        """The same for independent masks."""
        return spread_of(self.expected)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sparsified:
    """All effects of random sparsification.

    rows: one a rate.
    deviations: without a mask, and with one of the method's rate.
    counts: None if the masks are not known.
    """

    rows: Sequence[SparsifiedRow]
    deviations: Sequence[Deviations]
    counts: Counts | None

    @property
    def measured(self) -> tuple[bool, bool]:
        """Whether the run has noise, and whether it clips; without these, the ratios are NaN."""
        first = self.rows[0]
        return not math.isnan(first.noise), not math.isnan(first.relaxed)


def sparsified(subject: Subject, rows: Rows, sparsities: Sequence[float]) -> Sparsified | None:
    """Measure at W_t; None for methods whose mask is not uniformly random over all coordinates."""
    mask, mechanism = subject.base.method.mask, subject.base.method.mechanism
    if mask.kind != "uniform":
        return None
    rates = sorted({*sparsities, mask.sparsity})
    frame = unmasked(subject.frame)
    generator = public_generator(subject.state.seed, "inspect", "sparsified")
    size = frame.size
    draws = max(1, min(MAX_DRAWS, MAX_MASK_VALUES // (len(rates) * size)))
    count = max(2, min(MAX_DIRECTIONS, MAX_MASK_VALUES // (2 * size)))
    masks = torch.stack([draw_mask(size, p, generator) for p in rates for _ in range(draws)])
    directions = torch.randn(count, size, generator=generator) / size**0.5
    own_mask = masks[rates.index(mask.sparsity) * draws]
    sums, projected = clipped_sums_and_projections(
        subject, frame, rows, masks, torch.cat([directions, directions * own_mask])
    )
    masked_then_clipped = sums[1:] * masks
    relaxed = masked_then_clipped.norm(dim=1) / (sums[0] * masks).norm(dim=1)
    kept = masked_then_clipped.norm(dim=1) / sums[0].norm()
    noise = torch.randn(masks.shape, generator=generator)
    ratios = (noise * masks).norm(dim=1) / noise.norm(dim=1)
    if not mechanism.adds_noise:
        ratios = ratios * math.nan
    by_rate = (values.view(-1, draws) for values in (ratios, relaxed, kept))
    table = [
        SparsifiedRow(
            sparsity=p,
            expected_noise=(1 - p) ** 0.5,
            **mean_and_sd("noise", of_noise),
            **mean_and_sd("relaxed", of_relaxed),
            **mean_and_sd("kept", of_kept),
        )
        for p, of_noise, of_relaxed, of_kept in zip(rates, *by_rate, strict=True)
    ]
    signs = np.random.default_rng(subject.state.seed)
    without, with_mask = projected.split(count, dim=1)
    return Sparsified(
        rows=table,
        deviations=[
            deviations(0.0, without.numpy(), signs),
            deviations(mask.sparsity, with_mask.numpy(), signs),
        ],
        counts=mask_counts(subject),
    )


def clipped_sums_and_projections(
    subject: Subject,
    frame: Frame,
    rows: Rows,
    masks: Float[Tensor, "masks d"],
    directions: Float[Tensor, "directions d"],
) -> tuple[Float64[Tensor, "sums d"], Float[Tensor, "n directions"]]:
    """sum_i min(1, C / |m g_i|) g_i without a mask and for each mask m, and all g_i on directions.

    The sums are NaN without a clip. Examples with a gradient that is not finite are left out.
    """
    mechanism = subject.base.method.mechanism
    clip_norm = mechanism.clip_norm if mechanism.clips else math.nan
    masks = torch.cat([torch.ones(1, masks.shape[1]), masks])
    sums = torch.zeros(masks.shape, dtype=torch.float64)
    projected = []
    for blocks in passes(subject, frame, rows):
        g = torch.cat([block.detach().cpu().float() for block in blocks], dim=1)
        g = g[g.isfinite().all(1)]
        projected.append(g @ directions.T)
        norms = (g.square() @ masks.T).sqrt()
        factors = (clip_norm / norms.clamp_min(1e-30)).clamp_max(1.0)  # 0 / 0 of a zero gradient
        sums += (factors.T @ g).double()
    return sums, torch.cat(projected)


def draw_mask(total: int, rate: float, generator: torch.Generator) -> Float[Tensor, " d"]:
    """A mask as the method draws it: 1 for each kept coordinate."""
    mask = torch.zeros(total)
    mask[uniform(total, rate, generator=generator)] = 1
    return mask


def deviations(
    sparsity: float, projected: Float[np.ndarray, "n m"], signs: np.random.Generator
) -> Deviations:
    """The symmetry of deviations from the mean on each of m directions."""
    z = projected.astype(np.float64)
    z -= z.mean(0)
    turned = z * signs.choice([-1.0, 1.0], size=z.shape)
    asymmetries = [asymmetry(column) for column in z.T]
    chance = [asymmetry(column) for column in turned.T]
    return Deviations(
        sparsity=sparsity,
        plane=z[:, :2],
        asymmetry=float(np.mean(asymmetries)),
        chance=float(np.mean(chance)),
        chance_95=float(np.quantile(chance, 0.95)),
        skewness=float(np.mean(np.abs(skewness(z)))),
        chance_skewness=float(np.mean(np.abs(skewness(turned)))),
    )


def asymmetry(values: Float[np.ndarray, " n"]) -> float:
    """Kolmogorov-Smirnov distance between values and their negatives: 0 if symmetric about 0."""
    return float(kstest(values, -values).statistic)


def skewness(values: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " m"]:
    """Third standardised moment about 0 of each column; 0 for a column of zeros."""
    spread = np.sqrt(np.mean(values**2, axis=0))
    return np.asarray(np.mean(values**3, axis=0) / np.maximum(spread, 1e-100) ** 3)


def mask_counts(subject: Subject) -> Counts | None:
    """Counts over the masks of a run so far, or without a run of the whole schedule.

    None for fewer than two masks, and for masks by ranking unless the run has recorded them.
    """
    base = subject.base
    mask, schedule = base.method.mask, base.schedule
    last = schedule.rounds if subject.run is None else subject.state.round
    first_round: dict[int, int] = {}  # by draw: a mask may be kept for several rounds
    for round in range(1, last + 1):
        draw = round if mask.redraw == "step" else mask.draw(schedule.time(round))[0]
        first_round.setdefault(draw, round)
    rounds = sorted(first_round.values())
    if len(rounds) < 2:
        return None
    size = subject.frame.size
    frozen, rates = torch.zeros(size, dtype=torch.int64), []
    for round in rounds:
        kept = kept_in(subject, round)
        if kept is None:
            return None
        frozen += 1
        frozen[kept] -= 1
        rates.append(1 - len(kept) / size)
    shares = torch.bincount(frozen, minlength=len(rounds) + 1).double() / size
    return Counts(
        ranking=mask.ranking,
        masks=len(rounds),
        shares=shares.numpy(),
        expected=poisson_binomial(rates),
    )


def kept_in(subject: Subject, round: int) -> Int64[Tensor, " k"] | None:
    """Positions that a round kept: drawn again from the public seed, or recorded.

    Those that the server chose are None without a record.
    """
    if subject.base.method.mask.ranking == "random":
        public = subject.state.public
        frame = public.frame(
            round, updates=subject.state.updates, basis=subject.state.basis_of(round)
        )
        return frame.indices.cpu()
    path = None if subject.run is None else round_folder(subject.run, round) / "kept.npy"
    return torch.from_numpy(load_array(path)) if path is not None and path.exists() else None


def poisson_binomial(rates: Sequence[float]) -> Law:
    """The law of the number of independent events with these probabilities (Poisson binomial)."""
    law = np.ones(1)
    for rate in rates:
        law = np.convolve(law, [1 - rate, rate])
    return law


def spread_of(shares: Law) -> float:
    """Standard deviation of a law over counts."""
    counts = np.arange(len(shares))
    return math.sqrt(max(0.0, float(shares @ counts**2) - float(shares @ counts) ** 2))


def mean_and_sd(name: str, values: Float[Tensor, " draws"]) -> dict[str, float]:
    """Mean and standard deviation under the names of ``SparsifiedRow``; 0 for one draw."""
    return {
        name: float(values.mean()),
        f"{name}_sd": float(values.double().std(correction=int(len(values) > 1))),
    }
