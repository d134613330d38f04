"""The slope of a power spectrum."""

import torch
from torch import Tensor


def slope(images: Tensor) -> float:
    """Least squares of log power over log frequency, up to half a cycle a pixel; images (count, channels, h, w)."""
    power = torch.fft.fft2(images.double()).abs().square().mean((0, 1))
    height, width = images.shape[2:]
    frequency = (torch.fft.fftfreq(height)[:, None].double() ** 2 + torch.fft.fftfreq(width)[None].double() ** 2).sqrt()
    inside = (frequency > 0) & (frequency <= 0.5)
    x, y = frequency[inside].log(), power[inside].log()
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / x.square().sum())
