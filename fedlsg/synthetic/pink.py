"""Colour noise whose amplitude falls as a power of the frequency.

Baradad et al. 2021, "Learning to See by Looking at Noise", call it spectrum noise.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.randomness import check_cpu

MEAN, CONTRAST = 0.5, 0.22
"""Of the pixels, before those outside of 0..1 (one in 40) are cut off."""


def pink(
    count: int,
    shape: tuple[int, int, int],
    generator: torch.Generator,
    *,
    alpha: float = 1.5,
    correlation: float = 0.9,
) -> Float[Tensor, "count c h w"]:
    """``count`` images (channels, height, width) in 0..1, float32: Gaussian noise with amplitude f^-alpha.

    Photographs have an alpha of about 1; the gradients of CIFAR-10 are met better at 1.5.

    Its power spectrum is f^(-2 alpha), with f = (f_y^2 + f_x^2)^(1/2) in cycles a pixel; the mean of an image has the
    amplitude of the lowest other frequency. ``correlation``: between any two channels.
    Guarantee: a function of its arguments; the last bits may differ where torch has another Fourier transform.
    Raises ValueError for a generator of another device, an empty shape, or a correlation outside 0..1.
    """
    check_cpu(generator)
    channels, height, width = shape
    if count < 0 or min(shape) < 1 or not 0 <= correlation <= 1:
        raise ValueError(f"expected {count=} >= 0, {correlation=} in 0..1 and at least one pixel and channel: {shape=}")
    white = torch.randn(count, channels + 1, height, width, generator=generator)
    common, own = white[:, :1], white[:, 1:]
    mixed = math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own
    amplitude = _amplitude(height, width, alpha)
    noise: Tensor = torch.fft.irfft2(torch.fft.rfft2(mixed) * amplitude, s=(height, width))
    return (MEAN + CONTRAST * noise).clamp_(0, 1)


def _amplitude(height: int, width: int, alpha: float) -> Float[Tensor, "h half"]:
    """f^-alpha over the half plane of a real transform, scaled so that pixels have variance 1."""
    down, across = torch.fft.fftfreq(height, dtype=torch.float64), torch.fft.fftfreq(width, dtype=torch.float64)
    frequency = (down.unsqueeze(1) ** 2 + across.unsqueeze(0) ** 2).sqrt()
    frequency[0, 0] = 1 / max(height, width)
    amplitude = frequency**-alpha
    scaled: Tensor = (amplitude / amplitude.square().mean().sqrt())[:, : width // 2 + 1]
    return scaled.float()
