"""Scattering features against their definition: sums over pixels in space, without a Fourier transform."""

import math

import numpy as np
import pytest
import torch

from simulations.models import scattering
from simulations.models.scattering import Scattering2d

SIDE, PADDED = 8, 16
FIRST = {(0, 0): 1, (0, 5): 6, (1, 3): 9 + 3}
"""Coefficients of order 1 by scale and angle: 1 + 8 scale + angle."""
SECOND = {(0, 0): 17, (2, 6): 17 + 8 * 2 + 6}
"""Coefficients of order 2 by both angles: 17 + 8 first + second."""


def morlet(scale: int, angle: int) -> np.ndarray:
    """psi (PADDED, PADDED) around (0, 0), periodic: a Gabor filter less its envelope, so that the sum is zero."""
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 0.5
    theta = (3 - angle) * math.pi / 8
    total, envelopes = np.zeros((PADDED, PADDED), complex), np.zeros((PADDED, PADDED))
    for down in range(-3 * PADDED, 3 * PADDED):
        for right in range(-3 * PADDED, 3 * PADDED):
            along = down * math.cos(theta) + right * math.sin(theta)
            across = right * math.cos(theta) - down * math.sin(theta)
            envelope = math.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
            total[down % PADDED, right % PADDED] += envelope * complex(
                math.cos(frequency * along), math.sin(frequency * along)
            )
            envelopes[down % PADDED, right % PADDED] += envelope
    return (total - total.sum() / envelopes.sum() * envelopes) * slant / (2 * math.pi * sigma**2)


def low_pass() -> np.ndarray:
    """phi: a periodic Gaussian of standard deviation 1.6 and sum 1."""
    at = np.arange(-3 * PADDED, 3 * PADDED)
    line = np.exp(-(at**2) / (2 * 1.6**2)) / math.sqrt(2 * math.pi * 1.6**2)
    wrapped = np.zeros(PADDED)
    np.add.at(wrapped, at % PADDED, line)
    return np.outer(wrapped, wrapped)


def convolve(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Circular convolution, term by term."""
    found = np.zeros_like(kernel * x)
    for down in range(PADDED):
        for right in range(PADDED):
            found = found + kernel[down, right] * np.roll(x, (down, right), (0, 1))
    return found


def sampled(x: np.ndarray) -> np.ndarray:
    """Every fourth pixel of the image inside the padding."""
    return x[4:12:4, 4:12:4]


def by_definition(image: np.ndarray) -> dict[int, np.ndarray]:
    x, phi = np.pad(image, 4, mode="reflect"), low_pass()
    found = {0: sampled(convolve(x, phi))}
    for (scale, angle), place in FIRST.items():
        found[place] = sampled(convolve(abs(convolve(x, morlet(scale, angle))), phi))
    for (first, second), place in SECOND.items():
        inner = abs(convolve(x, morlet(0, first)))
        found[place] = sampled(convolve(abs(convolve(inner, morlet(1, second))), phi))
    return found


def differences() -> dict[int, float]:
    """The largest difference from the definition by coefficient, as a share of its largest value."""
    image = np.random.default_rng(0).normal(size=(SIDE, SIDE))
    got = Scattering2d(SIDE).double()(torch.from_numpy(image)[None, None])[0].numpy()
    return {
        place: float(abs(got[place] - want).max() / abs(want).max()) for place, want in by_definition(image).items()
    }


def test_features_are_those_of_the_definition():
    """Where scale 1 takes part, the modulus is sampled before the low pass, as kymatio does it: a few % fold over."""
    found = differences()
    exact = [found.pop(place) for place in (0, FIRST[0, 0], FIRST[0, 5])]
    assert max(exact) < 1e-6
    assert max(found.values()) < 0.05


def swapped_angles(patch: pytest.MonkeyPatch) -> None:
    honest = scattering._morlet
    patch.setattr(scattering, "_morlet", lambda padded, scale, angle: honest(padded, scale, 7 - angle))


def no_modulus(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.Tensor, "abs", lambda x: x.real if x.is_complex() else x)


@pytest.mark.parametrize("plant", [swapped_angles, no_modulus])
def test_a_planted_mistake_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    assert max(differences().values()) > 0.1
