"""A check and its outcome, and the claim that units are held to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

SIGNIFICANCE = 1e-5
"""Probability with which one check accuses correct code, at most."""

Outputs = Float[np.ndarray, "rounds kept"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: whether it passed, and what was found, in words.

    significance: the probability with which correct code is accused, at most.
    error: the standard error of what was measured, in units of what is claimed; 0 of a check that
        has none.
    """

    name: str
    passed: bool
    says: str
    significance: float = SIGNIFICANCE
    error: float = 0.0

    @property
    def powerless(self) -> bool:
        """Whether a check passed that could hardly fail: a breach is within its error.

        The breach is one of the claim's own size.
        """
        return self.passed and self.error > 1

    @property
    def outcome(self) -> str:
        """In a word."""
        return "no power" if self.powerless else "passed" if self.passed else "FAILED"


@dataclass(frozen=True, kw_only=True)
class UnitClaim:
    """What is claimed of a unit's part in the outputs.

    sample_rate: q, the chance to take part in a step.
    noise: the deviation of an output, over what one unit may add to a step.
    weights: of the local steps, how often each counts in an output.
    """

    sample_rate: float
    noise: float
    weights: Sequence[float] = (1.0,)

    @property
    def mean_addition(self) -> float:
        """What a unit adds to an output in the mean, over what it may add to a step."""
        return self.sample_rate * sum(self.weights)

    @property
    def shares(self) -> Float[np.ndarray, " steps"]:
        """What a unit that takes part in a step adds there, over ``mean_addition``."""
        return np.asarray(self.weights) / self.mean_addition

    @property
    def draw_variance(self) -> float:
        """The variance of what a unit adds, over ``mean_addition``, from its Bernoulli draws."""
        q = self.sample_rate
        return q * (1 - q) * float(np.square(self.shares).sum())
