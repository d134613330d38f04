"""What random sparsification does to noise and gradients: Figs. 1c, 1d, 6-9 and 12 of Zhu and
Blaschko 2023 (RS).

Symbols: d coordinates, p the sparsification rate, m a mask that keeps d - floor(p d) of them, g_i
the gradient of example i, g its mean over examples, xi_i = g_i - g its deviation, C the clip norm,
n Gaussian noise in d coordinates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.stats import kstest
from torch import Tensor

from fedlsg.masks.freezing import uniform
from fedlsg.randomness import public_generator
from fedlsg.simulations.inspection import Rows, Subject, passes, unmasked
from fedlsg.simulations.storage.atomic_files import load_array
from fedlsg.simulations.storage.updates import round_folder

DRAWS, VALUES = 5, 5 * 10**7
"""Masks of each rate at most, and values of all masks: a large model gets fewer."""
DIRECTIONS = 64
"""Random directions, in pairs: the first pair is drawn, all are tested for symmetry."""


Law = Float[np.ndarray, " counts"]
"""Shares by how often something happened."""


@dataclass(frozen=True, kw_only=True)
class SparsifiedRow:
    """One rate. Means over ``DRAWS`` masks with their standard deviations.

    noise: ||m n|| / ||n|| (Fig. 1c); ``expected_noise`` is sqrt(1 - p).
    relaxed: ||mean clip(m g_i)|| over ||m mean clip(g_i)||: how much longer the clip leaves the
        coordinates that are kept (Fig. 1d). It is at most 1 / sqrt(1 - p) if all examples are
        clipped and their energy is spread evenly.
    kept: ||mean clip(m g_i)|| over ||mean clip(g_i)||, what is left of the whole.
    The last two are NaN without a clip, and ``noise`` is NaN without noise.
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
    """Deviations of examples on random directions (Figs. 6-9): ``plane`` (n, 2) on the first two of
    them.

    asymmetry: mean over directions of the Kolmogorov-Smirnov distance between what deviations are
        there and the same with the sign turned.
    ``chance``, ``chance_95``: mean and 95 % quantile of that distance if the signs were random, as
        in a symmetric law.
    skewness: mean of the absolute third standardised moment, and what random signs have.
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
    """How often coordinates were frozen over ``masks`` masks (Fig. 12): share by count, and that of
    independent ones.

    distance: total variation between the two; ``ranking``: how the masks were chosen.
    """

    ranking: str
    masks: int
    shares: Law
    expected: Law

    @property
    def distance(self) -> float:
        return float(np.abs(self.shares - self.expected).sum() / 2)

    @property
    def mean(self) -> float:
        return float(self.shares @ np.arange(len(self.shares)))

    @property
    def sd(self) -> float:
        return spread_of(self.shares)

    @property
    def expected_sd(self) -> float:
        return spread_of(self.expected)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sparsified:
    """All of it; ``counts`` None where the masks are not known."""

    rows: Sequence[SparsifiedRow]
    deviations: Sequence[Deviations]
    counts: Counts | None

    @property
    def measured(self) -> tuple[bool, bool]:
        """Whether the run has noise, and whether it clips."""
        first = self.rows[0]
        return not math.isnan(first.noise), not math.isnan(first.relaxed)


def sparsified(subject: Subject, rows: Rows, sparsities: Sequence[float]) -> Sparsified | None:
    """Measure at W_t; None for methods whose mask is not uniformly random over all coordinates."""
    mask, mechanism = subject.base.method.mask, subject.base.method.mechanism
    if mask.kind != "uniform":
        return None
    wanted = sorted({*sparsities, mask.sparsity})
    frame = unmasked(subject.frame)
    generator = public_generator(subject.state.seed, "inspect", "sparsified")
    size = frame.size
    draws = max(1, min(DRAWS, VALUES // (len(wanted) * size)))
    many = max(2, min(DIRECTIONS, VALUES // (2 * size)))
    masks = torch.stack([keep(size, p, generator) for p in wanted for _ in range(draws)])
    directions = torch.randn(many, size, generator=generator) / size**0.5
    shown = masks[wanted.index(mask.sparsity) * draws]
    views = torch.cat([directions, directions * shown]).T
    clip_norm = mechanism.clip_norm if mechanism.clips else math.nan
    every, seen = torch.cat([torch.ones(1, size), masks]), []
    sums = torch.zeros(every.shape, dtype=torch.float64)
    for blocks in passes(subject, frame, rows):
        g = torch.cat([block.detach().cpu().float() for block in blocks], dim=1)
        g = g[g.isfinite().all(1)]
        seen.append(g @ views)
        norms = (g.square() @ every.T).sqrt()
        factors = (clip_norm / norms.clamp_min(1e-30)).clamp_max(1.0)
        sums += (factors.T @ g).double()
    clipped = sums[1:] * masks
    relaxed = clipped.norm(dim=1) / (sums[0] * masks).norm(dim=1)
    kept = clipped.norm(dim=1) / sums[0].norm()
    noise = torch.randn(masks.shape, generator=generator)
    ratios = (noise * masks).norm(dim=1) / noise.norm(dim=1)
    if not mechanism.adds_noise:
        ratios = ratios * math.nan
    by_rate = (values.view(-1, draws) for values in (ratios, relaxed, kept))
    table = [
        SparsifiedRow(
            sparsity=p,
            expected_noise=(1 - p) ** 0.5,
            **_moments("noise", of_noise),
            **_moments("relaxed", of_relaxed),
            **_moments("kept", of_kept),
        )
        for p, of_noise, of_relaxed, of_kept in zip(wanted, *by_rate, strict=True)
    ]
    signs = np.random.default_rng(subject.state.seed)
    both = zip((0.0, mask.sparsity), torch.cat(seen).split(many, dim=1), strict=True)
    spread = [deviations(p, z.numpy(), signs) for p, z in both]
    return Sparsified(rows=table, deviations=spread, counts=mask_counts(subject))


def keep(total: int, rate: float, generator: torch.Generator) -> Float[Tensor, " d"]:
    """A mask as the method draws it: 1 where a coordinate is kept."""
    mask = torch.zeros(total)
    mask[uniform(total, rate, generator=generator)] = 1
    return mask


def deviations(
    sparsity: float, projected: Float[np.ndarray, "n m"], signs: np.random.Generator
) -> Deviations:
    """How symmetric the deviations from the mean are on each of m directions."""
    z = projected.astype(np.float64)
    z -= z.mean(0)
    turned = z * signs.choice([-1.0, 1.0], size=z.shape)
    asymmetries, chance = ([asymmetry(column) for column in part.T] for part in (z, turned))
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
    """Third standardised moment about 0 by column; 0 where all are 0."""
    spread = np.sqrt(np.mean(values**2, axis=0))
    return np.asarray(np.mean(values**3, axis=0) / np.maximum(spread, 1e-100) ** 3)


def mask_counts(subject: Subject) -> Counts | None:
    """Counts over the epochs of a run so far, or of the whole schedule where there is no run.

    None after fewer than two masks, and for masks by ranking unless the run has recorded them.
    """
    base = subject.base
    mask, schedule = base.method.mask, base.schedule
    last = schedule.rounds if subject.run is None else subject.state.round
    steps = {
        r if mask.redraw == "step" else mask.draw(schedule.time(r))[0]: r
        for r in range(last, 0, -1)
    }
    rounds = sorted(steps.values())
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
        expected=of_independent(rates),
    )


def kept_in(subject: Subject, round: int) -> Int64[Tensor, " k"] | None:
    """Positions that a round kept: recorded, where the server chose them, or drawn again from the
    public seed.
    """
    if subject.base.method.mask.ranking == "random":
        public = subject.state.public
        frame = public.frame(
            round, updates=subject.state.updates, basis=subject.state.basis_of(round)
        )
        return frame.indices.cpu()
    path = None if subject.run is None else round_folder(subject.run, round) / "kept.npy"
    return torch.from_numpy(load_array(path)) if path is not None and path.exists() else None


def of_independent(rates: Sequence[float]) -> Law:
    """How often something happens that has these chances, independently: the Poisson binomial
    law.
    """
    law = np.ones(1)
    for rate in rates:
        law = np.convolve(law, [1 - rate, rate])
    return law


def spread_of(shares: Law) -> float:
    """Standard deviation of a law over counts."""
    counts = np.arange(len(shares))
    return math.sqrt(max(0.0, float(shares @ counts**2) - float(shares @ counts) ** 2))


def _moments(name: str, values: Float[Tensor, " draws"]) -> dict[str, float]:
    return {
        name: float(values.mean()),
        f"{name}_sd": float(values.double().std(correction=int(len(values) > 1))),
    }
