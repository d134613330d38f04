"""Checks of the accountants' numbers: ``checked_...`` return the number, or raise ValueError."""

import math
import operator

from fedlsg.config import check_real

MAX_STEPS = 2**53
"""Most steps of an event: every integer up to it is a float."""


def checked_sample_rate(sample_rate: float) -> float:
    """A Poisson rate q. Raises ValueError unless 0 < q <= 1."""
    check_real(sample_rate=sample_rate)
    if not 0 < sample_rate <= 1:
        raise ValueError(
            f"expected 0 < {sample_rate=} <= 1: the chance that one example enters a batch (1 = "
            "full batch)"
        )
    return float(sample_rate)


def checked_noise_multiplier(noise_multiplier: float) -> float:
    """A noise multiplier sigma. Raises ValueError unless it is finite and above 0."""
    check_real(noise_multiplier=noise_multiplier)
    if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        raise ValueError(
            f"expected a finite {noise_multiplier=} > 0: without noise epsilon is infinite, with "
            "infinite noise nothing is learned; calibrate it to a target epsilon or use a "
            "mechanism that claims no privacy"
        )
    return float(noise_multiplier)


def checked_steps(steps: int) -> int:
    """A number of steps. Raises ValueError unless it is an integer from 1 to ``MAX_STEPS``."""
    try:
        count = operator.index(steps)
    except TypeError:
        raise ValueError(f"expected an integer {steps=}: the number of noisy steps") from None
    if isinstance(steps, bool) or not 1 <= count <= MAX_STEPS:
        raise ValueError(
            f"expected an integer {steps=} from 1 to 2^53: an event without a step is left out, "
            "not entered"
        )
    return count


def checked_log_ratio(log_ratio: float) -> float:
    """Lambda of an event. Raises ValueError unless it is finite and not negative."""
    check_real(log_ratio=log_ratio)
    if not 0 <= log_ratio < math.inf:
        raise ValueError(
            f"expected a finite {log_ratio=} >= 0: how far the logarithm of the ratio of the "
            "release's law and the Gaussian one can be from 0; if it is infinite, take a finer grid"
        )
    return float(log_ratio)


def checked_delta(delta: float) -> float:
    """A delta. Raises ValueError unless 0 < delta < 1."""
    check_real(delta=delta)
    if not 0 < delta < 1:
        raise ValueError(
            f"expected 0 < {delta=} < 1: take less than 1 / number of examples, such as 1e-5"
        )
    return float(delta)


def checked_epsilon(epsilon: float) -> float:
    """A target epsilon. Raises ValueError unless it is finite and above 0."""
    check_real(epsilon=epsilon)
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(
            f"expected a finite {epsilon=} > 0: the privacy budget; train without a mechanism for "
            "no privacy"
        )
    return float(epsilon)


def check_delta(delta: float, num_examples: int) -> None:
    """Refuse a delta at which publishing one example at random would count as private.

    ``checked_delta`` has no number of examples, and accepts every probability.

    Raises ValueError unless 0 < delta < 1 / num_examples.
    """
    checked_delta(delta)
    if num_examples < 1:
        raise ValueError(f"expected {num_examples=} >= 1: a client without examples does not train")
    if delta >= 1 / num_examples:
        raise ValueError(
            f"expected {delta=} < 1 / {num_examples=} = {1 / num_examples:.3g}: at a larger delta "
            "releasing one whole example would pass as private; lower delta"
        )
