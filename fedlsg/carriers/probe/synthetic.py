"""Synthetic public images that a seed makes, from no data at all.

    dead_leaves    shapes of many sizes, each in front of those before it
    pink           noise whose amplitude falls as a power of the frequency

Both are functions of their arguments and a CPU generator, so what is computed from them costs no
privacy.
Dead leaves: Lee, Mumford and Huang 2001, "Occlusion Models for Natural Images". As training data,
and spectrum noise: Baradad et al. 2021, "Learning to See by Looking at Noise". With a density of
sizes proportional to r^-3 the images look alike at every scale, as photographs do: edges, plain
areas, and occlusion.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.randomness import check_cpu

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""

SMALLEST = 3.0
"""Least radius in pixels; an eighth of the image's shorter side, if that is less."""
LARGEST = 0.5
"""Largest radius as a share of the image's shorter side."""
COVER = 1.5
"""Pixels for each leaf, over the square of the least radius: an image of 32x32 has 75 leaves, which
leave 1 % bare.
"""
CHROMA = 0.4
"""Share of a colour that is drawn for each channel; the rest is a grey, one for all channels."""
AT_ONCE = 2**7
"""Images that are painted at once."""


def dead_leaves(
    count: int, shape: Shape, generator: torch.Generator
) -> Float[Tensor, "count c h w"]:
    """``count`` images (channels, height, width) in 0..1, float32: discs and turned squares in
    plain colours.

    Centres are uniform over the image; each leaf hides what is below it. Every second leaf is a
    square in its disc.
    Differs from the sources: the number of leaves is fixed (COVER), and a plain background shows
    between them. Colours are nearer to grey (CHROMA): on CIFAR-10 their gradients are then nearer
    to those of photographs.
    Guarantee: equal bits on every machine, because only additions, products, quotients and
    comparisons of IEEE numbers are used. Raises ValueError for a generator of another device, or an
    empty shape.
    """
    _check(count, shape, generator)
    parts = [torch.zeros(0, *shape)]
    for start in range(0, count, AT_ONCE):
        parts.append(_paint(min(AT_ONCE, count - start), shape, generator))
    return torch.cat(parts)


def _check(count: int, shape: Shape, generator: torch.Generator) -> None:
    """Raise ValueError for a generator of another device, or for images without a pixel."""
    check_cpu(generator)
    if count < 0 or min(shape) < 1:
        raise ValueError(f"expected {count=} >= 0 and at least one pixel and channel, got {shape=}")


def smallest(side: int) -> float:
    """Least radius on images with this shorter side."""
    return min(SMALLEST, side / 8)


def squared_radii(count: int, side: int, generator: torch.Generator) -> Float[Tensor, " count"]:
    """r^2 of leaves in pixels: r has a density proportional to r^-3 on ``smallest(side)`` ..
    LARGEST side.

    The inverse distribution function of r^-2 is linear: r^-2 = a - u (a - b) with u uniform.
    """
    a, b = smallest(side) ** -2, (LARGEST * side) ** -2
    return 1 / (a - torch.rand(count, generator=generator, dtype=torch.float64) * (a - b))


def _paint(count: int, shape: Shape, generator: torch.Generator) -> Float[Tensor, "count c h w"]:
    """``count`` images: the colour of each pixel is that of the last leaf that covers it.

    Colour 0 of an image is its background, colour i + 1 that of its leaf i.
    """
    channels, height, width = shape
    side, pixels = min(height, width), height * width
    leaves = max(1, int(pixels / (COVER * smallest(side) ** 2)))
    total = count * leaves
    grey = torch.rand(count, 1, leaves + 1, generator=generator)
    of_channels = torch.rand(count, channels, leaves + 1, generator=generator)
    colours = (1 - CHROMA) * grey + CHROMA * of_channels
    centres = torch.rand(total, 2, generator=generator) * torch.tensor([height, width])
    squares = squared_radii(total, side, generator).float()
    turns = torch.rand(total, generator=generator)
    top = torch.zeros(count * pixels, dtype=torch.int64)  # the colour of each pixel
    reach = 1
    while reach < 2 * LARGEST * side:
        # Leaves of one octave of radii together: each covers pixels at most ``reach`` rows and
        # columns from its centre's.
        reach *= 2
        octave = ((squares < reach**2) & (squares >= (reach / 2) ** 2)).nonzero().squeeze(1)
        for is_square in (0, 1):
            numbers = octave[octave % 2 == is_square]
            angles = turns[numbers] if is_square else None
            pixel, place = _covered(
                centres[numbers], squares[numbers], angles, reach, (height, width)
            )
            image, leaf = numbers[place] // leaves, numbers[place] % leaves
            top.scatter_reduce_(0, image * pixels + pixel, leaf + 1, "amax")
    index = top.view(count, 1, pixels).expand(-1, channels, -1)
    return colours.gather(2, index).view(count, *shape)


