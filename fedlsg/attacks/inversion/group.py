"""Group consistency (Yin et al. 2021, "See through Gradients"): several searches at once are drawn to one image.

Symbols: G members, each a candidate batch; x_g a member in shares of the range; E their consensus, a batch.
    R = sum over members and images of mean over pixels of (x_g - E)^2
A search from one start ends at one of many images with nearly the same gradient. What members from several starts have
in common is more likely to be in the private image than what one of them has alone.
Differs from the paper: images are registered by whole pixels with a circular shift instead of RANSAC-flow; the square
of the distance instead of the distance; the consensus is recomputed at each evaluation. The paper's statistics of
BatchNorm are left out, because models here have none; its penalty on the norm of an image is left out, too.
Images of equal labels are compared in the order that each member has them.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.inversion.minimize import Energy


def register(members: Float[Tensor, "members batch c h w"]) -> Float[Tensor, "members batch c h w"]:
    """Each image shifted in a circle to where its correlation with the mean of all members is largest.

    Guarantee: members that are equal stay where they are, because no shift correlates more than none.
    """
    spectra = torch.fft.fft2(members - members.mean((-2, -1), keepdim=True))
    correlation = torch.fft.ifft2(spectra.mean(0) * spectra.conj()).real.sum(2).flatten(2)
    best, here = correlation.max(2), correlation[..., 0]
    rounding = math.sqrt(torch.finfo(members.dtype).eps)
    shifts = torch.where(best.values > here + rounding * here.abs(), best.indices, 0)
    width = members.shape[-1]
    rows = [
        [image.roll(divmod(shift, width), (-2, -1)) for image, shift in zip(*one, strict=True)]
        for one in zip(members, shifts.tolist(), strict=True)
    ]
    return torch.stack([torch.stack(row) for row in rows])


def consensus(members: Float[Tensor, "members batch c h w"]) -> Float[Tensor, "batch c h w"]:
    """E: the mean of the registered members, without a graph."""
    return register(members.detach()).mean(0)


def disagreement(members: Float[Tensor, "members batch c h w"]) -> Float[Tensor, ""]:
    """R, whose gradient moves each member towards the consensus.

    Guarantee: it is 0 for members that are equal, and does not depend on their order (to rounding). Where no image is
    shifted, the gradient is the same as with a graph through the mean: the part through the mean is 0.
    """
    return (members - consensus(members)).square().flatten(2).mean(2).sum()


class Group:
    """Energy of members that are searched as one point: the sum of their own, plus ``weight`` times R.

    Keeps the point of lowest own energy: members differ at the end, too, and one of them is the guess.
    images: the batch in a member's point, in shares of the range.
    """

    def __init__(self, energy: Energy, images: Callable[[Tensor], Tensor], *, members: int, weight: float) -> None:
        self.energy, self.images, self.members, self.weight = energy, images, members, weight
        self.point, self.lowest = torch.empty(0), math.inf

    def __call__(self, points: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """The energy of all, with a graph."""
        members = points.reshape(self.members, -1)
        values = torch.stack([self.energy(member) for member in members])
        for member, value in zip(members.detach(), values.tolist(), strict=True):
            if value < self.lowest or not len(self.point):
                self.point, self.lowest = member.clone(), value if math.isfinite(value) else math.inf
        return values.sum() + self.weight * disagreement(torch.stack([self.images(member) for member in members]))
