"""Gaussian noise with an exact law: a discrete Gaussian around the real sum, on a fine grid.

Symbols: std the deviation that is claimed, D the grid step, s = DEVIATION_STEPS the deviation in
steps, n + f the sum in steps, with an integer n and |f| <= 1/2, k the sample around f.

    D = std ENLARGED / s        noisy = (n + k) D

Nothing is rounded before the noise, so the sensitivity is that of the sum. The law of n + k is
nearly that of a Gaussian around the sum, of deviation sqrt(s^2 - r^2) D > std, that a second draw
rounds to the grid without a look at the sum: a value that one data set gives, its neighbour gives
too, and about as often (docs/privacy.md, "The noise"). Rounding to the type of the sum comes after.
"""

from fractions import Fraction

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.noise.sampler import (
    BLOCK_SAMPLES,
    Draft,
    draft,
    envelope_of,
    in_blocks,
    in_threads,
    offsets,
    settle,
)
from fedlsg.randomness import SecretStream
from fedlsg.tensors import AT_ONCE_ON_DEVICE, to_device

DEVIATION_STEPS = 256
"""s, the deviation of the noise in grid steps."""
ENLARGED = 1.0001
"""Drawn over claimed deviation. A part of 3.1e-5 pays for the rounding of Lemma 2 of
docs/discrete-noise.md at r = 2; 6.9e-5 are left for the rounding of the sum itself."""
SMALLEST_STD, LARGEST_STD = 1e-280, 1e280
"""Between them grid steps, and the noise, are normal numbers of float64."""


def check_std(std: float) -> None:
    """Raise ValueError for a deviation of which float64 has no grid."""
    if not SMALLEST_STD <= std <= LARGEST_STD:
        raise ValueError(
            f"expected {SMALLEST_STD} <= the noise's deviation {std} <= {LARGEST_STD}: it is "
            "noise_multiplier times clip_norm times noise_share"
        )


def add_gaussian(
    total: Float[Tensor, " count"],
    std: float,
    stream: SecretStream,
) -> Float[Tensor, " count"]:
    """The sum with noise of deviation ``std`` on every coordinate, in the type of the sum.

    Guarantee: coordinates are independent; each has exactly the law of ``discrete_gaussian`` around
    total / D as float64 divides. Up to a factor of 1 +- 1e-67 a coordinate in every probability,
    the vector is post-processing of total + N(0, std^2 (1 + 6.9e-5)^2). The numbers do not depend
    on the number of threads.
    Differs from a Gaussian: values are multiples of D, before they are rounded to the type.
    A value that is not finite stays so. Raises ValueError for a deviation out of range.
    """
    check_std(std)
    if total.dtype not in (torch.float32, torch.float64):
        return add_gaussian(total.double(), std, stream).to(total.dtype)
    total, step = total.detach(), std * ENLARGED / DEVIATION_STEPS
    noisy = torch.empty_like(total)
    if total.device.type == "cpu":
        _on_cpu(total, noisy, step, stream)
    elif len(total):
        _on_device(total, noisy, step, stream)
    return noisy


def _on_cpu(total: Tensor, noisy: Tensor, step: float, stream: SecretStream) -> None:
    envelope = envelope_of(Fraction(DEVIATION_STEPS))
    values, out = total.numpy(), noisy.numpy()

    def add(place: slice, own: SecretStream) -> None:
        with np.errstate(all="ignore"):  # values that are not finite
            centres = np.divide(values[place], step, dtype=np.float64)
            whole = np.rint(centres)
            centres -= whole  # exact
            whole += offsets(centres, envelope, own)
            np.multiply(whole, step, out=out[place], casting="same_kind")

    in_blocks(len(values), stream, add)


def _on_device(total: Tensor, noisy: Tensor, step: float, stream: SecretStream) -> None:
    """The same numbers. Drafts need no sum: they are made before the host waits for the device."""
    envelope = envelope_of(Fraction(DEVIATION_STEPS))

    def start(place: slice, own: SecretStream) -> Draft:
        return draft(place.stop - place.start, envelope, own)

    drafts = in_blocks(len(total), stream, start)
    at_once = AT_ONCE_ON_DEVICE // BLOCK_SAMPLES
    parts = zip(total.split(AT_ONCE_ON_DEVICE), noisy.split(AT_ONCE_ON_DEVICE), strict=True)
    for number, (values, out) in enumerate(parts):
        blocks = drafts[number * at_once : (number + 1) * at_once]
        centres = values.double() / step
        whole = centres.round()
        centres.sub_(whole)  # exact
        places = np.concatenate(
            [BLOCK_SAMPLES * i + block.places for i, block in enumerate(blocks)]
        )
        (there,) = to_device([torch.from_numpy(places)], total.device)
        ends = np.cumsum([len(block.places) for block in blocks])
        fractions = np.split(centres[there].cpu().numpy(), ends[:-1])
        settled = in_threads(len(values), settle, blocks, fractions, [envelope] * len(blocks))
        k = np.concatenate([block.k.astype(np.int32) for block in blocks])
        k[places] = np.concatenate(settled)
        (drawn,) = to_device([torch.from_numpy(k)], total.device)
        out.copy_(whole.add_(drawn).mul_(step))
