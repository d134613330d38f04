"""What is known of images beforehand, and guesses compared with the truth and with the blind guess.

Only the second part sees the truth. What the classifier's gradient gives away, labels and its
inputs, is scored as well: methods send it dense, so that no search is needed.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.attacks.inversion.linear import features, labels_of
from fedlsg.attacks.inversion.prior import Prior, prior_from
from fedlsg.attacks.metrics import best_matching, psnr, squared_errors, ssim
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation, ThreatModel
from fedlsg.attacks.recognition import RECOVERED_IMAGE, ImagePool, Recognition, pool_size, recognise
from fedlsg.carriers import find_output_layer
from fedlsg.randomness import public_generator
from fedlsg.simulations.attacks.findings import FORMS, Outcome, Score, common_figures, of_guess
from fedlsg.simulations.attacks.target import Target
from fedlsg.simulations.report.pages.table import Column
from fedlsg.simulations.workloads.base import LoadedWorkload

EXACT_DB = 200.0
"""The PSNR of a perfect image, which has no finite one."""
DRAWN = 200
"""Random guesses of labels; the blind guess is their mean."""
PUBLIC_IMAGES, PUBLIC_NUMBERS = 2000, 2**26
"""Most images of a split that are read for priors and verdicts, and most numbers in them: 445
colour images of 224 pixels a side, whose float64 copy takes half a GiB.
"""


Judge = Callable[[Float[Tensor, "guesses c h w"], float | None], tuple[Recognition, ...]]
"""A verdict on each original of an update, from guesses and what the search leaves unexplained."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicImages:
    """Test images of a workload, which the adversary knows, and others that verdicts compare with.

    others: of the training split.
    labels, other_labels: None where a class has no test image.
    """

    images: Float[Tensor, "public c h w"]
    labels: Tensor | None
    others: Float[Tensor, "others c h w"]
    other_labels: Tensor | None

    @cached_property  # public images do not change
    def prior(self) -> Prior:
        """Shape, range, and the Gaussian around each class.

        The range is from the least to the greatest value of each channel, as the model sees the
        images.
        """
        low, high = value_range(self.images)
        return prior_from(self.images, self.labels, low=low, high=high)

    @cached_property  # public images do not change
    def beyond(self) -> Float[Tensor, "both c h w"]:
        """What each image of both splits has beyond the blind guess of its class."""
        beyond = torch.cat([self.images, self.others])
        if self.every_label is None:
            return beyond.sub_(self.prior.expected(1).to(beyond))
        for label in self.every_label.unique():
            expected = self.prior.expected(1, label.view(1)).to(beyond)
            beyond[self.every_label == label] -= expected
        return beyond

    @property
    def every_label(self) -> Tensor | None:
        """Of both splits."""
        if self.labels is None or self.other_labels is None:
            return None
        return torch.cat([self.labels, self.other_labels])

    def pool(self, label: Tensor | None) -> ImagePool:
        """Images of a class, by what they have beyond its blind guess; of all classes if it has
        fewer than two.
        """
        beyond, labels = self.beyond, self.every_label
        if labels is None or label is None:
            return ImagePool(blind=self.prior.expected(1)[0].to(beyond), beyond=beyond)
        of_class = (labels == label).nonzero().flatten()
        blind = self.prior.expected(1, label.view(1))[0].to(beyond)
        return ImagePool(blind=blind, beyond=beyond, rows=of_class if len(of_class) > 1 else None)

    def judge(self, truth: Float[Tensor, "batch c h w"], labels: Tensor, examples: int) -> Judge:
        """Verdicts on these originals, of ``examples`` that the run judges."""
        generator = public_generator(0, "public images")
        classes = [None] * len(truth) if self.labels is None else list(labels)
        pools = {
            None if label is None else int(label): self.pool(label).unlike(
                truth, pool_size(examples), generator
            )
            for label in classes
        }

        def verdicts(images: Tensor, unexplained: float | None) -> tuple[Recognition, ...]:
            rivals = {
                label: (pool.similarities(images), pool.nearest_mixture(images))
                for label, pool in pools.items()
            }
            found = []
            for original, label in zip(truth, classes, strict=True):
                key = None if label is None else int(label)
                blind = pools[key].blind
                beyond = (original.to(blind) - blind).unsqueeze(0)
                cosines = ImagePool(blind=blind, beyond=beyond).similarities(images)[:, 0]
                public, mixture = rivals[key]
                verdict = recognise(
                    cosines,
                    public,
                    examples=examples,
                    least=RECOVERED_IMAGE,
                    unexplained=unexplained,
                    mixture=mixture,
                )
                found.append(verdict)
            return tuple(found)

        return verdicts


def first_image(workload: LoadedWorkload) -> Float[Tensor, "1 c h w"]:
    """Of the test split. Raises ValueError for inputs that are not images."""
    image, _ = workload.test.batch(torch.tensor([0]))
    if not isinstance(image, Tensor) or image.ndim != 4:
        raise ValueError(
            f"workload {workload.name} holds no images: its inputs have no pixels to recover"
        )
    return image


