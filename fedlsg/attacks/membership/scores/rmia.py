"""RMIA (Zarifzadeh et al. 2024): an example is compared with public rows.

Symbols: p(x|t) probability of the true class of x under the target, p(x) its mean over models that
have x and models that do not, z public rows.
    ratio(x) = p(x|t) / p(x)        score(x) = share of z with ratio(x) / ratio(z) >= GAMMA
Online, p(x) is the mean over all shadows: half of them have x, and none has z. Offline only shadows
without x are read, p_out(x), and p(x) = ((1 + A) p_out(x) + 1 - A) / 2. Without shadow models p_out
is that of the public model before private training: weaker, and it costs nothing.
Differs from the paper: one query of each row, the softmax as it is (no Taylor form).
"""

import numpy as np
from jaxtyping import Float

from fedlsg.attacks.membership.answers import Answers, Attack, Scores, log_likelihood

GAMMA = 1.0
"""The least that the paper allows: one set of z orders all x alike at every gamma, and a larger one
ties more of them at 0.
"""
A = 0.3
"""How much of p_out is in p_in = A p_out + 1 - A: the paper's value for images."""

Probabilities = Float[np.ndarray, "*shape"]


def rmia(
    target: Scores, marginal: Scores, public: Probabilities, public_marginal: Probabilities
) -> Scores:
    """The score from probabilities: p(x|t), p(x), p(z|t), p(z)."""
    ratios = np.sort(public / public_marginal)
    smaller: Scores = np.searchsorted(ratios, target / marginal / GAMMA, "right") / len(ratios)
    return smaller


def from_outside(outside: Probabilities) -> Probabilities:
    """p(x) of the offline form, from the mean probability under models without x."""
    return ((1 + A) * outside + 1 - A) / 2


def _probability(phi: Probabilities) -> Probabilities:
    likelihood: Probabilities = np.exp(log_likelihood(phi))
    return likelihood


def online(answers: Answers) -> Scores:
    """Over all shadows; public rows are in none of them."""
    assert answers.public is not None
    shadows, public = _probability(answers.shadows), _probability(answers.public.shadows)
    with_x = np.where(answers.inside, shadows, 0).sum(0) / answers.inside.sum(0)
    without = np.where(answers.inside, 0, shadows).sum(0) / (~answers.inside).sum(0)
    return rmia(
        _probability(answers.target),
        (with_x + without) / 2,
        _probability(answers.public.target),
        public.mean(0),
    )


def offline(answers: Answers) -> Scores:
    """Over the shadows without x."""
    assert answers.public is not None
    shadows, public = _probability(answers.shadows), _probability(answers.public.shadows)
    without = np.where(answers.inside, 0, shadows).sum(0) / (~answers.inside).sum(0)
    return rmia(
        _probability(answers.target),
        from_outside(without),
        _probability(answers.public.target),
        from_outside(public.mean(0)),
    )


def before_training(answers: Answers) -> Scores:
    """Without shadow models: the public model before private training is the only reference."""
    public = answers.public
    assert public is not None
    return rmia(
        _probability(answers.target),
        from_outside(_probability(public.first_of_candidates)),
        _probability(public.target),
        from_outside(_probability(public.first)),
    )


ATTACKS = (
    Attack(name="RMIA, no shadows", score=before_training, needs=("public",)),
    Attack(name="RMIA offline", score=offline, needs=("shadows", "public")),
    Attack(name="RMIA online", score=online, needs=("shadows", "public")),
)
