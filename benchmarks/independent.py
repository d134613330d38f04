"""A bound from canaries whose scores are independent: both errors of one test (Nasr et al. 2023, section 5).

Symbols: m canaries, score s_i > 0 says "in"; a, b false positive and false negative rates; mu of Gaussian DP.
Any test on the output of a mu-GDP mechanism has Phi^-1(1 - a) - Phi^-1(b) <= mu. The one-run bounds need no
independence, and are loose for it. Here it is assumed: of canaries in runs of their own, or isolated by the weights.
Where it fails the confidence is not what it says: an auditor who knows all other canaries, and scores 100 equal ones of
each run, is above the truth in up to a quarter of all audits. Subsampled mechanisms (q < 1) are not mu-GDP.
"""

import math

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from fedlsg.attacks.audit.bounds import gaussian_epsilon
from fedlsg.attacks.metrics import clopper_pearson


def independent_epsilon(
    scores: Float[np.ndarray, " m"], included: Bool[np.ndarray, " m"], *, delta: float, significance: float
) -> float:
    """A lower bound on epsilon at ``delta`` of a mechanism that is Gaussian DP, at ``1 - significance`` confidence.

    ``scores``: log likelihood ratios under the claim; the threshold is 0, whatever the data are. Both rates have
    Clopper-Pearson upper bounds, which share the significance. 0 where nothing is shown. Raises ValueError where all
    canaries are in, or all out.
    """
    errors = {"out": scores[~included] > 0, "in": scores[included] <= 0}
    if not all(len(wrong) for wrong in errors.values()):
        raise ValueError("expected canaries of both kinds: all are in or all are out, take more canaries")
    a, b = (clopper_pearson(int(wrong.sum()), len(wrong), 1 - significance).high for wrong in errors.values())
    mu = float(ndtri(1 - a) - ndtri(b))
    return gaussian_epsilon(mu, delta) if mu > 0 and math.isfinite(mu) else 0.0
