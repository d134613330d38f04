"""Matching attacks on images: find the batch whose update is nearest to what was received.

    dlg                  L-BFGS on the Euclidean distance (Zhu et al. 2019); with labels: iDLG (Zhao
                         et al. 2020)
    inverting-gradients  signed Adam on the cosine plus total variation (Geiping et al. 2020)
    smooth-relu          the same with a cosine for each block, and a smooth second derivative of
                         ReLU that gets sharper
    map                  L-BFGS on the likelihood of the noise plus the prior: the most probable
                         batch, for sigma > 0
Each is adaptive by default (see ``replay``), and several local steps are replayed (the surrogate
model extension). Unknown are the pixels, in the prior's range; labels that the threat model does
not give are optimised with them, as soft ones, or inferred before (``linear.labels_of``).

A gradient of ReLU networks depends on the input through the slopes 1[z > 0], too. Their derivative
is 0 almost everywhere, so autograd tells a matching attack nothing about them, and its search stops
far from the image. Under ``SmoothRelus`` the values and the first derivative are those of ReLU;
only the derivative of the slope is replaced, by that of the sigmoid s(b z) of sharpness b: the
surrogate gradient of spiking networks (Neftci et al. 2019), applied to the second derivative.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedlsg.attacks.distances import DISTANCES
from fedlsg.attacks.inversion.prior import Prior, surprise, total_variation
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation
from fedlsg.attacks.replay import Objective, objective
from fedlsg.attacks.search import Box, Energy, Progress, Search, Watch, Weight, adam, lbfgs, search

RELUS = (F.relu, torch.relu, Tensor.relu)


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.sharpness = sharpness
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        soft = torch.sigmoid(ctx.sharpness * z)
        # the last is 0, and has the derivative
        return outer[0] * ((z > 0).to(z) + (soft - soft.detach())), None


def smooth_relu(z: Float[Tensor, "*shape"], sharpness: float) -> Float[Tensor, "*shape"]:
    """ReLU whose second derivative is b s(b z) (1 - s(b z)), of integral 1 like that of the exact
    one.

    Guarantee: the values and the first derivative are those of ``torch.relu``. Raises ValueError
    for b <= 0.
    """
    if not sharpness > 0:
        raise ValueError(f"expected {sharpness=} > 0")
    result: Tensor = _Relu.apply(z, sharpness)
    return result


class SmoothRelus(TorchFunctionMode):
    """While it is entered, every ReLU of a forward pass is ``smooth_relu``; models stay as they
    are.

    ``sharpness`` is that for a z of root mean square 1: it is divided by the one of each layer's z.
    ``nn.ReLU`` and ``F.relu`` also when in place. Not the method ``x.relu_()``: it stays exact.
    """

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace ReLU, and call everything else."""
        if func in RELUS:
            z: Tensor = args[0] if args else (kwargs or {})["input"]
            size = z.detach().square().mean().sqrt().clamp_min(torch.finfo(z.dtype).tiny)
            return smooth_relu(z, self.sharpness / float(size))
        return func(*args, **(kwargs or {}))


Optimizer = Literal["lbfgs", "signed-adam", "adam"]
SMALL_IMAGE_NUMBERS = 1024
"""Numbers of an image up to which an attack is several short restarts."""
LONG_SEARCH: Mapping[str, Any] = MappingProxyType({"evaluations": 2400, "restarts": 1})
"""One long search, for larger ones."""
START_SPREAD = 0.05
"""Share of the range by which the first start differs from the expected images: equal images would
stay equal.
"""