def public_images(workload: LoadedWorkload) -> PublicImages:
    """Of a workload. Raises ValueError for inputs that are not images."""
    most = max(min(PUBLIC_IMAGES, PUBLIC_NUMBERS // first_image(workload).numel()), 2)
    # a folder of images is in the order of its classes
    images, labels = workload.test.batch(drawn_rows(len(workload.test), most, "public images"))
    others, other_labels = workload.train.batch(
        drawn_rows(len(workload.train), most, "other images")
    )
    assert isinstance(images, Tensor)
    assert isinstance(others, Tensor)
    every_class = workload.num_classes is not None and len(labels.unique()) == workload.num_classes
    return PublicImages(
        images=images,
        labels=labels if every_class else None,
        others=others,
        other_labels=other_labels if every_class else None,
    )


def drawn_rows(rows: int, most: int, what: str) -> Int64[Tensor, " drawn"]:
    """``most`` rows by a public draw in their order, or all of them."""
    return torch.randperm(rows, generator=public_generator(0, what))[:most].sort().values


def value_range(
    images: Float[Tensor, "public c h w"],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Least and greatest value by channel; of a channel that is constant, those of all channels."""
    low, high = images.amin((0, 2, 3)), images.amax((0, 2, 3))
    flat = low == high
    low, high = torch.where(flat, low.min(), low), torch.where(flat, high.max(), high)
    return tuple(low.tolist()), tuple(high.tolist())


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored(Score):
    """One attack on one update; images are paired with the true ones, in their order.

    images: (B, C, h, w) of the guess, NaN where it knows nothing.
    psnr, ssim, blind: one number an image, decibels for the first and the last.
    """

    images: Float[Tensor, "batch c h w"]
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    blind: tuple[float, ...]

    @property
    def gains(self) -> list[float]:
        """Decibels over the blind baseline, image by image."""
        return [recovered - other for recovered, other in zip(self.psnr, self.blind, strict=True)]


def scored(
    name: str,
    guess: Guess,
    truth: Float[Tensor, "batch c h w"],
    blind: Tensor,
    prior: Prior,
    seconds: float,
    judge: Judge,
) -> Scored:
    """Pair with the true images, fill unknown pixels with what the prior expects, measure in the
    public range.

    If there are more guesses than examples, the first ones count: the nearest ones would be chosen
    by the truth.
    """
    low, high = prior.bounds
    truth = truth.double()
    images = guess.inputs.detach().double().cpu().reshape(-1, *truth.shape[1:])[: len(truth)]
    expected = prior.expected(
        len(images), None if guess.labels is None else guess.labels[: len(images)].cpu()
    )
    filled = torch.where(images.isnan(), expected, images).clamp(low, high)
    blind = in_order(blind.clamp(low, high), truth)
    guesses, truths = best_matching(squared_errors(filled, truth))
    paired, shown = blind.clone(), torch.full_like(truth, math.nan)
    paired[truths], shown[truths] = filled[guesses], images[guesses].clamp(low, high)
    return Scored(
        **of_guess(name, guess, seconds),
        recognitions=judge(images.clamp(low, high), guess.unexplained),
        images=shown,
        psnr=decibels(paired, truth, prior),
        ssim=tuple(ssim(paired, truth, data_range=prior.span).tolist()),
        blind=decibels(blind, truth, prior),
    )


def in_order(blind: Tensor, truth: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
    """The blind images in the order of the true ones: labels are granted without an order, for
    every attack.
    """
    guesses, truths = best_matching(squared_errors(blind, truth))
    return blind[guesses[truths.argsort()]]


def decibels(images: Tensor, truth: Tensor, prior: Prior) -> tuple[float, ...]:
    """PSNR of each image, bounded for exact ones."""
    return tuple(
        min(value, EXACT_DB) for value in psnr(images, truth, data_range=prior.span).tolist()
    )


@dataclass(frozen=True, kw_only=True)
class Summary(Outcome):
    """One attack over all images of one run and batch size; figures in decibels, but for
    ``ssim``.
    """

    columns = (
        Column("recognised", lambda row: f"{row.recognised} of {row.examples}"),
        Column("recovered", lambda row: row.recovered, optional=3),
        Column("PSNR", lambda row: row.psnr, ".1f"),
        Column("SSIM", lambda row: row.ssim, ".2f", optional=2),
        Column("blind", lambda row: row.blind, ".1f"),
        Column("gain", lambda row: row.mean_gain, "+z.1f"),
        Column(
            "95 % interval",
            lambda row: row.gain,
            lambda gain: f"{gain.low:+z.1f} to {gain.high:+z.1f}",
        ),
    )
    note = (
        "PSNR, blind and gain in dB. blind: PSNR of a guess without the payload. gain: PSNR over "
        "it, paired by image. The 95 % interval is that of the mean gain over these images, as if "
        "they were independent; another training run or other starting points are not in it. "
        f"{FORMS}"
    )
    granted = MappingProxyType(
        {
            "prior": "the public range of pixels, and the mean and covariance of public test "
            "images by class"
        }
    )
    limits = (
        "Each PSNR is shown next to that of a blind guess, because a grey image already has 10 to "
        "12 dB."
    )
    unit, scale, things, thing = "dB", 1.0, "images", "image"
    nothing = "no image recognised"
    psnr: float
    ssim: float

    @property
    def result(self) -> str:
        return f"gains {self.mean_gain:z.1f} dB over the blind guess"

    @property
    def reach(self) -> str:
        return (
            ""
            if self.gain is None
            else f", 95 % interval {self.gain.low:z.1f} to {self.gain.high:z.1f} dB"
        )

    @classmethod
    def of(cls, results: Sequence[Scored], batch: int) -> "Summary":
        """Means over the images of one attack's results."""
        gains = [gain for score in results for gain in score.gains]
        psnr, ssim, blind = (
            statistics.fmean(value for score in results for value in getattr(score, name))
            for name in ("psnr", "ssim", "blind")
        )
        common = common_figures(results, batch, score=psnr, blind=blind, gains=torch.tensor(gains))
        return cls(**common, psnr=psnr, ssim=ssim)


@dataclass(frozen=True, kw_only=True)
class ClassifierLeak:
    """labels: how many of ``examples`` labels were read right, as a multiset, without being
    granted; by_chance: how many as many labels drawn at random would be.

    features: mean cosine between the recovered and the true inputs of the classifier over
        ``singles`` updates of one example; None if there is none.
    cosine_of_expected: the same for the prior's expected input: the blind baseline.
    """

    labels: int
    by_chance: float
    examples: int
    features: float | None
    cosine_of_expected: float | None
    singles: int

    @property
    def facts(self) -> dict[str, str]:
        """Labels and features in words, by name."""
        labels = f"{self.labels} of {self.examples} read from the classifier's gradient alone"
        lines = {"labels": f"{labels} (drawn at random: {self.by_chance:.1f})"}
        if self.features is not None:
            lines["classifier input"] = (
                f"cosine {self.features:.3f} to the true one, for single examples (blind guess: "
                f"{self.cosine_of_expected:.3f})"
            )
        return lines


def classifier_leak(
    targets: Iterable[Target], prior: Prior, threat: ThreatModel
) -> ClassifierLeak | None:
    """Labels and features of all targets, B granted as the threat model has it; None if the method
    hides them.
    """
    right, chance, examples = 0, 0.0, 0
    cosines, blinds = [], []
    for target in targets:
        observation, size = target.seen, len(target.truth.labels)
        known = Knowledge(examples=target.truth.grant(threat).examples)
        try:
            labels = labels_of(observation, prior, known)
            recovered = features(observation, prior, known).inputs if known.examples == 1 else None
        except DoesNotApply:
            return None
        right += overlap(labels, target.truth.labels)
        chance += drawn_right(target, len(labels))
        examples += size
        if recovered is not None:
            assert isinstance(target.truth.inputs, Tensor)
            true = classifier_input(observation, target.truth.inputs)
            cosines.append(cosine(recovered, true))
            blinds.append(cosine(classifier_input(observation, prior.expected(1, labels)), true))
    if not examples:
        return None
    singles = len(cosines)
    return ClassifierLeak(
        labels=right,
        by_chance=chance,
        examples=examples,
        features=sum(cosines) / singles if singles else None,
        cosine_of_expected=sum(blinds) / singles if singles else None,
        singles=singles,
    )


def overlap(labels: Tensor, others: Tensor) -> int:
    """How many labels the two have in common, with repeats."""
    return (Counter(labels.tolist()) & Counter(others.tolist())).total()


def drawn_right(target: Target, count: int) -> float:
    """How many of ``count`` labels drawn from all classes alike are right, on average."""
    layer: Any = target.seen.model.get_submodule(find_output_layer(target.seen.model))
    classes = int(layer.out_features)
    drawn = torch.randint(classes, (DRAWN, count), generator=torch.Generator().manual_seed(0))
    return sum(overlap(labels, target.truth.labels) for labels in drawn) / DRAWN


def classifier_input(observation: Observation, inputs: Tensor) -> Tensor:
    """The inputs of the classifier at W_t for these examples, (B, h)."""
    got: list[Tensor] = []
    module = observation.model.get_submodule(find_output_layer(observation.model))
    handle = module.register_forward_pre_hook(lambda _, args: got.append(args[0].detach()))
    try:
        with torch.no_grad():
            observation.model(inputs.to(next(observation.model.parameters())))
    finally:
        handle.remove()
    return got[0]


def cosine(found: Tensor, true: Tensor) -> float:
    """Cosine over the entries that were found; its absolute value, because without a bias the sign
    is open.
    """
    known = found.isfinite()
    return float(F.cosine_similarity(found[known].double(), true[known].double(), dim=0).abs())
