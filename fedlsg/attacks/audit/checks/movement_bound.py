"""A Chernoff bound on how far units move an output."""

import numpy as np
from jaxtyping import Float

from fedlsg.attacks.audit.checks.check import UnitClaim

THETAS = np.linspace(0.05, 12.0, 240)
"""Values of theta that ``movement_log_p`` tries, in units of 1 / standard error."""


def movement_log_p(
    moved: float | Float[np.ndarray, " k"],
    draws: int,
    claim: UnitClaim,
    noise_variance: float | Float[np.ndarray, " k"],
) -> tuple[Float[np.ndarray, "*k"], Float[np.ndarray, "*k"]]:
    """Log of a Chernoff bound on P(movement >= moved) under the claim; and the standard error.

    With q the sample rate, s_j the claim's shares and v the variance of the noise, the bound is

        min over theta of  draws sum_j log(1 - q + q e^(theta s_j / draws)) + theta^2 v / 2
                           - theta moved

    Each theta gives a bound, so it holds for any number of units, rounds and rate.
    moved: how far units moved an output, in units of their mean addition, so that 1 is expected.
    draws: units times rounds, in each of which a unit takes part with probability q.
    noise_variance: v, of ``moved``.
    """
    q, shares = claim.sample_rate, claim.shares
    error = np.sqrt(np.asarray(noise_variance + claim.draw_variance / draws))
    theta = THETAS / error[..., None]
    log_absent = np.log1p(-q) if q < 1 else -np.inf
    exponents = theta[..., None] * shares / draws
    log_mgf = np.logaddexp(log_absent, np.log(q) + exponents).sum(-1)
    variance = np.asarray(noise_variance)[..., None]
    log_p = draws * log_mgf + theta**2 * variance / 2 - theta * np.asarray(moved)[..., None]
    return log_p.min(-1), error
