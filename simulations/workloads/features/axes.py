"""``feature_axes``: features on the principal axes of those of synthetic inputs.

Symbols: x the features of one example as a vector; m their mean, V and lambda the k largest
principal axes and variances, over synthetic inputs

    y = ((x - m) V) (lambda / lambda_1 + DAMPING)^POWER, scaled to the length UNIT_LENGTH

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
"""Axes are computed of ROWS_PER_AXIS synthetic inputs for each axis, and of LEAST_ROWS at least."""
POWER, DAMPING = -0.4, 1e-3
"""The exponent of the variances, and what is added to them as a share of the largest."""
LEAST_VARIANCE = 1e-12
"""A smaller variance is rounding: it is not divided by."""


def on_axes(
    encoder: Encoder, draw: Draw, count: int, *, cache: Path, progress: Progress
) -> Encoder:
    """The encoder whose features are ``count`` numbers, on the axes of inputs from ``draw``.

    m and V are computed once and kept in the cache folder. Raises ValueError for more axes than
    features.
    """
    rows = max(LEAST_ROWS, ROWS_PER_AXIS * count)
    result = draw(rows, public_generator(0, "features", "axes"))
    inputs = result[0] if isinstance(result, tuple) else result
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
    """m, and V with the scale of each axis, float32; the axis of the largest variance is first.

    With X = x - m (n, d), axes are eigenvectors of X^T X, and its eigenvalues are n times the
    variances. If n < d, they are X^T u / sqrt(eigenvalue) of the eigenvectors u of X X^T, which has
    the same eigenvalues. The largest entry of an axis is positive, so that its sign is unique.
    Raises ValueError for more axes than ``x`` has.
    """
    most = min(len(x) - 1, x.shape[1])
    if count > most:
        raise ValueError(
            f"feature_axes={count}: these features have {most} axes, give as many or fewer"
        )
    mean = x.mean(0)
    X = (x - mean).double()
    # eigenvalues of eigh ascend
    if len(x) < x.shape[1]:
        eigenvalues, u = torch.linalg.eigh(X @ X.mT)
        axes = X.mT @ u[:, -count:] * eigenvalues[-count:].clamp(min=LEAST_VARIANCE).rsqrt()
    else:
        eigenvalues, axes = torch.linalg.eigh(X.mT @ X)
        axes = axes[:, -count:]
    shares = eigenvalues[-count:].clamp(min=0) / eigenvalues[-1]
    scaled = (axes * (shares + DAMPING) ** POWER).flip(1)
    signs = scaled.gather(0, scaled.abs().argmax(0, keepdim=True)).sign()
    return mean, (scaled * signs).float().contiguous()
