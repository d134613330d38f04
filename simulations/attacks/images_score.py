"""Scores of recovered images: compared with the true images, public ones and a blind guess.

Public images make the prior; only scores see the truth. Methods send the gradient of the classifier
dense. It gives labels and the classifier's inputs away without a search: they have a score, too.
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
from fedlsg.simulations.attacks.findings import FORMS, Outcome, Score, common_figures, guess_fields
from fedlsg.simulations.attacks.target import Target
from fedlsg.simulations.report.pages.table import Column
from fedlsg.simulations.workloads.base import LoadedWorkload

EXACT_DB = 200.0
"""Decibels: the PSNR of an exact image, which would be infinite."""
RANDOM_GUESSES = 200
"""Random guesses of the labels of an update; ``ClassifierLeak.by_chance`` is their mean."""
PUBLIC_IMAGES = 2000
"""Images of a split that are read for priors and verdicts at most."""
PUBLIC_NUMBERS = 2**26
"""Numbers in these images at most: 445 colour images of 224 pixels a side, whose float64 copy takes
half a GiB.
"""


Judge = Callable[[Float[Tensor, "guesses c h w"], float | None], tuple[Recognition, ...]]
"""A verdict on each original of an update, from guesses and what the search leaves unexplained."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicImages:
    """Test images of a workload, which the adversary knows, and others that verdicts compare with.

    images: of the test split.
    labels: of ``images``; None if a class has no test image.
    others: of the training split.
    other_labels: of ``others``; None if a class has no test image.
    """

    images: Float[Tensor, "public c h w"]
    labels: Tensor | None
    others: Float[Tensor, "others c h w"]
    other_labels: Tensor | None

    @cached_property  # public images do not change
    def prior(self) -> Prior:
        """The prior of the test images: shape, range of each channel, a Gaussian for each class."""
        low, high = value_range(self.images)
        return prior_from(self.images, self.labels, low=low, high=high)

    @cached_property  # public images do not change
    def beyond(self) -> Float[Tensor, "both c h w"]:
        """Images of both splits, each less the blind guess of its class."""
        beyond = torch.cat([self.images, self.others])
        if self.every_label is None:
            return beyond.sub_(self.prior.expected(1).to(beyond))
        for label in self.every_label.unique():
            expected = self.prior.expected(1, label.view(1)).to(beyond)
            beyond[self.every_label == label] -= expected
        return beyond

    @property
    def every_label(self) -> Tensor | None:
        """The labels of both splits, in the order of ``beyond``; None without labels."""
        if self.labels is None or self.other_labels is None:
            return None
        return torch.cat([self.labels, self.other_labels])

    def pool(self, label: Tensor | None) -> ImagePool:
        """Public images of a class, each less the blind guess of the class.

        Images of all classes if ``label`` is None, or if the class has fewer than two.
        """
        beyond, labels = self.beyond, self.every_label
        if labels is None or label is None:
            return ImagePool(blind=self.prior.expected(1)[0].to(beyond), beyond=beyond)
        of_class = (labels == label).nonzero().flatten()
        blind = self.prior.expected(1, label.view(1))[0].to(beyond)
        return ImagePool(blind=blind, beyond=beyond, rows=of_class if len(of_class) > 1 else None)

    def judge(self, truth: Float[Tensor, "batch c h w"], labels: Tensor, examples: int) -> Judge:
        """A judge of guesses at these originals, of ``examples`` originals in the whole run."""
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
            recognitions = []
            for original, label in zip(truth, classes, strict=True):
                key = None if label is None else int(label)
                blind = pools[key].blind
                beyond = (original.to(blind) - blind).unsqueeze(0)
                cosines = ImagePool(blind=blind, beyond=beyond).similarities(images)[:, 0]
                public, mixture = rivals[key]
                recognition = recognise(
                    cosines,
                    public,
                    examples=examples,
                    least=RECOVERED_IMAGE,
                    unexplained=unexplained,
                    mixture=mixture,
                )
                recognitions.append(recognition)
            return tuple(recognitions)

        return verdicts


