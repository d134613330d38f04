"""Synthetic public inputs in the form of a workload: what its model would be given, were they stored as its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers.probe.source import Draw
from fedlsg.synthetic import dead_leaves, pink

LEAST_SIDE = 8
"""Fewest pixels on a side of what is taken for an image."""
CHANNELS = (1, 3)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pixels:
    """How a workload stores images.

    form: of one stored image, with ``channel`` the place of its channels, None for grey images without.
    black, white: stored values of 0 and 1. whole: whether they are stored as uint8, else as float32.
    prepare: from stored images to the model's inputs: the workload's own, so that it is the same normalisation.
    """

    form: tuple[int, ...]
    channel: int | None = 0
    black: float = 0.0
    white: float = 255.0
    whole: bool = True
    prepare: Callable[[Any], Any]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        sides = [side for place, side in enumerate(self.form) if place != self.channel]
        return (1 if self.channel is None else self.form[self.channel], sides[0], sides[1])

    def inputs(self, images: Float[Tensor, "b c h w"]) -> Any:
        """The model's inputs for images in 0..1."""
        stored = images * (self.white - self.black) + self.black
        stored = stored.round().to(torch.uint8) if self.whole else stored
        placed = stored.squeeze(1) if self.channel is None else stored.movedim(1, self.channel + 1)
        return self.prepare(np.ascontiguousarray(placed.numpy()))

    def images(self, stored: Any) -> Float[Tensor, "b c h w"]:
        """Stored images as images in 0..1."""
        found = (torch.as_tensor(stored).float() - self.black) / (self.white - self.black)
        return found.unsqueeze(1) if self.channel is None else found.movedim(self.channel + 1, 1)


def find_pixels(public: Any, prepare: Callable[[Any], Any]) -> Pixels | None:
    """How some stored public rows hold images; None where they hold something else.

    Images are (channels, height, width) or channels last, or uint8 without channels. Values are 0..255 in integers;
    in floats 0..1, 0..255 or -1..1 if all are there, else standardised ones: black is -2 and white 2.
    """
    array = public if isinstance(public, np.ndarray) else np.zeros(0)
    form: tuple[int, ...] = array.shape[1:]
    dtype = array.dtype
    if dtype != np.uint8 and dtype != np.float32:
        return None
    if len(form) == 2 and dtype == np.uint8:
        channel = None
    elif len(form) == 3 and (form[0] in CHANNELS or form[2] in CHANNELS):
        channel = 0 if form[0] in CHANNELS else 2
    else:
        return None
    if min(side for place, side in enumerate(form) if place != channel) < LEAST_SIDE:
        return None
    black, white = (0.0, 255.0) if dtype == np.uint8 else _range(float(array.min()), float(array.max()))
    return Pixels(form=form, channel=channel, black=black, white=white, whole=dtype == np.uint8, prepare=prepare)


def _range(least: float, most: float) -> tuple[float, float]:
    known = ((0.0, 1.0), (0.0, 255.0), (-1.0, 1.0))
    return next(((black, white) for black, white in known if black <= least and most <= white), (-2.0, 2.0))


def image_draws(pixels: Pixels) -> Mapping[str, Draw]:
    """Synthetic images by name, the default first."""
    return {"leaves": partial(_draw, dead_leaves, pixels), "pink": partial(_draw, pink, pixels)}


def _draw(make: Callable[..., Tensor], pixels: Pixels, count: int, generator: torch.Generator) -> Any:
    return pixels.inputs(make(count, pixels.shape, generator))
