"""Membership in what clients sent: the matched filter of one payload, and its sum over rounds.

g is the example's clipped gradient in the frame, from the client's own code; s = |g| / noise_std.
The score <values, g> / (noise_std |g|) is N(0, 1) without the example and N(s, 1) with it, where
the rest of the batch is known and subtracted. By Neyman and Pearson no other test has a higher true
positive rate at the same false positive rate. Where the clip acts, |g| = C and s = 1 / sigma_eff:
the rate depends on sigma alone, not on method, rank or mask. The rest of an unknown batch is more
noise to the adversary: the closed form bounds what is reached then.

Over T rounds of one client, each with its own public weights, frame and noise:
    score = sum_t <values_t - rest_t, g_t> / noise_t^2 / sqrt(sum_t |g_t|^2 / noise_t^2)
It is N(0, 1) without the example and N(sqrt(sum_t s_t^2), 1) with it, if it was in every batch and
rest_t is known: T rounds of sigma are one of sigma / sqrt(T), which is how the ledger composes
them. A Poisson rate q leaves it out of most batches, and the mean is about q of that.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.special import ndtr, ndtri
from torch import Tensor


def closed_form_tpr(fpr: float, effective_noise_multiplier: float) -> float:
    """TPR = Phi(Phi^-1(FPR) + 1 / sigma_eff) of one payload.

    For an example that the clip shortens.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenRound:
    """One payload of a client, and what each candidate would have added to it.

    received: the payload less what is known or expected of the rest of its batch.
    """

    received: Float[Tensor, " kept"]
    gradients: Float[Tensor, "candidates kept"]
    noise_std: float


def sum_rounds(rounds: Iterable[SeenRound]) -> Float[Tensor, " candidates"]:
    """The score of T rounds for each candidate, float64; 0 for one without a gradient.

    Rounds without noise count alike, for there is no deviation to weigh them by.
    Raises ValueError for no round, and for noise in some rounds only.
    """
    score = energy = torch.zeros((), dtype=torch.float64)
    noisy = set()
    for filtered in rounds:
        noisy.add(filtered.noise_std > 0)
        weight = filtered.noise_std**-2 if filtered.noise_std > 0 else 1.0
        G = filtered.gradients.double()
        score = score + weight * (G @ filtered.received.double())
        energy = energy + weight * G.square().sum(1)
    if len(noisy) != 1:
        raise ValueError(
            f"expected noise in all rounds or in none, got {'some' if noisy else 'no round'}"
        )
    return torch.where(energy > 0, score / energy.sqrt(), 0.0)
