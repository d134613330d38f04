"""Random patches as filters: fixed features of an image, made from public draws alone.

Symbols (Coates, Ng and Lee 2011, with random patches in the place of learnt ones):
    u   a patch of P x P pixels of all channels, less its mean, divided by its deviation
    Z   (S + ZCA_DAMPING)^(-1/2), S the covariance of u over patches of synthetic images
    f   a filter: Z (u - m) for one synthetic patch u, m their mean, of length 1
    s   soft threshold of f . Z (u - m) at THRESHOLD, for each filter and each place of the patch
The features are the means of max(s, 0) and of max(-s, 0) in ``places`` x ``places`` parts of the
image, normalised to mean 0 and variance 1 over the image's features; the same of the image at half
its size, and so on, one scale after the other. The synthetic images are dead leaves, so that
nothing is learnt from data, and the features of an image depend on that image alone.

Differs from the source: filters are patches of synthetic images, and not the means of clusters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers.probe.synthetic import dead_leaves
from fedlsg.randomness import public_generator

LEAVES = 600
"""Synthetic images whose patches give covariance and filters."""
PATCHES = 100_000
"""Their patches that are looked at, at most."""
CONTRAST = 10 / 255**2
"""Added to a patch's variance, so that plain patches are not all noise."""
ZCA_DAMPING = 0.1
THRESHOLD = 0.5
LEAST_LENGTH = 0.5
"""A filter is longer than this share of the median whitened patch: no plain patch becomes one."""
SMALLEST_VARIANCE = 1e-12
Shape = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class PatchSettings:
    """``filters`` K, ``size`` P in pixels, ``places`` on a side, ``scales``: 1, or more with halves
    of the image.
    """

    filters: int = 512
    size: int = 6
    places: int = 2
    scales: int = 1

    def check(self, shape: Shape) -> None:
        """Raises ValueError for images (channels, height, width) that are too small."""
        side = min(shape[1:]) >> (self.scales - 1)
        least = self.size + self.places - 1
        if side < least:
            raise ValueError(
                f"features=patches with patch_size={self.size}, patch_places={self.places} and "
                f"patch_scales={self.scales} needs images of {least << (self.scales - 1)} pixels "
                f"on a side, got {shape}: give smaller ones, or image_size"
            )


def patch_filters(shape: Shape, settings: PatchSettings) -> Mapping[str, np.ndarray]:
    """``weight`` (K, channels P P) and ``bias`` (K,) of every scale, float32, named by its number.

    f . Z (u - m) is (weight . v) / d + bias, v the patch as it is and d its deviation: the weights
    of a filter have mean 0.
    """
    settings.check(shape)
    arrays: dict[str, np.ndarray] = {}
    for scale in range(settings.scales):
        generator = public_generator(0, "features", f"patches of scale {scale}")
        leaves = _halved(dead_leaves(LEAVES, shape, generator), scale)
        weight, bias = _of_patches(_some_patches(leaves, settings.size, generator), settings)
        arrays |= {f"weight{scale}": weight.numpy(), f"bias{scale}": bias.numpy()}
    return arrays


def _some_patches(
    images: Float[Tensor, "n c h w"], size: int, generator: torch.Generator
) -> Float[Tensor, "m cpp"]:
    """u of patches at random, at most PATCHES, in float64."""
    patches = F.unfold(images, size).mT.flatten(0, 1)
    patches = patches[torch.randperm(len(patches), generator=generator)[:PATCHES]].double()
    centred = patches - patches.mean(1, keepdim=True)
    return centred * (centred.square().mean(1, keepdim=True) + CONTRAST).rsqrt()


def _of_patches(
    u: Float[Tensor, "m cpp"], settings: PatchSettings
) -> tuple[Float[Tensor, "K cpp"], Float[Tensor, " K"]]:
    mean = u.mean(0)
    S = (u - mean).mT @ (u - mean) / len(u)
    values, axes = torch.linalg.eigh(S)
    Z = (axes * (values.clamp(min=0) + ZCA_DAMPING).rsqrt()) @ axes.mT
    whitened = (u - mean) @ Z
    lengths = whitened.norm(dim=1)
    whitened = whitened[lengths > LEAST_LENGTH * lengths.median()]
    if len(whitened) < settings.filters:
        raise ValueError(
            f"patch_filters={settings.filters}: images of this size give {len(whitened):,} filters"
        )
    f = F.normalize(whitened[: settings.filters], dim=1)
    weight = f @ Z
    bias = -(weight @ mean)
    return (weight - weight.mean(1, keepdim=True)).float(), bias.float()


class Patches:
    """(B, C, height, width) in 0..1 -> (B, 2 K scales, places, places), float32: of each scale the
    positive responses of its filters, then the negative ones.

    ``arrays``: of ``patch_filters``. Images are gone through one by one, so a row's bits depend on
    no other row, and the memory is that of one image's maps.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], settings: PatchSettings) -> None:
        self.settings = settings
        self.filters = [
            (torch.tensor(arrays[f"weight{scale}"]), torch.tensor(arrays[f"bias{scale}"]))
            for scale in range(settings.scales)
        ]

    @torch.no_grad()
    def __call__(self, images: Any) -> Float[Tensor, "b maps places places"]:
        return torch.stack([self.of(image) for image in images])

    def of(self, image: Float[Tensor, "c h w"]) -> Float[Tensor, "maps places places"]:
        """Features of one image."""
        scales = [
            self._of_scale(_halved(image[None], scale)[0], *(t.to(image.device) for t in filters))
            for scale, filters in enumerate(self.filters)
        ]
        return torch.cat(scales)

    def _of_scale(
        self, image: Float[Tensor, "c h w"], weight: Tensor, bias: Tensor
    ) -> Float[Tensor, "maps places places"]:
        size, places = self.settings.size, self.settings.places
        rows, columns = (side - size + 1 for side in image.shape[1:])
        centred = (image - 0.5)[None]  # no large mean is subtracted below
        mean, square = (
            F.avg_pool2d(values.mean(1, keepdim=True), size, stride=1).view(-1, 1)
            for values in (centred, centred.square())
        )
        variance = (square - mean.square()).clamp_(min=0)
        u = F.unfold(centred, size)[0].T * (variance + CONTRAST).rsqrt()
        s = F.softshrink(F.linear(u, weight, bias), THRESHOLD)
        of_places = _means_of_places(rows, columns, places).to(image.device)
        mean, magnitude = of_places @ s, of_places @ s.abs_()
        maps = torch.cat([magnitude + mean, magnitude - mean], dim=1).T / 2
        centred = maps - maps.mean()
        scaled = centred * (centred.square().mean() + SMALLEST_VARIANCE).rsqrt()
        return scaled.reshape(-1, places, places)


@cache
def _means_of_places(rows: int, columns: int, places: int) -> Float[Tensor, "parts pixels"]:
    """What the maps of an image are multiplied by for the means of their parts."""
    of_rows, of_columns = (
        F.adaptive_avg_pool2d(torch.eye(side)[None], (places, side))[0] for side in (rows, columns)
    )
    return torch.kron(of_rows, of_columns)


def _halved(images: Float[Tensor, "n c h w"], times: int) -> Float[Tensor, "n c h w"]:
    for _ in range(times):
        images = F.avg_pool2d(images, 2)
    return images
