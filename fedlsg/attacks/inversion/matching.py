"""Matching attacks on images: which batch would have sent the update that was received?

Each minimises an objective over the pixels, by the adversary's own replay of the client
(``replay``) and the minimisers of ``search``:

    dlg                  L-BFGS on the Euclidean distance (Zhu et al. 2019); with labels: iDLG (Zhao
                         et al. 2020)
    inverting-gradients  signed Adam on the cosine plus total variation (Geiping et al. 2020)
    smooth-relu          the same with a cosine for each block, and a smooth second derivative of
                         ReLU that gets sharper (``smooth_relus``)
    map                  L-BFGS on the likelihood of the noise plus the prior: the most probable
                         batch, for sigma > 0

Each is adaptive by default: it knows the clip and the frame. Several local steps are replayed on
one candidate batch (``replay``). Unknown are the pixels, in the prior's range, and labels that the
threat model does not give: they are optimised as soft labels, or inferred before
(``linear.labels_of``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.distances import DISTANCES
from fedlsg.attacks.inversion.prior import Prior, surprise, total_variation
from fedlsg.attacks.inversion.smooth_relus import SmoothRelus
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation
from fedlsg.attacks.replay import Objective, objective
from fedlsg.attacks.search import Box, Energy, Progress, Search, Watch, Weight, adam, lbfgs, search

Optimizer = Literal["lbfgs", "signed-adam", "adam"]
SMALL_IMAGE_NUMBERS = 1024
"""Up to so many numbers an image, an attack is several short restarts."""
LONG_SEARCH: Mapping[str, Any] = MappingProxyType({"evaluations": 2400, "restarts": 1})
"""One long search, for larger images."""
START_SPREAD = 0.05
"""Share of the range by which the first start differs at random from the expected images: images
that are equal at the start would stay equal.
"""


@dataclass(frozen=True, kw_only=True)
class Matching(Search):
    """A matching attack on images.

    total_variation: its weight in the objective.
    sharpness: of the second derivative of ReLU at the first and at the last evaluation, geometric
        in between (``smooth_relus``); None: the exact second derivative, which is 0.
    settled: a restart ends with a step of L-BFGS that lowers an objective above 1 by no more than
        this share of it.
    large: settings that differ for images of more than ``SMALL_IMAGE_NUMBERS``.
    """

    optimizer: Optimizer = "lbfgs"
    total_variation: Weight = 0.0
    sharpness: tuple[float, float] | None = None
    settled: Weight = 0.0
    large: Mapping[str, Any] = field(default_factory=lambda: LONG_SEARCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.sharpness is not None
            and not 0 < min(self.sharpness) <= max(self.sharpness) < math.inf
        ):
            raise ValueError(f"expected sharpness={self.sharpness} > 0, or None for the exact ReLU")

    @property
    def has_naive_form(self) -> bool:
        """Whether it can compare dense gradients: a likelihood is about the noise in the frame."""
        return not DISTANCES[self.distance].likelihood

    def for_images(self, numbers: int) -> "Matching":
        """The attack with its presets for images of so many numbers."""
        return replace(self, **self.large) if numbers > SMALL_IMAGE_NUMBERS else self


SMOOTH = Matching(
    optimizer="signed-adam",
    distance="blocks",
    total_variation=3e-2,
    step_size=0.025,
    sharpness=(0.5, 1.5),
    evaluations=1000,
    restarts=2,
)
ATTACKS: Mapping[str, Matching] = MappingProxyType(
    {
        "dlg": Matching(tolerance=1e-16, large={"evaluations": 1200, "restarts": 2}),
        "inverting-gradients": Matching(
            optimizer="signed-adam",
            distance="cosine",
            total_variation=1e-3,
            large={"evaluations": 2400, "restarts": 1, "total_variation": 5e-2},
        ),
        "smooth-relu": SMOOTH,
        "map": Matching(
            distance="likelihood",
            evaluations=150,
            restarts=2,
            settled=1e-8,
            large={"evaluations": 600, "restarts": 1},
        ),
    }
)


class Pixels:
    """The unknowns of the search as one flat vector: B images, and logits of unknown labels.

    The logits are those of soft labels.
    shape: (B, *shape of an image).
    labels: the known labels, or None.
    expected: (B, *shape) the expected images without the update.
    means: (classes, *shape) the expected image of each class, or None.
    classes: number of soft labels; 0 with known labels.
    box: the range of each unknown; logits are free.
    spans: the length of that range, which step sizes are shares of; 1 for logits.
    """

    def __init__(
        self, observation: Observation, knowledge: Knowledge, prior: Prior, examples: int
    ) -> None:
        like = observation.values
        self.shape = (examples, *prior.shape)
        self.labels = None if knowledge.labels is None else knowledge.labels.to(like.device)
        self.expected = prior.expected(examples, knowledge.labels).to(like)
        self.means: Tensor | None = None
        if prior.mean is not None and prior.mean.shape != prior.shape:
            self.means = prior.mean.to(like)
        low, high = (end.to(like).expand(self.shape).flatten() for end in prior.bounds)
        self.classes = 0 if self.labels is not None else _classes(observation, self.expected)
        free = like.new_full((examples * self.classes,), math.inf)
        self.box = Box(low=torch.cat([low, -free]), high=torch.cat([high, free]))
        self.spans = torch.cat([high - low, torch.ones_like(free)])

    def start(self, restart: int, generator: torch.Generator) -> Tensor:
        """Where a restart begins: restart 1 near the expected images, others anywhere in range."""
        pixels = torch.rand(self.shape, generator=generator, dtype=torch.float64)
        pixels = pixels.to(self.expected).flatten()
        count_logits = self.shape[0] * self.classes
        logits = torch.randn(count_logits, generator=generator, dtype=torch.float64).to(pixels)
        low, span = self.box.low[: len(pixels)], self.spans[: len(pixels)]
        images = low + span * pixels
        if restart == 1:
            images = self.expected.flatten() + START_SPREAD * span * (pixels - 0.5)
        return torch.cat([images.clamp(low, low + span), logits])

    def expected_under(self, targets: Tensor) -> Tensor:
        """The expected images; with soft labels, the mean of the classes by their probabilities."""
        if self.means is None or self.labels is not None:
            return self.expected
        expected: Tensor = torch.tensordot(targets, self.means, dims=1)
        return expected

    def split(self, point: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of a point: the known labels, or probabilities (B, classes)."""
        size = math.prod(self.shape)
        inputs = point[:size].reshape(self.shape)
        if self.labels is not None:
            return inputs, self.labels
        return inputs, point[size:].reshape(self.shape[0], self.classes).softmax(1)


