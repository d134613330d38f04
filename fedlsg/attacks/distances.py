"""Distances between what a candidate would have sent and what was received (``DISTANCES``).

A new distance is one more entry there: searches for images and for tokens take it by its name.
Symbols: y the received kept values, f what a client would have sent, s the noise's deviation.
    euclidean   |f - y|^2 / |y|^2                DLG (Zhu et al. 2019, Eq. 4), made free of the
                gradient's scale
    cosine      1 - <f, y> / (|f| |y|)           Inverting Gradients (Geiping et al. 2020, Eq. 4),
                over all blocks
    blocks      the mean of that cosine over blocks: each block counts the same, also a classifier
                that holds half of the squared norm
    likelihood  |f - y|^2 / (2 s^2)              -log N(y; f, s^2 I): exact for one local step,
                clip simulated
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.config import Setting


def euclidean(sent: Float[Tensor, " n"], received: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """|f - y|^2 / |y|^2: 0 for a match, 1 for a candidate that sends nothing."""
    return squared_norm(sent - received) / squared_norm(received)


def cosine(sent: Float[Tensor, " n"], received: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """1 - cos(f, y): between 0 and 2.

    Computed as half the squared distance of the directions, whose digits do not cancel where they
    nearly agree.
    Zero sent has no direction: its distance is 1/2, better than a right angle (1). The gradient
    there is finite and very large: -y / (|y| tiny), of norm 1e19 in float32.
    """
    tiny = torch.finfo(sent.dtype).tiny ** 0.5
    between: Tensor = sent / sent.norm().clamp_min(tiny) - received / received.norm()
    return between.square().sum() / 2


def cosine_of_blocks(sent: Sequence[Tensor], received: Sequence[Tensor]) -> Float[Tensor, ""]:
    """The mean of ``cosine`` over the blocks that are not zero in what was received, 0 to 2.

    Raises ValueError where all are zero.
    """
    distances = [
        cosine(f.flatten(), y.flatten())
        for f, y in zip(sent, received, strict=True)
        if bool(y.any())
    ]
    if not distances:
        raise ValueError("expected a received block that is not zero")
    return torch.stack(distances).mean()


def squared_norm(values: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The sum of squares."""
    return values.square().sum()


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far what a candidate sends is from what was received: (sent, received) -> ``measure``.

    Every distance is 0 for equal values, so that the private batch itself is a minimum, and has a
    finite value and gradient for a candidate that sends nothing (``tests`` ask all of
    ``DISTANCES``).

    by_block: ``measure`` takes a list of blocks on each side, in place of all values.
    directions: it is blind to the length of what is sent: 0 for a multiple, too.
    likelihood: in units of 2 s^2 it is a -log likelihood. It needs noise and the client simulated,
        and that of a prior is added to it.
    """

    measure: Callable[[Any, Any], Tensor]
    by_block: bool = False
    directions: bool = False
    likelihood: bool = False


DISTANCES: dict[str, Distance] = {
    "euclidean": Distance(measure=euclidean),
    "cosine": Distance(measure=cosine, directions=True),
    "blocks": Distance(measure=cosine_of_blocks, by_block=True, directions=True),
    "likelihood": Distance(
        measure=lambda sent, received: squared_norm(sent - received), likelihood=True
    ),
}
DistanceName = Annotated[str, Setting(choices=tuple(DISTANCES))]
