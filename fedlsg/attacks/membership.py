"""Was this example in the data? Loss threshold, likelihood ratios from shadow models, matched
filter of a payload.

Loss threshold (Yu et al. 2021, RGP, Table 5): an example whose loss is below a threshold was
trained on. A data set of
equally many training and test examples is halved: one half finds the best threshold, the other
measures how often it is right. 50 % is guessing. Success on average hides what happens to the few:
report LiRA, and low false positive rates.

LiRA (Carlini et al. 2022, Algorithm 1): phi is the scaled confidence log(p / (1 - p)) of the true
class; N shadows are trained with or without an example. Online compares phi of the target with
Gaussians fitted to shadows with and without the example; offline knows only shadows without it.
Several augmented queries of an example are independent dimensions.

Matched filter: g is the example's clipped gradient in the frame, from the client's own code; s =
|g| / noise_std. The score <values, g> / (noise_std |g|) is N(0, 1) without the example and N(s, 1)
with it, where the rest of the batch is known and subtracted. By Neyman and Pearson no other test
has a higher true positive rate at the same false positive rate. Where the clip acts, |g| = C and s
= 1 / sigma_eff: the rate depends on sigma alone, not on method, rank or mask. The rest of an
unknown batch is more noise to the adversary: the closed form bounds what is reached then.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr, ndtri
from scipy.stats import norm
from torch import Tensor

from fedlsg.attacks.metrics import Rate, Roc, clopper_pearson, roc

Scores = Float[np.ndarray, " examples"]


@dataclass(frozen=True, kw_only=True)
class LossThreshold:
    """success: share of right answers on the second half. roc: of all losses, without a threshold.
    examples: in all.
    """

    success: Rate
    threshold: float
    roc: Roc
    examples: int


def loss_threshold(
    member_losses: Float[Tensor, " n"],
    other_losses: Float[Tensor, " m"],
    generator: torch.Generator,
) -> LossThreshold:
    """The paper's protocol on losses of training examples and of others; the larger group is cut
    down at random.

    Raises ValueError for fewer than two of a kind, or a NaN.
    """
    count = min(len(member_losses), len(other_losses))
    if count < 2 or bool(torch.isnan(torch.cat([member_losses, other_losses])).any()):
        raise ValueError(f"expected two losses of each kind at least and no NaN, got {count}")
    members, others = (
        losses[torch.randperm(len(losses), generator=generator)[:count]].double().numpy()
        for losses in (member_losses, other_losses)
    )
    half = count // 2
    threshold = best_threshold(members[:half], others[:half])
    right = int((members[half:] <= threshold).sum() + (others[half:] > threshold).sum())
    return LossThreshold(
        success=clopper_pearson(right, 2 * (count - half)),
        threshold=threshold,
        roc=roc(-members, -others),
        examples=2 * count,
    )


def best_threshold(members: Float[np.ndarray, " n"], others: Float[np.ndarray, " n"]) -> float:
    """The loss below or at which to say "member", most often right; the lowest of several, -inf for
    "never".
    """
    tried = np.concatenate([[-np.inf], np.unique(np.concatenate([members, others]))])
    right = np.searchsorted(np.sort(members), tried, "right") - np.searchsorted(
        np.sort(others), tried, "right"
    )
    return float(tried[int(right.argmax())])


SMALLEST_DEVIATION = 1e-6
ENOUGH_FOR_OWN_VARIANCE = 64
"""Shadows below which one variance for all examples is better than one each (the paper's "fixed
variance").
"""


def scaled_confidence(
    logits: Float[Tensor, "*batch classes"], labels: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """phi = log(p_y / (1 - p_y)) from logits, without rounding to 0 or 1: z_y - logsumexp of the
    other logits.
    """
    chosen = labels.unsqueeze(-1)
    others = logits.scatter(-1, chosen, -torch.inf).logsumexp(-1)
    return logits.gather(-1, chosen).squeeze(-1) - others


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
    _check_shadows(target, shadows, inside, ~inside)
    fixed = len(shadows) < 2 * ENOUGH_FOR_OWN_VARIANCE
    mean_in, std_in = fit_gaussians(shadows, inside, fixed)
    mean_out, std_out = fit_gaussians(shadows, ~inside, fixed)
    return np.asarray(norm.logpdf(target, mean_in, std_in) - norm.logpdf(target, mean_out, std_out))


def lira_offline(
    target: Scores,
    shadows: Float[np.ndarray, "models examples"],
    inside: Bool[np.ndarray, "models examples"],
) -> Scores:
    """log P[shadow without the example is less sure than the target], by a fitted Gaussian; higher
    for members.

    Shadows that were trained with the example, as ``inside`` says, are left out.
    """
    _check_shadows(target, shadows, ~inside)
    mean, std = fit_gaussians(shadows, ~inside, len(shadows) < ENOUGH_FOR_OWN_VARIANCE)
    return np.asarray(norm.logcdf(target, mean, std))


def fit_gaussians(
    shadows: Float[np.ndarray, "models examples"],
    chosen: Bool[np.ndarray, "models examples"],
    fixed: bool,
) -> tuple[Scores, Scores]:
    """Mean and deviation of each example's chosen values; one pooled deviation for all where
    ``fixed``.
    """
    count = chosen.sum(0)
    mean = np.where(chosen, shadows, 0).sum(0) / count
    squares = np.where(chosen, np.square(shadows - mean), 0).sum(0)
    variance = squares.sum() / (count - 1).sum() if fixed else squares / (count - 1)
    return mean, np.maximum(np.sqrt(np.broadcast_to(variance, mean.shape)), SMALLEST_DEVIATION)


def _check_shadows(target: np.ndarray, shadows: np.ndarray, *chosen: np.ndarray) -> None:
    """``chosen``: each kind of shadows that every example needs."""
    if shadows.ndim != 2 or target.shape != shadows.shape[1:] or chosen[0].shape != shadows.shape:
        raise ValueError(
            "expected target (examples,), shadows and inside (models, examples), got "
            f"{target.shape}, {shadows.shape}, {chosen[0].shape}"
        )
    if not np.isfinite(target).all() or not np.isfinite(shadows).all():
        raise ValueError("expected finite confidences: take scaled_confidence of logits")
    fewest = min(int(kind.sum(0).min()) for kind in chosen)
    if fewest < 2:
        raise ValueError(
            f"an example has {fewest} shadow models of a kind, expected 2 at least: train more "
            "shadows"
        )


def closed_form_tpr(fpr: float, effective_noise_multiplier: float) -> float:
    """TPR = Phi(Phi^-1(FPR) + 1 / sigma_eff) of one payload, for an example that the clip acts
    on.
    """
    if not 0 < fpr < 1 or not 0 < effective_noise_multiplier < math.inf:
        raise ValueError(f"expected 0 < {fpr=} < 1 and finite {effective_noise_multiplier=} > 0")
    return float(ndtr(ndtri(fpr) + 1 / effective_noise_multiplier))


def filter_payload(
    values: Float[Tensor, " kept"], g: Float[Tensor, " kept"], noise_std: float
) -> float:
    """<values, g> / (noise_std |g|). Raises ValueError where the quotient is not defined."""
    length = float(g.norm())
    if not noise_std > 0 or length == 0:
        raise ValueError(
            f"expected {noise_std=} > 0 and a gradient that is not zero: the score is not defined"
        )
    return float(values @ g) / (noise_std * length)
