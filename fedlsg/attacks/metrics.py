"""How near a guess is to the truth, for images and for texts. Used in reports only.

Symbols: B examples; the range is the public width of the values (``Prior.span``), never that of the
given images.
"""

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from scipy.stats import t as student_t
from torch import Tensor
from torch.nn import functional as F

Images = Float[Tensor, "batch c h w"]
Examples = Float[Tensor, "batch *shape"]

SSIM_WINDOW = 7
"""Pixels of a window's side."""
K1, K2 = 0.01, 0.03
"""Constants of SSIM: they keep its denominators away from 0."""


def psnr(guess: Examples, truth: Examples, *, data_range: float) -> Float[Tensor, " batch"]:
    """10 log10(range^2 / mean squared error) of each example, in dB.

    Infinite for equal examples, NaN for unknown values.
    """
    _check_alike(guess, truth, data_range)
    error = (guess.double() - truth.double()).square().flatten(1).mean(1)
    return 10 * torch.log10(data_range**2 / error)


def ssim(guess: Images, truth: Images, *, data_range: float) -> Float[Tensor, " batch"]:
    """Mean structural similarity of each image, at most 1.

    Over 7x7 windows and channels (Wang et al. 2004).
    Agrees with ``skimage.metrics.structural_similarity`` at its defaults: equal weights in a
    window, sample covariances, windows inside the image only. Raises ValueError for an image that
    is smaller than a window.
    """
    _check_alike(guess, truth, data_range)
    if guess.ndim != 4 or min(guess.shape[2:]) < SSIM_WINDOW:
        raise ValueError(
            f"expected images (batch, channels, height, width) of {SSIM_WINDOW} pixels or more a "
            f"side, got shape {tuple(guess.shape)}: a window does not fit in"
        )
    x, y = guess.double(), truth.double()
    mean_x, mean_y = _window_mean(x), _window_mean(y)
    unbiased = SSIM_WINDOW**2 / (SSIM_WINDOW**2 - 1)
    var_x = unbiased * (_window_mean(x * x) - mean_x**2)
    var_y = unbiased * (_window_mean(y * y) - mean_y**2)
    covariance = unbiased * (_window_mean(x * y) - mean_x * mean_y)
    c1, c2 = (K1 * data_range) ** 2, (K2 * data_range) ** 2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * covariance + c2) / (var_x + var_y + c2)
    return (luminance * structure).flatten(1).mean(1)


def _window_mean(images: Tensor) -> Tensor:
    return F.avg_pool2d(images, SSIM_WINDOW, stride=1)


def _check_alike(guess: Tensor, truth: Tensor, data_range: float) -> None:
    if guess.shape != truth.shape or guess.ndim < 2:
        raise ValueError(
            f"expected guess and truth of one shape, batch first, got {tuple(guess.shape)} and "
            f"{tuple(truth.shape)}"
        )
    if not 0 < data_range < math.inf:
        raise ValueError(
            f"expected finite {data_range=} > 0: the public width of the range of values"
        )


def best_matching(
    cost: Float[Tensor, "guesses truths"],
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """(guess, truth) positions of the pairing of least total cost, truths ascending.

    A batch has no order.
    Every one of the smaller side is paired. Raises ValueError for costs that are not finite.
    """
    if not bool(torch.isfinite(cost).all()):
        raise ValueError(
            "expected finite costs: fill in what a guess leaves unknown before it is paired"
        )
    truths, guesses = linear_sum_assignment(cost.detach().double().cpu().numpy().T)
    return torch.from_numpy(guesses), torch.from_numpy(truths)


def squared_errors(
    guess: Float[Tensor, "guesses *shape"], truth: Float[Tensor, "truths *shape"]
) -> Float[Tensor, "guesses truths"]:
    """Mean squared error of each guess against each truth: the cost by which images are paired."""
    return (guess.double().flatten(1).unsqueeze(1) - truth.double().flatten(1)).square().mean(2)


def token_recall(
    guess: Sequence[int], truth: Sequence[int], *, ignored: Set[int] = frozenset()
) -> float:
    """Share of the truth's tokens, counted with repeats and in any order, that the guess holds.

    ``ignored`` tokens (padding, begin, end) count on neither side. NaN where nothing is left of the
    truth.
    """
    wanted = Counter(_without(truth, ignored))
    if not wanted:
        return math.nan
    return (wanted & Counter(guess)).total() / wanted.total()


def _without(tokens: Sequence[int], ignored: Set[int]) -> list[int]:
    return [token for token in tokens if token not in ignored]


def exact_match(
    guess: Sequence[int], truth: Sequence[int], *, ignored: Set[int] = frozenset()
) -> bool:
    """Whether the guess is the truth token by token, in order.

    ``ignored`` tokens are left out of both.
    """
    return _without(guess, ignored) == _without(truth, ignored)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean and the ends of its confidence interval."""

    mean: float
    low: float
    high: float
    confidence: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def mean_interval(values: Float[Tensor, " n"], *, confidence: float = 0.95) -> Interval:
    """Student's two-sided confidence interval of the mean of independent values.

    For example of paired gains in dB.
    For means that are about normal. Raises ValueError for fewer than two values, and for values
    that are not finite.
    """
    if values.ndim != 1 or len(values) < 2 or not bool(torch.isfinite(values).all()):
        raise ValueError(f"expected two finite values or more, got {values.tolist()}")
    if not 0 < confidence < 1:
        raise ValueError(f"expected 0 < {confidence=} < 1")
    values = values.double().cpu()
    mean, count = float(values.mean()), len(values)
    quantile = student_t.isf((1 - confidence) / 2, count - 1)
    reach = float(quantile * values.std() / math.sqrt(count))
    low, high = mean - reach, mean + reach
    return Interval(mean=mean, low=low, high=high, confidence=confidence, count=count)
