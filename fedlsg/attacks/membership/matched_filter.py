"""Was this example in the batch? The best test of one payload, and what it can reach in closed form.

Symbols: g the example's clipped gradient in the frame, from the client's own code; s = |g| / noise_std.
The score <values, g> / (noise_std |g|) is N(0, 1) without the example and N(s, 1) with it, where the rest of the batch
is known and subtracted. By Neyman and Pearson no other test has a higher true positive rate at the same false positive
rate. Where the clip acts, |g| = C and s = 1 / sigma_eff: the rate depends on sigma alone, not on method, rank or mask.
The rest of an unknown batch is more noise to the adversary: the closed form bounds what is reached then.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtr, ndtri
from torch import Tensor

from fedlsg.attacks.membership.roc import Rate, clopper_pearson


def closed_form_tpr(fpr: float, effective_noise_multiplier: float) -> float:
    """TPR = Phi(Phi^-1(FPR) + 1 / sigma_eff) of one payload, for an example that the clip acts on."""
    if not 0 < fpr < 1 or not 0 < effective_noise_multiplier < math.inf:
        raise ValueError(f"expected 0 < {fpr=} < 1 and finite {effective_noise_multiplier=} > 0")
    return float(ndtr(ndtri(fpr) + 1 / effective_noise_multiplier))


def filter_payload(values: Float[Tensor, " kept"], g: Float[Tensor, " kept"], noise_std: float) -> float:
    """<values, g> / (noise_std |g|). Raises ValueError where the quotient is not defined."""
    length = float(g.norm())
    if not noise_std > 0 or length == 0:
        raise ValueError(f"expected {noise_std=} > 0 and a gradient that is not zero: the score is not defined")
    return float(values @ g) / (noise_std * length)


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Rates measured on fresh payloads at the threshold Phi^-1(1 - FPR), and the closed form of the TPR."""

    fpr: Rate
    tpr: Rate
    predicted: float


def play(
    payload: Callable[[bool], Float[Tensor, " kept"]],
    g: Float[Tensor, " kept"],
    without: Float[Tensor, " kept"],
    *,
    noise_std: float,
    trials: int,
) -> tuple[Float[np.ndarray, " trials"], Float[np.ndarray, " trials"]]:
    """Scores of ``trials`` fresh payloads with the unit, and of as many without.

    ``payload(present)`` is one payload; ``without``: the known sum of the others; ``g``: what the unit adds to it.
    """
    g, without = g.double(), without.double()
    with_it, others = (
        np.array([filter_payload(payload(present).double() - without, g, noise_std) for _ in range(trials)])
        for present in (True, False)
    )
    return with_it, others


def rates(
    with_it: Float[np.ndarray, " trials"],
    others: Float[np.ndarray, " trials"],
    g: Float[Tensor, " kept"],
    *,
    noise_std: float,
    fpr: float,
    confidence: float = 0.95,
) -> Membership:
    """The rates of scores at the threshold of a false positive rate; the prediction is of the unit's clipped norm."""
    threshold = float(ndtri(1 - fpr))
    return Membership(
        fpr=clopper_pearson(int((others > threshold).sum()), len(others), confidence),
        tpr=clopper_pearson(int((with_it > threshold).sum()), len(with_it), confidence),
        predicted=closed_form_tpr(fpr, noise_std / float(torch.linalg.vector_norm(g.double()))),
    )
