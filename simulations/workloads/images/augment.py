"""Random flips and crops of images, and the copies of an example whose gradients are averaged.

With multiplicity M the gradients of an example's M copies are averaged before the clip, and the
average is clipped as one (De et al. 2022, "Unlocking High-Accuracy Differentially Private Image
Classification through Scale"): the sensitivity stays as it is. Averaging after the clip, or
clipping each copy as an example, makes the epsilon wrong.

The draws must not link examples either. If others can repeat them (a public seed), an example's
draw must depend on its row in the data set, never on its place in the batch. Otherwise one example
more or less changes how every later one is augmented, and the sum moves by more than one clipped
gradient. ``draw_round`` draws by row, for ``drawn_copies``. ``copies`` draws by place in the batch:
it needs a generator that nobody can repeat.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.simulations.workloads.base.split import Augment

PAD = 4
"""Pixels that reflection adds on every side of an image before the crop."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Pads images by reflection, by PAD pixels, and crops them to the old size at a random place.

    The (2 PAD + 1)^2 places are equally likely, and independent of the flip. One draw for each
    image decides both.

    mirrored: half of the images are flipped from left to right, too.
    """

    mirrored: bool

    @property
    def outcomes(self) -> int:
        """Number of equally likely results for an image: 81, or 162 with flips."""
        return (2 * PAD + 1) ** 2 * (2 if self.mirrored else 1)

    def draw(self, count: int, generator: torch.Generator) -> Int64[Tensor, " count"]:
        """Independent draws in 0..outcomes-1, from ``generator`` alone and on its device."""
        return torch.randint(self.outcomes, (count,), generator=generator, device=generator.device)

    def apply(
        self, images: Float[Tensor, "b c h w"], drawn: Int64[Tensor, " b"]
    ) -> Float[Tensor, "b c h w"]:
        """New images: row i depends on row i and ``drawn[i]`` only. The given images are not
        changed.

        A draw is ``(flip * 9 + left) * 9 + top`` with left and top in 0..8; 4 and 4 is the centre.
        Pixels are gathered from the images: the padded images are never formed.
        Raises ValueError for images of PAD pixels or fewer on a side, which cannot be padded by
        reflection.
        """
        batch, channels, height, width = images.shape
        if min(height, width) <= PAD:
            raise ValueError(
                f"expected images of more than {PAD} pixels on a side to crop, got {height}x{width}"
            )
        places = 2 * PAD + 1
        drawn = drawn.to(images.device)
        rows = _reflected(drawn % places, height)
        columns = _reflected(drawn // places % places, width)
        flip = (drawn // (places * places) == 1).unsqueeze(1)
        columns = torch.where(flip, columns.flip(1), columns)
        pixels = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).view(batch, 1, height * width)
        shifted = images.flatten(2).gather(2, pixels.expand(batch, channels, height * width))
        return shifted.view(batch, channels, height, width)

    def __call__(
        self, images: Float[Tensor, "b c h w"], generator: torch.Generator
    ) -> Float[Tensor, "b c h w"]:
        """Draw and apply; the first rows of a batch do not depend on those that follow."""
        return self.apply(images, self.draw(len(images), generator))


flip_crop = Shift(mirrored=True)
"""As De et al. 2022 augment CIFAR-10."""

crop = Shift(mirrored=False)
"""For classes that a flip would change, such as digits."""


def copies(
    images: Float[Tensor, "b c h w"],
    targets: Int64[Tensor, " b"],
    *,
    multiplicity: int,
    augment: Augment,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "bm c h w"], Int64[Tensor, " bm"]]:
    """M augmented copies of every example, each drawn on its own, in the order of ``drawn_copies``.

    Needs a generator that nobody can repeat. Raises ValueError for M < 1.
    """
    return drawn_copies(
        images, targets, draw_round(augment, len(targets), multiplicity, generator), augment
    )


def draw_round(
    augment: Augment, examples: int, multiplicity: int, generator: torch.Generator
) -> Int64[Tensor, "examples m"]:
    """M draws for every example of a client, whether it is in a batch or not.

    An example of a batch uses its own row of the draws, by its position among the client's
    examples. So ``generator`` may be public. Raises ValueError for M < 1.
    """
    if multiplicity < 1:
        raise ValueError(f"expected {multiplicity=} >= 1")
    return augment.draw(examples * multiplicity, generator).view(examples, multiplicity)


def drawn_copies(
    images: Float[Tensor, "b c h w"],
    targets: Int64[Tensor, " b"],
    drawn: Int64[Tensor, "b m"],
    augment: Augment,
) -> tuple[Float[Tensor, "bm c h w"], Int64[Tensor, " bm"]]:
    """Rows i*M to i*M + M - 1 are the copies of example i, one for each of its draws, with its
    target.

    All M are augmented, as in De et al. 2022; the unchanged image is among them by chance only. M =
    1 is plain augmentation.
    """
    multiplicity = drawn.shape[1]
    many = images.repeat_interleave(multiplicity, dim=0)
    return augment.apply(many, drawn.flatten()), targets.repeat_interleave(multiplicity)


def _reflected(start: Int64[Tensor, " b"], size: int) -> Int64[Tensor, "b size"]:
    """The places in a line of the pixels ``start .. start + size - 1`` of the padded line.

    Place p of the padded line is |p - PAD| on the left, and reflected at size - 1 on the right.
    """
    place = (torch.arange(size, device=start.device) + start.unsqueeze(1) - PAD).abs()
    return torch.where(place < size, place, 2 * (size - 1) - place)
