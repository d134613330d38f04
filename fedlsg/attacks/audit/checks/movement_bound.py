"""A Chernoff bound on how far units move an output."""

import numpy as np
from jaxtyping import Float

from fedlsg.attacks.audit.checks.check import UnitClaim

SLOPES = np.linspace(0.05, 12.0, 240)
"""Of the exponentials that ``movement_log_p`` tries, in 1 / standard error."""


def movement_log_p(
    moved: float | Float[np.ndarray, " k"],
    draws: int,
    claim: UnitClaim,
    noise_variance: float | Float[np.ndarray, " k"],
) -> tuple[Float[np.ndarray, "*k"], Float[np.ndarray, "*k"]]:
    """Log of a bound on the probability to move so far if the claim is true; and the standard
    error.

    Chernoff: the sum of Bernoulli draws and normal noise has known moments, and each of ``SLOPES``
    gives a bound, of which the least is taken. It holds for any number of units, rounds and rate.
    moved: how far units moved an output, over what they add in the mean.
    draws: units times rounds, in each of which a unit takes part with probability q.
    noise_variance: of ``moved``.
    """
    q, shares = claim.sample_rate, claim.shares
    error = np.sqrt(np.asarray(noise_variance + claim.draw_variance / draws))
    t = SLOPES / error[..., None]
    absent = np.log1p(-q) if q < 1 else -np.inf
    slopes = t[..., None] * shares / draws
    moments = np.logaddexp(absent, np.log(q) + slopes).sum(-1)
    variance, moved = np.asarray(noise_variance)[..., None], np.asarray(moved)[..., None]
    return (draws * moments + t**2 * variance / 2 - t * moved).min(-1), error
