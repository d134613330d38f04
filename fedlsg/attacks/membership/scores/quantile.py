"""Quantile regression on public rows (QMIA; Bertran et al. 2023): no shadow models.

A regression finds from public rows how high phi is for a row with these features if no model was
trained on it. A candidate far above the quantile of its own features was trained on.
    score(x) = (phi(x) - q_50(x)) / (q_90(x) - q_50(x))
Differs from the paper: linear regressions on the class and the outputs of the public model before
private training, in place of a network on pixels, and two quantiles, which give a threshold for
each false positive rate.
"""

import numpy as np
from jaxtyping import Float

from fedlsg.attacks.membership.answers import Answers, Attack, Scores
from fedlsg.extras import of_extra

MIDDLE, UPPER = 0.5, 0.9
PENALTY = 1e-3
"""Weight of the L1 norm of coefficients, of standardized features."""
LEAST_WIDTH = 0.1
"""Of q_90 - q_50, as a share of its median over the candidates: lines of quantiles may cross."""


def regressed(
    phi: Float[np.ndarray, " public"],
    features: Float[np.ndarray, "public features"],
    wanted: Float[np.ndarray, "candidates features"],
    quantile: float,
) -> Scores:
    """The quantile of phi at the wanted features, by the pinball loss on public rows."""
    with of_extra("attacks", "quantile attacks"):
        from sklearn.linear_model import QuantileRegressor  # takes a second to import

    mean, width = features.mean(0), features.std(0)
    width = np.where(width > 0, width, 1.0)
    model = QuantileRegressor(quantile=quantile, alpha=PENALTY, solver="highs")
    model.fit((features - mean) / width, phi)
    return np.asarray(model.predict((wanted - mean) / width))


def score(answers: Answers) -> Scores:
    """How far phi is above the median of rows alike, in widths of their upper half."""
    public = answers.public
    assert public is not None
    middle, upper = (
        regressed(public.target, public.features, public.features_of_candidates, quantile)
        for quantile in (MIDDLE, UPPER)
    )
    width = upper - middle
    least = max(LEAST_WIDTH * float(np.median(width)), np.finfo(np.float64).tiny ** 0.5)
    return np.asarray((answers.target - middle) / np.maximum(width, least))


ATTACKS = (Attack(name="quantile regression", score=score, needs=("public",)),)
