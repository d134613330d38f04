"""Chance level: the better accuracy of uniform guessing and of always predicting the most frequent class.

Both are known from the public test splits alone. ``beats_chance`` decides whether an accuracy is above it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from simulations.workloads import Split

STANDARD_ERRORS = 3.0


@dataclass(frozen=True, kw_only=True)
class Chance:
    """num_classes: uniform guessing has the accuracy 1 / num_classes.

    majority_share: accuracy of the best constant prediction, over the test splits with equal weights.
    test_examples: number of examples whose mean has the same variance; for one test split, its size.
    """

    num_classes: int
    majority_share: float
    test_examples: float

    @property
    def level(self) -> float:
        """The larger accuracy of the two."""
        return max(1 / self.num_classes, self.majority_share)


def chance_of(tests: Mapping[str, Split], num_classes: int) -> Chance:
    """Chance on a workload's test splits, whose accuracies are averaged with equal weights."""
    shares = [torch.bincount(split.labels, minlength=num_classes).double() / len(split) for split in tests.values()]
    effective = len(tests) ** 2 / sum(1 / len(split) for split in tests.values())
    return Chance(
        num_classes=num_classes, majority_share=float(torch.stack(shares).mean(0).max()), test_examples=effective
    )


def standard_error(accuracies: Sequence[float], chance: Chance) -> float:
    """Standard error of the mean accuracy of n seeds: sqrt(sd^2 / n + v / N).

    sd^2 is the sample variance over seeds (0 for n = 1: unknown); v = a (1 - a) is the variance of one of the N test
    examples, at the accuracy reached or at chance, whichever is larger. All seeds share one test split, so more seeds
    shrink the first part only.
    """
    mean, n = statistics.fmean(accuracies), len(accuracies)
    between = statistics.variance(accuracies) / n if n > 1 else 0.0
    binomial = max(a * (1 - a) for a in (mean, chance.level)) / chance.test_examples
    return math.sqrt(between + binomial)


def beats_chance(accuracies: Sequence[float], chance: Chance) -> bool:
    """Whether the mean accuracy is more than three standard errors above chance."""
    return statistics.fmean(accuracies) - chance.level > STANDARD_ERRORS * standard_error(accuracies, chance)
