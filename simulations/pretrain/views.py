"""Random views of images: crop, flip, contrast and colour, drawn row by row from one generator.

The images are inputs of a model, normalised in any way: crops and flips do not ask, and contrast and brightness are
drawn in units of each image's own standard deviation.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

LEAST_CROP = 0.25
"""Least side of a crop, as a share of the image's."""
CONTRAST, BRIGHTNESS, COLOUR = 0.4, 0.4, 0.2
"""Half widths of the uniform factor of an image, its shift, and the factor of each channel."""
GREY = 0.2
"""Chance of a view without colour."""


def random_view(images: Float[Tensor, "b c h w"], generator: torch.Generator) -> Float[Tensor, "b c h w"]:
    """One view of each image, of the same shape; draws are made on the CPU, on every device alike."""
    return recoloured(cropped(images, generator), generator)


def cropped(images: Float[Tensor, "b c h w"], generator: torch.Generator) -> Float[Tensor, "b c h w"]:
    """A random square of each image, scaled to its size, half of them mirrored."""
    count = len(images)
    side, x, y, flip = (torch.rand(count, generator=generator) for _ in range(4))
    side = LEAST_CROP + (1 - LEAST_CROP) * side
    mirror = torch.where(flip < 0.5, -1.0, 1.0)
    zero = torch.zeros(count)
    shift_x, shift_y = ((2 * place - 1) * (1 - side) for place in (x, y))
    rows = [torch.stack([side * mirror, zero, shift_x], 1), torch.stack([zero, side, shift_y], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1).to(images.device), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def recoloured(images: Float[Tensor, "b c h w"], generator: torch.Generator) -> Float[Tensor, "b c h w"]:
    """Other contrast, brightness and colours; some images in grey."""
    count, channels = images.shape[:2]

    def uniform(width: float, columns: int) -> Tensor:
        drawn = (2 * torch.rand(count, columns, 1, 1, generator=generator) - 1) * width
        return drawn.to(images.device)

    factor = (1 + uniform(CONTRAST, 1)) * (1 + uniform(COLOUR, channels))
    shift = uniform(BRIGHTNESS, 1)
    grey = (torch.rand(count, 1, 1, 1, generator=generator) < GREY).to(images.device)
    spread, mean = torch.std_mean(images, dim=(1, 2, 3), keepdim=True)
    plain = torch.where(grey, images.mean(1, keepdim=True), images)
    return mean + (plain - mean) * factor + shift * spread