def first_image(workload: LoadedWorkload) -> Float[Tensor, "1 c h w"]:
    """The first image of the test split. Raises ValueError for inputs that are not images."""
    image, _ = workload.test.batch(torch.tensor([0]))
    if not isinstance(image, Tensor) or image.ndim != 4:
        raise ValueError(
            f"workload {workload.name} holds no images: its inputs have no pixels to recover"
        )
    return image


def public_images(workload: LoadedWorkload) -> PublicImages:
    """Public images of a workload. Raises ValueError for inputs that are not images."""
    most = max(min(PUBLIC_IMAGES, PUBLIC_NUMBERS // first_image(workload).numel()), 2)
    # random rows, because a folder of images is in the order of its classes
    images, labels = workload.test.batch(draw_rows(len(workload.test), most, "public images"))
    others, other_labels = workload.train.batch(
        draw_rows(len(workload.train), most, "other images")
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


def draw_rows(rows: int, most: int, what: str) -> Int64[Tensor, " drawn"]:
    """Sorted random numbers of ``most`` of the ``rows``, or of all; ``what``: names the draw."""
    return torch.randperm(rows, generator=public_generator(0, what))[:most].sort().values


def value_range(
    images: Float[Tensor, "public c h w"],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Least and greatest value of each channel; a constant channel has those of all channels."""
    low, high = images.amin((0, 2, 3)), images.amax((0, 2, 3))
    flat = low == high
    low, high = torch.where(flat, low.min(), low), torch.where(flat, high.max(), high)
    return tuple(low.tolist()), tuple(high.tolist())


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored(Score):
    """One attack on one update; images are paired with the true ones, in their order.

    images: of the guess, NaN for unknown pixels.
    psnr: decibels of each image.
    ssim: of each image, 1 for an exact one.
    blind: PSNR of the blind guess of each image, decibels.
    """

    images: Float[Tensor, "batch c h w"]
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    blind: tuple[float, ...]

    @property
    def gains(self) -> list[float]:
        """Decibels over the blind baseline, image by image."""
        return [recovered - blind for recovered, blind in zip(self.psnr, self.blind, strict=True)]


def score_images(
    name: str,
    guess: Guess,
    truth: Float[Tensor, "batch c h w"],
    blind: Tensor,
    prior: Prior,
    seconds: float,
    judge: Judge,
) -> Scored:
    """Pair a guess with the true images, and measure both in the public range of pixels.

    Unknown pixels have the value that the prior expects. If there are more guesses than examples,
    the first ones count: a choice of the nearest ones would use the truth.
    """
    low, high = prior.bounds
    truth = truth.double()
    images = guess.inputs.detach().double().cpu().reshape(-1, *truth.shape[1:])[: len(truth)]
    expected = prior.expected(
        len(images), None if guess.labels is None else guess.labels[: len(images)].cpu()
    )
    filled = torch.where(images.isnan(), expected, images).clamp(low, high)
    blind = blind_in_order(blind.clamp(low, high), truth)
    guesses, truths = best_matching(squared_errors(filled, truth))
    paired = blind.clone()  # originals without a guess have the blind one
    paired[truths] = filled[guesses]
    shown = torch.full_like(truth, math.nan)
    shown[truths] = images[guesses].clamp(low, high)
    return Scored(
        **guess_fields(name, guess, seconds),
        recognitions=judge(images.clamp(low, high), guess.unexplained),
        images=shown,
        psnr=decibels(paired, truth, prior),
        ssim=tuple(ssim(paired, truth, data_range=prior.span).tolist()),
        blind=decibels(blind, truth, prior),
    )


def blind_in_order(
    blind: Tensor, truth: Float[Tensor, "batch c h w"]
) -> Float[Tensor, "batch c h w"]:
    """The blind images in the order of the true ones, paired by least squared error.

    Labels are granted without an order, so that blind guesses have none.
    """
    guesses, truths = best_matching(squared_errors(blind, truth))
    return blind[guesses[truths.argsort()]]


def decibels(images: Tensor, truth: Tensor, prior: Prior) -> tuple[float, ...]:
    """PSNR of each image, at most ``EXACT_DB``."""
    values = psnr(images, truth, data_range=prior.span).tolist()
    return tuple(min(value, EXACT_DB) for value in values)


@dataclass(frozen=True, kw_only=True)
class Summary(Outcome):
    """One attack over all images of one run and batch size; figures in decibels.

    psnr: mean over images.
    ssim: mean over images, no decibels.
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
        if self.gain is None:
            return ""
        return f", 95 % interval {self.gain.low:z.1f} to {self.gain.high:z.1f} dB"

    @classmethod
    def of(cls, results: Sequence[Scored], batch: int) -> "Summary":
        """Means over the images of one attack's results."""
        gains = [gain for score in results for gain in score.gains]
        means = {
            name: statistics.fmean(value for score in results for value in getattr(score, name))
            for name in ("psnr", "ssim", "blind")
        }
        common = common_figures(
            results,
            batch,
            score=means["psnr"],
            blind=means["blind"],
            gains=torch.tensor(gains),
        )
        return cls(**common, psnr=means["psnr"], ssim=means["ssim"])


@dataclass(frozen=True, kw_only=True)
class ClassifierLeak:
    """What the classifier's gradient gives away over all attacked updates, without granted labels.

    labels: how many labels were read right, as a multiset.
    by_chance: how many random labels would be right on average.
    examples: how many labels there are.
    features: mean cosine between the recovered and the true inputs of the classifier, over updates
        of one example; None if there is no such update.
    cosine_of_expected: the same for the prior's expected input: the blind baseline.
    singles: how many updates have one example.
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
    """Labels and classifier inputs of all targets; None if the method hides them.

    The number of examples is granted as the threat model says.
    """
    right = examples = 0
    chance = 0.0
    cosines, blinds = [], []
    for target in targets:
        observation = target.seen
        known = Knowledge(examples=target.truth.grant(threat).examples)
        try:
            labels = labels_of(observation, prior, known)
            recovered = features(observation, prior, known).inputs if known.examples == 1 else None
        except DoesNotApply:
            return None
        right += overlap(labels, target.truth.labels)
        chance += chance_of_labels(target, len(labels))
        examples += len(target.truth.labels)
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
    """How many labels two multisets have in common."""
    return (Counter(labels.tolist()) & Counter(others.tolist())).total()


def chance_of_labels(target: Target, count: int) -> float:
    """How many of ``count`` uniformly random labels are right, on average."""
    layer: Any = target.seen.model.get_submodule(find_output_layer(target.seen.model))
    classes = int(layer.out_features)
    drawn = torch.randint(
        classes, (RANDOM_GUESSES, count), generator=torch.Generator().manual_seed(0)
    )
    return sum(overlap(labels, target.truth.labels) for labels in drawn) / RANDOM_GUESSES


def classifier_input(observation: Observation, inputs: Tensor) -> Tensor:
    """The inputs of the classifier at W_t for these examples, (B, h)."""
    inputs_seen: list[Tensor] = []
    module = observation.model.get_submodule(find_output_layer(observation.model))
    handle = module.register_forward_pre_hook(lambda _, args: inputs_seen.append(args[0].detach()))
    try:
        with torch.no_grad():
            observation.model(inputs.to(next(observation.model.parameters())))
    finally:
        handle.remove()
    return inputs_seen[0]


def cosine(recovered: Tensor, true: Tensor) -> float:
    """Absolute cosine over the finite entries of ``recovered``.

    Absolute, because an attack on a classifier without a bias cannot tell the sign.
    """
    known = recovered.isfinite()
    return float(F.cosine_similarity(recovered[known].double(), true[known].double(), dim=0).abs())
