"""``feature_axes``: features on the principal axes of those of synthetic inputs.

Symbols: x the features of one example as a vector, m their mean and V, lambda the k largest
principal axes and variances over synthetic inputs

    y = ((x - m) V) (lambda / lambda_1 + DAMPING)^POWER, then of length LENGTH

A head on k numbers sends few bytes. No private row is read: the axes follow from public draws.
"""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers.probe.carrier import Draw
from fedlsg.randomness import public_generator
from fedlsg.simulations.workloads.base import Progress
from fedlsg.simulations.workloads.base.cache import load_or_build
from fedlsg.simulations.workloads.features.blocks import Product
from fedlsg.simulations.workloads.features.encode import (
    Encoder,
    digest_arrays,
    digest_inputs,
    encode_rows,
    lengthened,
)

LEAST_ROWS, ROWS_PER_AXIS = 2000, 2
"""Synthetic inputs that axes are taken of."""
POWER, DAMPING = -0.4, 1e-3


def on_axes(
    encoder: Encoder, draw: Draw, count: int, *, cache: Path, progress: Progress
) -> Encoder:
    """The encoder whose features are ``count`` numbers. ``draw``: of the synthetic inputs.

    m and V are computed once and kept in the cache folder. Raises ValueError, at the first example,
    for more axes than features.
    """
    rows = max(LEAST_ROWS, ROWS_PER_AXIS * count)
    drawn = draw(rows, public_generator(0, "features", "axes"))
    inputs = drawn[0] if isinstance(drawn, tuple) else drawn
    key = digest_inputs([inputs], f"{encoder.digest} axes {count} {POWER} {DAMPING}")

    def build() -> dict[str, np.ndarray]:
        progress(f"features of {rows:,} synthetic inputs, for feature_axes")
        mean, axes = axes_of(encode_rows(inputs, encoder).flatten(1), count)
        return {"mean": mean.numpy(), "axes": axes.numpy()}

    arrays = load_or_build(cache, f"features-axes-{key}", build, progress=progress)
    mean = torch.from_numpy(arrays["mean"].copy())
    product = Product(torch.from_numpy(arrays["axes"].copy()))

    def step(features: Tensor) -> Float[Tensor, "rows k"]:
        return product(features.flatten(1) - mean)

    return lengthened(encoder.then(step, digest_arrays(arrays, key)))


def axes_of(
    x: Float[Tensor, "n d"], count: int
) -> tuple[Float[Tensor, " d"], Float[Tensor, "d k"]]:
    """m, and V with its scale, float32. Raises ValueError for more axes than ``x`` has."""
    most = min(len(x) - 1, x.shape[1])
    if count > most:
        raise ValueError(
            f"feature_axes={count}: these features have {most} axes, give as many or fewer"
        )
    mean = x.mean(0)
    centred = (x - mean).double()
    if len(x) < x.shape[1]:
        squares, rows = torch.linalg.eigh(centred @ centred.mT)
        axes = centred.mT @ rows[:, -count:] * squares[-count:].clamp(min=1e-12).rsqrt()
    else:
        squares, axes = torch.linalg.eigh(centred.mT @ centred)
        axes = axes[:, -count:]
    shares = squares[-count:].clamp(min=0) / squares[-1]
    scaled = (axes * (shares + DAMPING) ** POWER).flip(1)  # the largest first
    signs = scaled.gather(0, scaled.abs().argmax(0, keepdim=True)).sign()
    return mean, (scaled * signs).float().contiguous()
