"""Gaussian noise with an exact law: a discrete Gaussian around the real sum, on a fine grid.

Symbols: std the deviation that is claimed, D the grid step, s = DEVIATION_STEPS the deviation in
steps, n + f the sum in steps, with an integer n and |f| <= 1/2, k the sample around f.

    D = std ENLARGED / s        noisy = (n + k) D

Nothing is rounded before the noise, so the sensitivity is that of the sum. The law of n + k is
nearly the following: a Gaussian around the sum, of deviation sqrt(s^2 - r^2) D > std, which a
second draw rounds to the grid independently of the sum. So two neighbouring data sets give the same
values, with about the same probabilities (docs/privacy.md, "The noise"). The result is rounded to
the type of the sum afterwards.
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
"""Drawn over claimed deviation. Of the 1e-4, 3.1e-5 cover the rounding of Lemma 2 of
docs/discrete-noise.md at r = 2, and 6.9e-5 the rounding of the sum itself.
"""
SMALLEST_STD, LARGEST_STD = 1e-280, 1e280
"""Deviations for which grid steps and noise are normal numbers of float64."""


def check_std(std: float) -> None:
    """Raise ValueError for a deviation outside of SMALLEST_STD .. LARGEST_STD."""
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
    """Write (n + k) D into ``noisy``; ``step``: D."""
    envelope = envelope_of(Fraction(DEVIATION_STEPS))
    values, out = total.numpy(), noisy.numpy()

    def add(place: slice, block_stream: SecretStream) -> None:
        with np.errstate(all="ignore"):  # values that are not finite
            f = np.divide(values[place], step, dtype=np.float64)
            n = np.rint(f)
            f -= n  # exact
            n += offsets(f, envelope, block_stream)
            np.multiply(n, step, out=out[place], casting="same_kind")

    in_blocks(len(values), stream, add)


def _on_device(total: Tensor, noisy: Tensor, step: float, stream: SecretStream) -> None:
    """As ``_on_cpu``, with the same numbers.

    Drafts need no sum: they are made before the host waits for the device. Then pieces of the sum
    are handled one after the other: the host needs f of the open samples alone.
    """
    envelope = envelope_of(Fraction(DEVIATION_STEPS))

    def start(place: slice, block_stream: SecretStream) -> Draft:
        return draft(place.stop - place.start, envelope, block_stream)

    drafts = in_blocks(len(total), stream, start)
    at_once = AT_ONCE_ON_DEVICE // BLOCK_SAMPLES
    parts = zip(total.split(AT_ONCE_ON_DEVICE), noisy.split(AT_ONCE_ON_DEVICE), strict=True)
    for number, (values, out) in enumerate(parts):
        blocks = drafts[number * at_once : (number + 1) * at_once]
        f = values.double() / step
        n = f.round()
        f.sub_(n)  # exact
        places = np.concatenate(
            [BLOCK_SAMPLES * i + block.places for i, block in enumerate(blocks)]
        )
        (places_on_device,) = to_device([torch.from_numpy(places)], total.device)
        ends = np.cumsum([len(block.places) for block in blocks])
        fractions = np.split(f[places_on_device].cpu().numpy(), ends[:-1])
        settled = in_threads(len(values), settle, blocks, fractions, [envelope] * len(blocks))
        k = np.concatenate([block.k.astype(np.int32) for block in blocks])
        k[places] = np.concatenate(settled)
        (k_on_device,) = to_device([torch.from_numpy(k)], total.device)
        out.copy_(n.add_(k_on_device).mul_(step))