def _covered(
    centres: Float[Tensor, "n 2"],
    squares: Float[Tensor, " n"],
    turns: Float[Tensor, " n"] | None,
    reach: int,
    size: tuple[int, int],
) -> tuple[Int64[Tensor, " p"], Int64[Tensor, " p"]]:
    """Pixels that n leaves cover, as row * width + column, and for each the leaf's place, 0 to n -
    1.

    squares: of the radii.
    turns: 0 to 1 for 0 to 90 degrees, of squares; None for discs.
    reach: rows and columns from a centre's pixel that are looked at.
    size: height and width of the image.
    """
    corner = centres.floor()
    steps = torch.arange(-reach, reach + 1)
    rows, columns = corner[:, :1] + steps, corner[:, 1:] + steps
    down = (rows + 0.5 - centres[:, :1]).unsqueeze(2)
    across = (columns + 0.5 - centres[:, 1:]).unsqueeze(1)
    limit = squares.view(-1, 1, 1)
    if turns is None:
        inside = down * down + across * across <= limit
    else:
        # t is the tangent of half the angle: sine and cosine of the library differ in their last
        # bits between machines
        t = turns.view(-1, 1, 1)
        cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
        first, second = cos * down - sin * across, sin * down + cos * across
        inside = torch.maximum(first * first, second * second) <= limit / 2  # half side r / 2^.5
    inside &= ((rows >= 0) & (rows < size[0])).unsqueeze(2)
    inside &= ((columns >= 0) & (columns < size[1])).unsqueeze(1)
    place, row, column = inside.nonzero(as_tuple=True)
    return rows[place, row].long() * size[1] + columns[place, column].long(), place


MEAN, CONTRAST = 0.5, 0.22
"""Mean and standard deviation of pixels, before values outside of 0..1 (one in 40) are cut off."""
ALPHA = 1.5
"""Exponent by which the amplitude falls. Photographs have about 1; with 1.5 the gradients are
nearer to those of CIFAR-10.
"""
CORRELATION = 0.9
"""Correlation of any two channels."""


def pink(count: int, shape: Shape, generator: torch.Generator) -> Float[Tensor, "count c h w"]:
    """``count`` images (channels, height, width) in 0..1, float32: Gaussian noise with amplitude
    f^-ALPHA.

    Its power spectrum is f^(-2 ALPHA), with f = (f_y^2 + f_x^2)^(1/2) in cycles a pixel; the mean
    of an image has the amplitude of the lowest other frequency.
    Guarantee: a function of its arguments; the last bits may differ where torch has another Fourier
    transform.
    Raises ValueError for a generator of another device, or an empty shape.
    """
    _check(count, shape, generator)
    channels, height, width = shape
    white = torch.randn(count, channels + 1, height, width, generator=generator)
    common, of_channels = white[:, :1], white[:, 1:]
    mixed = math.sqrt(CORRELATION) * common + math.sqrt(1 - CORRELATION) * of_channels
    spectrum = torch.fft.rfft2(mixed) * _amplitude(height, width)
    noise: Tensor = torch.fft.irfft2(spectrum, s=(height, width))
    return (MEAN + CONTRAST * noise).clamp_(0, 1)


def _amplitude(height: int, width: int) -> Float[Tensor, "h half"]:
    """f^-ALPHA over the half plane of a real transform, scaled so that pixels have variance 1."""
    down = torch.fft.fftfreq(height, dtype=torch.float64)
    across = torch.fft.fftfreq(width, dtype=torch.float64)
    frequency = (down.unsqueeze(1) ** 2 + across.unsqueeze(0) ** 2).sqrt()
    frequency[0, 0] = 1 / max(height, width)
    amplitude = frequency**-ALPHA
    scaled: Tensor = (amplitude / amplitude.square().mean().sqrt())[:, : width // 2 + 1]
    return scaled.float()