def _classes(observation: Observation, images: Tensor) -> int:
    """Number of outputs of the model.

    Raises DoesNotApply if targets are no classes, or if the loss takes no soft labels.
    """
    if not observation.class_targets:
        raise DoesNotApply(
            "the targets are no classes, which a search knows as soft labels: grant them, "
            "labels='known'"
        )
    with torch.no_grad():
        outputs = observation.model(images)
        try:
            observation.loss_fn(outputs, outputs.softmax(-1))
        except Exception as error:  # a loss of a user's own may raise anything
            raise DoesNotApply(
                "the loss takes no soft labels: grant the labels, or infer them first"
            ) from error
    return int(outputs.shape[-1])


def match(
    observation: Observation,
    knowledge: Knowledge,
    prior: Prior,
    *,
    attack: Matching,
    generator: torch.Generator,
    progress: Progress = lambda done, total, text: None,
) -> Guess:
    """The batch of lowest objective over all restarts, with every value in the prior's range.

    If the number of examples is not known, the declared expected batch is used. Computes in the
    precision and on the device of ``observation`` (``in_float64()`` spares rounding); draws and the
    guess are on the CPU.
    Guarantee: the same observation, knowledge, prior, attack and generator state give the same
    guess, unless ``seconds`` ends the search.
    Raises DoesNotApply if ``objective`` does, and if labels are not known and the loss takes no
    soft ones.
    """
    examples = knowledge.examples or observation.expected_examples
    pixels = Pixels(observation, knowledge, prior, examples)
    distance = objective(observation, distance=attack.distance, compare=attack.compare)
    energy = partial(_energy, attack, prior, pixels, distance)
    minimum = search(
        observation,
        attack,
        partial(_minimum, attack, pixels, energy, generator),
        pixels.split,
        progress,
    )
    inputs, targets = pixels.split(minimum.point)
    labels = targets if knowledge.labels is not None else targets.argmax(1)
    return Guess(
        inputs=inputs.cpu(),
        labels=labels.cpu(),
        objective=minimum.objective,
        unexplained=minimum.unexplained,
        note=_note(attack, knowledge, len(inputs), minimum.restarts),
    )


def _minimum(
    attack: Matching, pixels: Pixels, energy: Energy, generator: torch.Generator, watch: Watch
) -> tuple[Tensor, float]:
    """One restart: the lowest point that it finds, and the objective there."""
    time_share = watch.time_share()
    start = pixels.start(watch.restart, generator)
    energy = _smoothed(energy, attack)
    if attack.optimizer == "lbfgs":
        return lbfgs(
            energy,
            start,
            pixels.box,
            evaluations=attack.evaluations,
            settled=attack.settled,
            go_on=watch.go_on,
        )
    return adam(
        energy,
        start,
        pixels.box,
        evaluations=attack.evaluations,
        step_size=attack.step_size * pixels.spans,
        signed=attack.optimizer == "signed-adam",
        go_on=watch.go_on,
        time_share=time_share,
    )


def _smoothed(energy: Energy, attack: Matching) -> Energy:
    """The same objective with a smooth second derivative of ReLU, sharper at each evaluation.

    The values of the objective do not change, its gradient does.
    """
    if attack.sharpness is None:
        return energy
    first, last = attack.sharpness
    evaluations = count()

    def smoothed(point: Tensor) -> Tensor:
        progress = min(1.0, next(evaluations) / attack.evaluations)
        with SmoothRelus(first * (last / first) ** progress):
            return energy(point)

    return smoothed


def _energy(
    attack: Matching, prior: Prior, pixels: Pixels, distance: Objective, point: Tensor
) -> Tensor:
    """The objective of a point: the distance, plus weighted total variation.

    If the distance is a negative log-likelihood, -log prior is added: the sum is that of MAP.
    """
    inputs, targets = pixels.split(point)
    value = distance(inputs, targets)
    if attack.total_variation:
        value = value + attack.total_variation * total_variation(inputs).sum()
    if DISTANCES[attack.distance].likelihood:
        value = value + surprise(prior, inputs, pixels.expected_under(targets)).sum()
    return value


def _note(attack: Matching, knowledge: Knowledge, examples: int, restarts: int) -> str:
    """The words for a guess."""
    labels = "granted" if knowledge.labels is not None else "searched for as soft ones"
    size = (
        "granted"
        if knowledge.examples is not None
        else f"taken as {examples}, the declared expected batch"
    )
    return (
        f"{attack.compare} {attack.distance}, {restarts} restarts; labels {labels}; number of "
        f"examples {size}"
    )
