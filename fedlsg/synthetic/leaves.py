"""Dead leaves: images of shapes that hide one another, with sizes that follow a power law.

Lee, Mumford and Huang 2001, "Occlusion Models for Natural Images"; as training data: Baradad et al. 2021, "Learning to
See by Looking at Noise". With a density of sizes proportional to r^-3 the images look alike at every scale, as
photographs do: edges, plain areas, and occlusion.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.randomness import check_cpu

SMALLEST, LARGEST = 3.0, 0.5
"""Least radius in pixels (an eighth of the shorter side, if that is less); the largest as a share of that side."""
COVER = 1.5
"""Pixels for each leaf, in squares of the least radius: an image of 32x32 has 75 leaves, which leave 1 % bare."""
CHROMA = 0.4
"""Share of a colour that is each channel's own; the rest is a grey. Photographs have more of it, noise less."""
AT_ONCE = 2**7
"""Images that are painted at once."""


def dead_leaves(count: int, shape: tuple[int, int, int], generator: torch.Generator) -> Float[Tensor, "count c h w"]:
    """``count`` images (channels, height, width) in 0..1, float32: discs and turned squares in plain colours.

    Centres are uniform over the image; each leaf hides what is below it. Every second leaf is a square in its disc.
    Differs from the sources: the number of leaves is fixed (COVER), and a plain backing shows between them; colours are
    nearer to grey (CHROMA): on CIFAR-10 their gradients then lie closer to those of photographs.
    Guarantee: equal bits on every machine, for only additions, products, quotients and comparisons of IEEE numbers
    are used. Raises ValueError for a generator of another device, or an empty shape.
    """
    check_cpu(generator)
    if count < 0 or min(shape) < 1:
        raise ValueError(f"expected {count=} >= 0 and at least one pixel and channel, got {shape=}")
    parts = [_paint(min(AT_ONCE, count - start), shape, generator) for start in range(0, count, AT_ONCE)]
    return torch.cat(parts) if parts else torch.zeros(0, *shape)


def smallest(side: int) -> float:
    """Least radius on images with this shorter side."""
    return min(SMALLEST, side / 8)


def squared_radii(count: int, side: int, generator: torch.Generator) -> Float[Tensor, " count"]:
    """r^2 of leaves in pixels: r has a density proportional to r^-3 on ``smallest(side)`` .. LARGEST side.

    The inverse distribution function of r^-2 is linear: r^-2 = a - u (a - b) with u uniform.
    """
    a, b = smallest(side) ** -2, (LARGEST * side) ** -2
    return 1 / (a - torch.rand(count, generator=generator, dtype=torch.float64) * (a - b))


def _paint(count: int, shape: tuple[int, int, int], generator: torch.Generator) -> Float[Tensor, "count c h w"]:
    channels, height, width = shape
    leaves = max(1, int(height * width / (COVER * smallest(min(height, width)) ** 2)))
    grey, own = (torch.rand(count, k, leaves + 1, generator=generator) for k in (1, channels))  # 0: the backing's
    colours = (1 - CHROMA) * grey + CHROMA * own
    centres = torch.rand(count * leaves, 2, generator=generator) * torch.tensor([height, width])
    squared = squared_radii(count * leaves, min(height, width), generator).float()
    turns = torch.rand(count * leaves, generator=generator)
    top = torch.zeros(count * height * width, dtype=torch.int64)
    reach = 1
    while reach < 2 * LARGEST * min(height, width):
        reach *= 2  # leaves of one octave of radii touch pixels at most so far from the centre's own
        chosen = ((squared < reach**2) & (squared >= (reach / 2) ** 2)).nonzero().squeeze(1)
        for square in (0, 1):
            some = chosen[chosen % 2 == square]
            forms = (centres[some], squared[some], turns[some] if square else None)
            pixels, which = _covered(*forms, reach, (height, width))
            leaf = some[which]
            top.scatter_reduce_(0, leaf // leaves * (height * width) + pixels, leaf % leaves + 1, "amax")
    index = top.view(count, 1, height * width).expand(-1, channels, -1)
    return colours.gather(2, index).view(count, *shape)


def _covered(
    centres: Tensor, squared: Tensor, turns: Tensor | None, reach: int, size: tuple[int, int]
) -> tuple[Int64[Tensor, " p"], Int64[Tensor, " p"]]:
    """Pixels that leaves cover, as row * width + column, and for each the leaf's place among those given.

    centres (n, 2); squared (n,) radii; turns (n,) make squares, None discs.
    """
    corner = centres.floor()
    steps = torch.arange(-reach, reach + 1)
    rows, columns = (corner[:, axis, None] + steps for axis in (0, 1))
    down, across = (rows + 0.5 - centres[:, :1]).unsqueeze(2), (columns + 0.5 - centres[:, 1:]).unsqueeze(1)
    limit = squared.view(-1, 1, 1)
    if turns is None:
        inside = down * down + across * across <= limit
    else:
        # turned by 0 to 90 degrees; t is the tangent of half the angle, as sine and cosine round as a machine likes
        t = turns.view(-1, 1, 1)
        cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
        first, second = cos * down - sin * across, sin * down + cos * across
        inside = torch.maximum(first * first, second * second) <= limit / 2
    inside &= ((rows >= 0) & (rows < size[0])).unsqueeze(2) & ((columns >= 0) & (columns < size[1])).unsqueeze(1)
    which, row, column = inside.nonzero(as_tuple=True)
    return rows[which, row].long() * size[1] + columns[which, column].long(), which
