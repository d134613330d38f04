"""LiRA (Carlini et al. 2022, Algorithm 1): a likelihood ratio from shadow models.

phi is the scaled confidence log(p / (1 - p)) of the true class; N shadows are trained with or
without an example. Online compares phi of the target with Gaussians fitted to shadows with and
without the example; offline knows only shadows without it.
"""

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import norm

from fedlsg.attacks.membership.answers import Answers, Attack, Scores

SMALLEST_DEVIATION = 1e-6
ENOUGH_FOR_OWN_VARIANCE = 64
"""Shadows of one kind (with or without an example) below which one variance for all examples is
better than one each (the paper's "fixed variance").
"""


def lira_online(
    target: Scores,
    shadows: Float[np.ndarray, "models examples"],
    inside: Bool[np.ndarray, "models examples"],
) -> Scores:
    """log N(phi; in) - log N(phi; out) of each example; higher means more likely a member.

    ``inside`` says which shadow was trained with which example.
    Raises ValueError where an example has fewer than two shadows of either kind, or a value is not
    finite.
    """
    _check_shadows(target, shadows, inside, (inside, ~inside))
    fixed = len(shadows) < 2 * ENOUGH_FOR_OWN_VARIANCE  # half of them are of each kind
    mean_in, std_in = fit_gaussians(shadows, inside, fixed)
    mean_out, std_out = fit_gaussians(shadows, ~inside, fixed)
    return np.asarray(norm.logpdf(target, mean_in, std_in) - norm.logpdf(target, mean_out, std_out))


def lira_offline(
    target: Scores,
    shadows: Float[np.ndarray, "models examples"],
    inside: Bool[np.ndarray, "models examples"],
) -> Scores:
    """log P[a shadow without the example is less sure than the target]; higher for members.

    By a fitted Gaussian.
    Shadows that were trained with the example, as ``inside`` says, are left out. Raises as
    ``lira_online``, for shadows without the example alone.
    """
    _check_shadows(target, shadows, inside, (~inside,))
    fixed = bool((~inside).sum(0).mean() < ENOUGH_FOR_OWN_VARIANCE)
    mean, std = fit_gaussians(shadows, ~inside, fixed)
    return np.asarray(norm.logcdf(target, mean, std))


def fit_gaussians(
    shadows: Float[np.ndarray, "models examples"],
    chosen: Bool[np.ndarray, "models examples"],
    fixed: bool,
) -> tuple[Scores, Scores]:
    """Mean and deviation of each example's chosen values.

    One pooled deviation for all if ``fixed``.
    """
    count = chosen.sum(0)
    mean = np.where(chosen, shadows, 0).sum(0) / count
    squares = np.where(chosen, np.square(shadows - mean), 0).sum(0)
    variance = squares.sum() / (count - 1).sum() if fixed else squares / (count - 1)
    return mean, np.maximum(np.sqrt(np.broadcast_to(variance, mean.shape)), SMALLEST_DEVIATION)


def _check_shadows(
    target: np.ndarray, shadows: np.ndarray, inside: np.ndarray, kinds: tuple[np.ndarray, ...]
) -> None:
    """``kinds``: which shadows are of each kind that every example needs."""
    if shadows.ndim != 2 or target.shape != shadows.shape[1:] or inside.shape != shadows.shape:
        raise ValueError(
            "expected target (examples,), shadows and inside (models, examples), got "
            f"{target.shape}, {shadows.shape}, {inside.shape}"
        )
    if not np.isfinite(target).all() or not np.isfinite(shadows).all():
        raise ValueError("expected finite confidences: take scaled_confidence of logits")
    fewest = min(int(kind.sum(0).min()) for kind in kinds)
    if fewest < 2:
        raise ValueError(
            f"an example has {fewest} shadow models of a kind, expected 2 at least: train more "
            "shadows"
        )


def _online(answers: Answers) -> Scores:
    return lira_online(answers.target, answers.shadows, answers.inside)


def _offline(answers: Answers) -> Scores:
    return lira_offline(answers.target, answers.shadows, answers.inside)


ATTACKS = (
    Attack(name="LiRA offline", score=_offline, needs=("shadows",)),
    Attack(name="LiRA online", score=_online, needs=("shadows",)),
)
