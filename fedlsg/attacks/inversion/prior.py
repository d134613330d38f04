"""The adversary's knowledge of images before a payload, and the count of a payload's equations.

Symbols: B examples, C channels, d numbers of one image. A prior is made of public constants and
public examples only: shape, value range, statistics of public images. The unknowns of a batch are
its B d input numbers, and B labels if these are not known. Without a prior, a batch can be known
only if there are as many equations as unknowns. This is not sufficient, because equations may
depend on each other. Noise is not counted.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedlsg.attacks.observation import Guess, Knowledge, Observation, ThreatModel
from fedlsg.frame.forms import TANGENT

COVARIANCE_SHRINKAGE = 0.1
"""Share of the diagonal in the covariance of a ``Spread``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """Public knowledge of inputs, in the units that the model sees.

    shape: (C, height, width) for images; total variation is taken over the last two axes.
    low, high: ends of the range of values, one number or one a channel.
    mean: the image to expect, (*shape), or one for each class, (classes, *shape); None: the middle
        of the range.
    spread: how images differ from their mean; None: nothing is known but the range.
    """

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = 0.0
    high: float | tuple[float, ...] = 1.0
    mean: Float[Tensor, "*classes_and_shape"] | None = None
    spread: "Spread | None" = None

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise ValueError(
                f"expected the shape of one input without its batch, got {self.shape=}"
            )
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != self.shape[0]:
                raise ValueError(
                    f"expected {name} as one number or {self.shape[0]}, one a channel, got {value}"
                )
        if not bool((self.bounds[0] < self.bounds[1]).all()):
            raise ValueError(f"expected {self.low=} < {self.high=} everywhere")
        if self.mean is not None and self.mean.shape not in (
            self.shape,
            (len(self.mean), *self.shape),
        ):
            raise ValueError(
                f"expected a mean of shape {self.shape}, or one a class, got "
                f"{tuple(self.mean.shape)}"
            )
        if self.spread is not None and self.spread.factors.shape[1] != self.size:
            raise ValueError(
                f"expected a spread of {self.size} numbers, got {self.spread.factors.shape[1]}"
            )

    @property
    def size(self) -> int:
        """d: numbers in one input."""
        return math.prod(self.shape)

    @property
    def bounds(self) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """Least and greatest value of every number of one input, float64."""
        low, high = (
            torch.tensor(end, dtype=torch.float64)
            .reshape(-1, *[1] * (len(self.shape) - 1))
            .expand(self.shape)
            for end in (self.low, self.high)
        )
        return low, high

    @property
    def span(self) -> float:
        """The widest channel's range: what PSNR and SSIM divide by."""
        low, high = self.bounds
        return float((high - low).max())

    def expected(
        self, examples: int, labels: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch *shape"]:
        """The images to expect before any payload, in float64.

        Those of the labels' classes, if labels and means of classes are known. Raises ValueError
        for a label without a mean.
        """
        low, high = self.bounds
        mean = (low + high) / 2 if self.mean is None else self.mean.double().cpu()
        if mean.shape == self.shape:
            return mean.expand(examples, *self.shape).clone()
        if labels is None:
            return mean.mean(0).expand(examples, *self.shape).clone()
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < len(mean):
            raise ValueError(
                f"expected labels in 0..{len(mean) - 1}, got {labels.tolist()}: the prior has "
                f"{len(mean)} classes"
            )
        return mean[labels.cpu()]


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """The Gaussian law of the deviations of images from their mean.

    Its inverse covariance is (I - factors^T factors) / variance. It takes k d numbers for k public
    images, and never d^2: for images of 224 pixels a side these would be 181 GB.
    variance: in directions in which public images do not differ.
    factors: (k, d).
    """

    variance: float
    factors: Float[Tensor, "k d"]

    def surprise(self, deviations: Float[Tensor, "batch d"]) -> Float[Tensor, " batch"]:
        """-log density of each row, up to a constant."""
        explained = (deviations @ self.factors.to(deviations).mT).square().sum(1)
        return (deviations.square().sum(1) - explained) / (2 * self.variance)

    @property
    def precision(self) -> Float[Tensor, "d d"]:
        """The inverse covariance as a matrix, which is for small images."""
        return (
            torch.eye(len(self.factors.mT)).to(self.factors) - self.factors.mT @ self.factors
        ) / (self.variance)


def spread_of(deviations: Float[Tensor, "k d"]) -> Spread:
    """The spread of public images around their mean: their covariance, shrunk.

    With D the deviations, s = COVARIANCE_SHRINKAGE and v their mean variance, the covariance is

        S = (1 - s) / k D^T D + s v I = s v (I + D^T D / c)  with c = s v k / (1 - s).

    The diagonal lets pixels change that are the same in all public images. By Woodbury's identity

        S^-1 = (I - D^T (D D^T + c I)^-1 D) / (s v),

    so only a matrix of k^2 numbers is inverted. With its Cholesky factor C, D D^T + c I = C C^T,
    the factors are C^-1 D.
    Raises ValueError for images that do not differ.
    """
    level = deviations.square().mean()
    if not bool(level > 0):
        raise ValueError(
            "expected public images that differ: nothing can be said about their spread"
        )
    gram = deviations @ deviations.mT
    k = len(deviations)
    gram.diagonal().add_(COVARIANCE_SHRINKAGE * level * k / (1 - COVARIANCE_SHRINKAGE))
    cholesky = torch.linalg.cholesky(gram)
    factors = torch.linalg.solve_triangular(cholesky, deviations, upper=False)
    return Spread(variance=float(COVARIANCE_SHRINKAGE * level), factors=factors)


def prior_from(
    images: Float[Tensor, "public *shape"],
    labels: Int[Tensor, " public"] | None = None,
    *,
    low: float | tuple[float, ...],
    high: float | tuple[float, ...],
) -> Prior:
    """The Gaussian prior from public images: their mean (of each class), and their covariance.

    It takes as much memory as the images in float64, however large they are. Raises ValueError for
    a class without an image, and for fewer than two images.
    """
    if len(images) < 2:
        raise ValueError(f"expected two public images or more, got {len(images)}")
    flat = images.detach().double().cpu().flatten(1)
    mean = flat.mean(0)
    mean_of_image = mean
    if labels is not None:
        counts = torch.bincount(labels.cpu())
        if bool((counts == 0).any()):
            raise ValueError(f"expected public images of every class, got counts {counts.tolist()}")
        mean = torch.stack([flat[labels.cpu() == c].mean(0) for c in range(len(counts))])
        mean_of_image = mean[labels.cpu()]
    shape = tuple(images.shape[1:])
    return Prior(
        shape=shape,
        low=low,
        high=high,
        mean=mean.reshape(*mean.shape[:-1], *shape),
        spread=spread_of(flat - mean_of_image),
    )


def blind_guess(prior: Prior, knowledge: Knowledge, *, examples: int | None = None) -> Guess:
    """The expected image of the prior for every example: the guess without a payload.

    It is the expected image of the example's class if labels are granted and classes have one. Of
    all guesses without a payload it has the least mean squared error. What an attack scores above
    it was in the payload; a PSNR alone says nothing (a grey image has 10 dB).
    examples: their number, if ``knowledge`` does not grant it.
    Raises ValueError if neither says how many.
    """
    count = knowledge.examples or examples
    if count is None or count < 1:
        raise ValueError(
            "expected the number of examples, granted or given as examples=...: none is known"
        )
    by_class = (
        prior.mean is not None and prior.mean.shape != prior.shape and knowledge.labels is not None
    )
    note = "expected image of the class" if by_class else "expected image of the prior"
    return Guess(
        inputs=prior.expected(count, knowledge.labels),
        labels=knowledge.labels,
        note=f"no payload: {note}",
    )


def total_variation(images: Float[Tensor, "batch *shape"]) -> Float[Tensor, " batch"]:
    """Mean absolute difference of neighbours, down plus across, of each image.

    Geiping et al. 2020, Eq. 4.
    """
    down, across = images.diff(dim=-2).abs(), images.diff(dim=-1).abs()
    return down.flatten(1).mean(1) + across.flatten(1).mean(1)


def surprise(
    prior: Prior, images: Float[Tensor, "batch *shape"], expected: Tensor
) -> Float[Tensor, " batch"]:
    """-log density of each image under the Gaussian around ``expected``, up to a constant.

    Without a spread the pixels are independent, with the variance of a uniform law on their range:
    (high - low)^2 / 12.
    """
    deviations = (images - expected).flatten(1)
    if prior.spread is not None:
        return prior.spread.surprise(deviations)
    low, high = prior.bounds
    return 6 * (deviations / (high - low).to(deviations).flatten()).square().sum(1)


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many numbers of one observation are received, and how many are unknown.

    received: values of the payload.
    repeated: values among them that another one repeats.
    examples: B, the expected batch where the threat model does not grant it.
    unknown_inputs: values of all inputs.
    unknown_labels: B, or 0 where the threat model grants the labels.
    """

    received: int
    repeated: int
    examples: int
    unknown_inputs: int
    unknown_labels: int

    @property
    def equations(self) -> int:
        """Numbers of the payload that no other one repeats."""
        return self.received - self.repeated

    @property
    def unknowns(self) -> int:
        """Unknown numbers of the batch."""
        return self.unknown_inputs + self.unknown_labels

    @property
    def enough(self) -> bool:
        """Whether there are as many equations as unknowns.

        If not, no attack without a prior can be exact.
        """
        return self.equations >= self.unknowns


def count_equations(
    observation: Observation, prior: Prior, threat: ThreatModel, known: Knowledge
) -> Count:
    """The count of received numbers and unknowns.

    Raises ValueError if ``known`` holds less than the threat model grants, and if ``threat`` is for
    one client and the observation is of several.
    """
    if threat.labels == "known" and known.labels is None:
        raise ValueError(
            "the threat model grants labels, and none are there: choose labels='unknown', or give "
            "them"
        )
    if threat.examples == "known" and known.examples is None:
        raise ValueError(
            "the threat model grants the number of examples: choose examples='unknown', or give it"
        )
    if threat.view == "client" and len(observation.clients) != 1:
        raise ValueError(
            f"view='client' is of one payload, this one is the sum of {len(observation.clients)} "
            "clients"
        )
    granted = known.examples if threat.examples == "known" else None
    examples = granted or observation.expected_examples
    return Count(
        received=observation.frame.kept,
        repeated=sum(
            _repeated(observation, c.name, c.L.shape[1])
            for c in observation.frame.coordinates
            if c.L is not None and c.form is TANGENT
        ),
        examples=examples,
        unknown_inputs=examples * prior.size,
        unknown_labels=0 if threat.labels == "known" else examples,
    )


def _repeated(observation: Observation, parameter: str, rank: int) -> int:
    """How many numbers of a carried weight are received twice.

    The r^2 numbers of L^T dW R^T are in dL R^T and in L^T dR. If one of the two is masked, the
    numbers are in the other one alone.
    """
    blocks = [b for b in observation.frame.blocks if b.parameter == parameter]
    return rank**2 if all(b.kept == b.size for b in blocks) else 0
