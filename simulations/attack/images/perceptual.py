"""LPIPS (Zhang et al. 2018): how different two images look, by the features of AlexNet; 0 for equal ones.

The package ``lpips`` is no dependency: scores have an LPIPS where it is installed, with torchvision and its weights.
Images here are small, and AlexNet fails below about 32 pixels: smaller sides than ``SIDE`` are enlarged to it.
Differs from the paper, where patches have 64 pixels: values of enlarged images are no published LPIPS of small ones.
"""

import logging
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from fedlsg.attacks.inversion.prior import Prior

Perceptual = Callable[[Tensor, Tensor], Tensor]
"""Two batches (B, 3, h, w) in [-1, 1], float32 -> B distances."""

SIDE = 64
"""Least pixels of a side, as in the patches that LPIPS was made with."""
CHANNELS = (1, 3)
"""Grey or RGB; LPIPS is not defined for other images."""
log = logging.getLogger(__name__)


def distances(
    images: Float[Tensor, "batch c h w"], truth: Float[Tensor, "batch c h w"], prior: Prior, perceptual: Perceptual
) -> tuple[float, ...]:
    """The perceptual distance of each pair, from images in the units of the model.

    Raises ValueError for images that are neither grey nor RGB.
    """
    with torch.no_grad():
        found = perceptual(as_seen(images, prior), as_seen(truth, prior))
    return tuple(found.flatten().tolist())


def as_seen(images: Float[Tensor, "batch c h w"], prior: Prior) -> Float[Tensor, "batch 3 height width"]:
    """RGB in [-1, 1], float32, of ``SIDE`` pixels a side or more; grey is repeated, small images are enlarged."""
    if images.shape[1] not in CHANNELS:
        raise ValueError(f"expected images of {CHANNELS} channels, got shape {tuple(images.shape)}")
    low, high = prior.bounds
    scaled = 2 * ((images.double().cpu() - low) / (high - low)).clamp(0, 1) - 1
    seen = scaled.float().expand(-1, 3, -1, -1)
    height, width = seen.shape[2:]
    if min(height, width) < SIDE:
        larger = SIDE / min(height, width)
        size = [round(height * larger), round(width * larger)]
        seen = F.interpolate(seen, size=size, mode="bilinear", align_corners=False)
    return seen


@cache
def alexnet() -> Perceptual | None:
    """LPIPS on AlexNet; None where the package is absent, and, with one line in the log, where it does not load.

    Its first use asks torchvision for the weights of AlexNet, which downloads them if they are not in torch's cache.
    """
    if find_spec("lpips") is None:
        return None
    try:
        from lpips import LPIPS

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lpips asks torchvision for weights in an old form
            net = LPIPS(net="alex", verbose=False)
    except (ImportError, OSError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        log.warning("no LPIPS in the report: the package lpips is installed but does not load (%s)", why)
        return None
    return on(net.eval().requires_grad_(False))


def on(net: torch.nn.Module) -> Perceptual:
    """The distance that a network of the package gives, one number for each pair of images."""
    return lambda images, truth: net(images, truth).flatten()
