"""Two-dimensional scattering transform of order 2 with J = 2 scales and L = 8 angles: fixed
features of an image.

Symbols (Bruna and Mallat 2013; Oyallon et al. 2019): x an image, * circular convolution on the
    padded grid
    phi Gaussian low pass of standard deviation 0.8 * 2        psi_j,a Morlet wavelet of scale j in
                                                               {0, 1}, angle a
    S0 = x * phi     S1[j, a] = |x * psi_j,a| * phi     S2[a, b] = ||x * psi_0,a| * psi_1,b| * phi
taken at every fourth pixel: 1 + 16 + 64 = 81 coefficients a channel. The padding mirrors the image
by 4 pixels. The filters, their order and the subsampling are those of kymatio 0.3
(``Scattering2D(J=2, L=8)``). The results differ in one constant: kymatio normalises every filter by
3.1415 instead of pi. Nothing is learnt, nothing is random, and the features of an image depend on
that image alone.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor, nn

SCALES, ANGLES = 2, 8
COEFFICIENTS = 1 + SCALES * ANGLES + ANGLES * ANGLES
_STEP = 2**SCALES
_PLANES = 8
"""Planes (an image has one a channel) transformed at once on a CPU, so that they stay in its
cache.
"""


class Scattering2d(nn.Module):
    """(B, C, side, side) -> (B, 81 C, side / 4, side / 4): S0, S1 by scale and angle, S2 by first
    angle; C outermost.

    Has no parameters; its filters are buffers outside the state dict. Its input gets no gradient.
    Raises ValueError for a side that is not a multiple of 4, or below 8.
    """

    low0: Tensor
    low1: Tensor
    wave0: Tensor
    wave1: Tensor

    def __init__(self, side: int) -> None:
        super().__init__()
        if side < 8 or side % _STEP:
            raise ValueError(
                f"expected a side of at least 8 that is a multiple of {_STEP}, got {side=}"
            )
        self.side = side
        padded = side + 2 * _STEP
        self.register_buffer("low0", _low_pass(padded, 0), persistent=False)
        self.register_buffer("low1", _low_pass(padded, 1), persistent=False)
        for scale in range(SCALES):
            waves = torch.stack([_morlet(padded, scale, angle) for angle in range(ANGLES)])
            # _subsample, which follows each wave of scale 1, multiplies by 4
            waves = waves / 4**scale
            self.register_buffer(
                f"wave{scale}", waves.to(torch.get_default_dtype()), persistent=False
            )

    @torch.no_grad()
    def forward(self, x: Float[Tensor, "b c side side"]) -> Float[Tensor, "b coefficients low low"]:
        if x.shape[2:] != (self.side, self.side):
            raise ValueError(
                f"expected images of {self.side}x{self.side} pixels, got shape {tuple(x.shape)}"
            )
        planes = F.pad(x, (_STEP,) * 4, mode="reflect").flatten(0, 1)
        tile = _PLANES if x.device.type == "cpu" else 64 * _PLANES
        low = self.side // _STEP
        features = (
            [self._transform(t.to(self.low0.dtype)) for t in planes.split(tile)]
            if len(planes)
            else []
        )
        stacked = torch.cat(features) if features else planes.new_zeros(0, COEFFICIENTS, low, low)
        return stacked.reshape(x.shape[0], x.shape[1] * COEFFICIENTS, low, low)

    def _transform(self, x: Float[Tensor, "planes p p"]) -> Float[Tensor, "planes 81 low low"]:
        spectrum = torch.fft.fft2(x).unsqueeze(1)
        fine = torch.fft.ifft2(spectrum * self.wave0).abs()
        coarse = torch.fft.ifft2(_subsample(spectrum * self.wave1)).abs()
        second = torch.fft.ifft2(_subsample(torch.fft.fft2(fine).unsqueeze(2) * self.wave1)).abs()
        return torch.cat(
            [
                _smooth(x.unsqueeze(1), self.low0),
                _smooth(fine, self.low0),
                _smooth(coarse, self.low1),
                _smooth(second.flatten(1, 2), self.low1),
            ],
            dim=1,
        )


def _smooth(
    u: Float[Tensor, "planes k p p"], low: Float[Tensor, "low p"]
) -> Float[Tensor, "planes k low low"]:
    """u * phi at every fourth pixel of the image: the Gaussian is a product of a row and a column
    filter.
    """
    smoothed: Tensor = low @ u @ low.mT
    return smoothed


def _subsample(spectrum: Complex[Tensor, "*k p p"]) -> Complex[Tensor, "*k half half"]:
    """Four times the spectrum of every second row and column of a signal, from the signal's."""
    half = spectrum.shape[-1] // 2
    # 20 times as fast as one mean over both axes
    rows: Tensor = spectrum[..., :half, :] + spectrum[..., half:, :]
    return rows[..., :half] + rows[..., half:]


def _low_pass(padded: int, scale: int) -> Float[Tensor, "low p"]:
    """Rows that smooth a signal of ``padded / 2**scale`` samples by phi, at every fourth pixel
    inside the padding.
    """
    sigma, size, step = 0.8 * 2 ** (SCALES - 1), padded // 2**scale, _STEP // 2**scale
    at = torch.arange(padded, dtype=torch.float64)
    copies = at + padded * torch.arange(-2, 3, dtype=torch.float64).unsqueeze(1)
    phi = (-(copies**2) / (2 * sigma**2)).exp().sum(0) / math.sqrt(2 * math.pi * sigma**2)
    spectrum = torch.fft.fft(phi).real
    if scale:
        # Frequencies that a coarser grid cannot hold are cut before they fold onto others.
        spectrum[padded // 4 : padded // 4 + padded // 2] = 0
        spectrum = spectrum.unflatten(0, (2, size)).sum(0)
    kernel = torch.fft.ifft(spectrum).real
    rows = [kernel.roll(step * (1 + i)) for i in range(padded // _STEP - 2)]
    return torch.stack(rows).to(torch.get_default_dtype())


def _morlet(padded: int, scale: int, angle: int) -> Float[Tensor, "p p"]:
    """The spectrum of a Morlet wavelet: a Gabor filter less as much of its envelope as makes the
    mean zero.
    """
    sigma, frequency, slant = 0.8 * 2**scale, 3 / 4 * math.pi / 2**scale, 4 / ANGLES
    theta = (ANGLES // 2 - 1 - angle) * math.pi / ANGLES
    cos, sin = math.cos(theta), math.sin(theta)
    at = torch.arange(-2 * padded, 3 * padded, dtype=torch.float64)
    down, right = at.unsqueeze(1), at.unsqueeze(0)
    along, across = cos * down + sin * right, cos * right - sin * down
    envelope = (-(along**2 + (slant * across) ** 2) / (2 * sigma**2)).exp()
    gabor = _periodic(envelope * torch.polar(torch.ones_like(along), frequency * along), padded)
    envelope = _periodic(envelope, padded)
    wavelet = gabor - gabor.sum() / envelope.sum() * envelope
    spectrum: Tensor = torch.fft.fft2(wavelet).real
    spectrum *= slant / (2 * math.pi * sigma**2)
    return spectrum


def _periodic(signal: Tensor, size: int) -> Tensor:
    """The sum of the size x size tiles of a signal."""
    tiles: Tensor = signal.unflatten(1, (-1, size)).unflatten(0, (-1, size))
    return tiles.sum((0, 2))