@dataclass(frozen=True, kw_only=True)
class Matching(Search):
    """A matching attack on images.

    total_variation: its weight in the objective.
    sharpness: of the second derivative of ReLU at the first and at the last evaluation
        (``smooth_relu``), in between geometric; None: exact, which is 0.
    settled: a step of L-BFGS that lowers an objective above 1 by no more than this share of it ends
    the restart.
    large: what differs for images of more than ``SMALL_IMAGE_NUMBERS``: by default one long search.
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
        """Whether it may leave the client's step out: the noise of a likelihood is in its frame."""
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
    """Images and, where they are not known, logits of soft labels, as one flat vector."""

    def __init__(
        self, observation: Observation, knowledge: Knowledge, prior: Prior, examples: int
    ) -> None:
        like = observation.values
        self.shape = (examples, *prior.shape)
        self.labels = None if knowledge.labels is None else knowledge.labels.to(like.device)
        self.expected = prior.expected(examples, knowledge.labels).to(like)
        self.means = (
            prior.mean.to(like)
            if prior.mean is not None and prior.mean.shape != prior.shape
            else None
        )
        low, high = (end.to(like).expand(self.shape).flatten() for end in prior.bounds)
        self.classes = 0 if self.labels is not None else _classes(observation, self.expected)
        free = like.new_full((examples * self.classes,), math.inf)
        self.box = Box(low=torch.cat([low, -free]), high=torch.cat([high, free]))
        self.spans = torch.cat([high - low, torch.ones_like(free)])

    def start(self, restart: int, generator: torch.Generator) -> Tensor:
        """The expected images with a little noise, so that they differ, for restart 1; then
        anything in the range.
        """
        draw = (
            torch.rand(self.shape, generator=generator, dtype=torch.float64)
            .to(self.expected)
            .flatten()
        )
        logits = torch.randn(
            self.shape[0] * self.classes, generator=generator, dtype=torch.float64
        ).to(draw)
        low, span = self.box.low[: len(draw)], self.spans[: len(draw)]
        images = low + span * draw
        if restart == 1:
            images = self.expected.flatten() + START_SPREAD * span * (draw - 0.5)
        return torch.cat([images.clamp(low, low + span), logits])

    def expected_under(self, targets: Tensor) -> Tensor:
        """The expected images: with soft labels, the means of the classes by their
        probabilities.
        """
        if self.means is None or self.labels is not None:
            return self.expected
        expected: Tensor = torch.tensordot(targets, self.means, dims=1)
        return expected

    def split(self, point: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
        """(inputs, targets): class numbers where known, else probabilities."""
        size = math.prod(self.shape)
        inputs = point[:size].reshape(self.shape)
        if self.labels is not None:
            return inputs, self.labels
        return inputs, point[size:].reshape(self.shape[0], self.classes).softmax(1)


def _classes(observation: Observation, images: Tensor) -> int:
    """Width of the model's output. Raises DoesNotApply where soft labels have no loss, or targets
    are no classes.
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
    """The batch of lowest objective over all starting points, with every value in the prior's
    range.

    Where the number of examples is not known, the declared expected batch is used. Works in the
    precision and on the device of ``observation`` (``in_float64()`` for all digits that are there);
    draws and the guess are on the CPU.
    Guarantee: the same observation, knowledge, prior, attack and generator state give the same
    guess, unless ``seconds`` cuts it off.
    Raises DoesNotApply where ``objective`` does, and for a loss that takes no soft labels where
    none are known.
    """
    pixels = Pixels(
        observation, knowledge, prior, knowledge.examples or observation.expected_examples
    )
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
    """The lowest point from one start."""
    spent, start = watch.clock(), pixels.start(watch.restart, generator)
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
        spent=spent,
    )


def _smoothed(energy: Energy, attack: Matching) -> Energy:
    """The same energy with a smooth second derivative of ReLU, sharper at each evaluation; its
    values do not change.
    """
    if attack.sharpness is None:
        return energy
    first, last = attack.sharpness
    evaluation = count()

    def smoothed(point: Tensor) -> Tensor:
        with SmoothRelus(first * (last / first) ** min(1.0, next(evaluation) / attack.evaluations)):
            return energy(point)

    return smoothed


def _energy(
    attack: Matching, prior: Prior, pixels: Pixels, distance: Objective, point: Tensor
) -> Tensor:
    """The distance, the weight of total variation, and -log prior where the distance is a -log
    likelihood.
    """
    inputs, targets = pixels.split(point)
    value = distance(inputs, targets)
    if attack.total_variation:
        value = value + attack.total_variation * total_variation(inputs).sum()
    if DISTANCES[attack.distance].likelihood:
        value = value + surprise(prior, inputs, pixels.expected_under(targets)).sum()
    return value


def _note(attack: Matching, knowledge: Knowledge, examples: int, restarts: int) -> str:
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
