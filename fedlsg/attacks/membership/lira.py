"""LiRA: a likelihood ratio for each example from shadow models (Carlini et al. 2022, Algorithm 1).

Symbols: phi the scaled confidence log(p / (1 - p)) of the true class; N shadows trained with or without an example.
Online compares phi of the target with Gaussians fitted to shadows that were trained with and without the example;
offline knows only shadows without it. Several augmented queries of an example are independent dimensions.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import norm
from torch import Tensor

SMALLEST_DEVIATION = 1e-6
ENOUGH_FOR_OWN_VARIANCE = 64
"""Shadows below which one variance for all examples is better than one each (the paper's "fixed variance")."""


def scaled_confidence(
    logits: Float[Tensor, "*batch classes"], labels: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """phi = log(p_y / (1 - p_y)) from logits, without rounding to 0 or 1: z_y - logsumexp of the other logits."""
    chosen = labels.unsqueeze(-1)
    others = logits.scatter(-1, chosen, -torch.inf).logsumexp(-1)
    return logits.gather(-1, chosen).squeeze(-1) - others


def online(
    target: Float[np.ndarray, " examples"],
    shadows: Float[np.ndarray, "models examples"],
    inside: Bool[np.ndarray, "models examples"],
    *,
    fixed_variance: bool | None = None,
) -> Float[np.ndarray, " examples"]:
    """log N(phi; in) - log N(phi; out) of each example; higher means more likely a member.

    ``inside`` says which shadow was trained with which example. ``fixed_variance`` shares one variance over the
    examples; None decides by the number of shadows.
    Raises ValueError where an example has fewer than two shadows of either kind, or a value is not finite.
    """
    fixed = fixed_variance if fixed_variance is not None else len(shadows) < 2 * ENOUGH_FOR_OWN_VARIANCE
    _check(target, shadows, inside)
    mean_in, std_in = fit(shadows, inside, fixed)
    mean_out, std_out = fit(shadows, ~inside, fixed)
    return np.asarray(norm.logpdf(target, mean_in, std_in) - norm.logpdf(target, mean_out, std_out))


def offline(
    target: Float[np.ndarray, " examples"],
    shadows: Float[np.ndarray, "models examples"],
    inside: Bool[np.ndarray, "models examples"] | None = None,
    *,
    fixed_variance: bool | None = None,
) -> Float[np.ndarray, " examples"]:
    """log P[shadow without the example is less sure than the target], by a Gaussian fit; higher for members.

    Shadows that were trained with the example, as ``inside`` says, are left out.
    """
    inside = np.zeros(shadows.shape, dtype=bool) if inside is None else inside
    fixed = fixed_variance if fixed_variance is not None else len(shadows) < ENOUGH_FOR_OWN_VARIANCE
    _check(target, shadows, inside, both=False)
    mean, std = fit(shadows, ~inside, fixed)
    return np.asarray(norm.logcdf(target, mean, std))


def fit(
    shadows: Float[np.ndarray, "models examples"], chosen: Bool[np.ndarray, "models examples"], fixed: bool
) -> tuple[Float[np.ndarray, " examples"], Float[np.ndarray, " examples"]]:
    """Mean and deviation of each example's chosen values; one pooled deviation for all where ``fixed``."""
    count = chosen.sum(0)
    mean = np.where(chosen, shadows, 0).sum(0) / count
    squares = np.where(chosen, np.square(shadows - mean), 0).sum(0)
    variance = squares.sum() / (count - 1).sum() if fixed else squares / (count - 1)
    return mean, np.maximum(np.sqrt(np.broadcast_to(variance, mean.shape)), SMALLEST_DEVIATION)


def _check(target: np.ndarray, shadows: np.ndarray, inside: np.ndarray, *, both: bool = True) -> None:
    if shadows.ndim != 2 or target.shape != shadows.shape[1:] or inside.shape != shadows.shape:
        raise ValueError(
            f"expected target (examples,), shadows and inside (models, examples), got {target.shape}, "
            f"{shadows.shape}, {inside.shape}"
        )
    if not np.isfinite(target).all() or not np.isfinite(shadows).all():
        raise ValueError("expected finite confidences: take scaled_confidence of logits")
    fewest = min(int((~inside).sum(0).min()), int(inside.sum(0).min()) if both else 2)
    if fewest < 2:
        raise ValueError(f"an example has {fewest} shadow models of a kind, expected 2 at least: train more shadows")
