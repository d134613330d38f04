"""What a matching attack searches for: a batch of images and, where nobody grants labels, soft ones."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.inversion.minimize import Box
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import DoesNotApply, Knowledge, Observation

START_SPREAD = 0.05
"""Share of the range by which the first start differs from the expected images: equal images would stay equal."""


class Unknowns:
    """Images and, where not granted, logits of soft labels, as one flat vector."""

    def __init__(self, seen: Observation, knowledge: Knowledge, prior: Prior, examples: int) -> None:
        like = seen.values
        self.shape = (examples, *prior.shape)
        self.labels = None if knowledge.labels is None else knowledge.labels.to(like.device)
        self.expected = prior.expected(examples, knowledge.labels).to(like)
        self.means = prior.mean.to(like) if prior.mean is not None and prior.mean.shape != prior.shape else None
        low, high = (end.to(like).expand(self.shape).flatten() for end in prior.bounds)
        self.classes = 0 if self.labels is not None else _classes(seen, self.expected)
        free = like.new_full((examples * self.classes,), math.inf)
        self.box = Box(low=torch.cat([low, -free]), high=torch.cat([high, free]))
        self.spans = torch.cat([high - low, torch.ones_like(free)])

    def start(self, restart: int, generator: torch.Generator) -> Tensor:
        """The expected images with a little noise, so that they differ, for restart 1; then anything in the range."""
        draw = torch.rand(self.shape, generator=generator, dtype=torch.float64).to(self.expected).flatten()
        logits = torch.randn(self.shape[0] * self.classes, generator=generator, dtype=torch.float64).to(draw)
        low, span = self.box.low[: len(draw)], self.spans[: len(draw)]
        images = low + span * draw
        if restart == 1:
            images = self.expected.flatten() + START_SPREAD * span * (draw - 0.5)
        return torch.cat([images.clamp(low, low + span), logits])

    def expected_under(self, targets: Tensor) -> Tensor:
        """The expected images: with soft labels, the means of the classes by their probabilities."""
        if self.means is None or self.labels is not None:
            return self.expected
        expected: Tensor = torch.tensordot(targets, self.means, dims=1)
        return expected

    def split(self, point: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
        """(inputs, targets): class numbers where granted, else probabilities."""
        size = math.prod(self.shape)
        inputs = point[:size].reshape(self.shape)
        if self.labels is not None:
            return inputs, self.labels
        return inputs, point[size:].reshape(self.shape[0], self.classes).softmax(1)


def _classes(seen: Observation, images: Tensor) -> int:
    """Width of the model's output. Raises DoesNotApply where soft labels have no loss, or targets are no classes."""
    if not seen.class_targets:
        raise DoesNotApply(
            "the targets are no classes, which a search knows as soft labels: grant them, labels='known'"
        )
    with torch.no_grad():
        outputs = seen.model(images)
        try:
            seen.loss_fn(outputs, outputs.softmax(-1))
        except Exception as error:  # a loss of a user's own may raise anything
            raise DoesNotApply("the loss takes no soft labels: grant the labels, or infer them first") from error
    return int(outputs.shape[-1])
