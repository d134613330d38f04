"""``feature_norm``: how features are normalised: each example by itself, or by statistics of synthetic inputs.

none           as they are
group          mean 0 and variance 1 in groups of channels of one example
pool           maps averaged over squares of 2x2: a quarter of the values
mirror         the mean of the features of an image and of its mirror image
leaves, pink   centred and decorrelated by the features of synthetic images; tokens: by those of bags of words
group+leaves   several, from left to right

A mean over the clients' examples would be private: nothing here sees one. Tramer and Boneh 2021 add noise to such
means, which costs privacy; their group norm costs none, and is ``group`` here.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import gcd
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers.probe.source import Draw
from fedlsg.randomness import public_generator
from simulations.models.small import GROUPS
from simulations.workloads.base.cache import load_or_build
from simulations.workloads.base.workload import Inputs, Progress
from simulations.workloads.features.encode import Encoder, digest_inputs, encode_rows

ROWS = 1000
"""Synthetic inputs that statistics are taken of."""
POWER, DAMPING = -0.25, 0.01
"""Exponent of the covariance, and what is added to its eigenvalues, as a share of their mean."""


def grouped(encoder: Encoder) -> Encoder:
    """Mean 0 and variance 1 in each of GROUPS groups of channels, or over all of a vector."""
    return replace(encoder, digest=f"{encoder.digest} group {GROUPS}", encode=partial(_grouped, encoder.encode))


def pooled(encoder: Encoder) -> Encoder:
    """Averages over 2x2 squares. Raises ValueError, at the first example, for vectors and odd sides."""
    return replace(encoder, digest=f"{encoder.digest} pool", encode=partial(_pooled, encoder.encode))


def mirrored(encoder: Encoder) -> Encoder:
    """The mean over an image and its mirror image, for data whose mirror images have the same class."""
    return replace(encoder, digest=f"{encoder.digest} mirror", encode=partial(_mirrored, encoder.encode))


ALONE = {"group": grouped, "pool": pooled, "mirror": mirrored}
"""Parts that see one example alone."""


def decorrelated(encoder: Encoder, draw: Draw, *, cache: Path, progress: Progress) -> Encoder:
    """Q (x - m): m the mean and S the covariance of features of ``draw``, Q = s (S / mean(S) + DAMPING)^POWER.

    By channel of maps, whatever the place; by entry of vectors. mean(S) is the mean eigenvalue; s makes the mean
    variance of the synthetic features 1. Both sides of the noise gain: directions of small variance are learnt sooner.
    m and Q are computed once and kept in the cache folder: all processes of a machine have the same bits.
    """
    found = draw(ROWS, public_generator(0, "features", "statistics"))
    inputs = found[0] if isinstance(found, tuple) else found
    key = digest_inputs([inputs], f"{encoder.digest} decorrelated {POWER} {DAMPING}")

    def build() -> dict[str, np.ndarray]:
        progress(f"features of {ROWS:,} synthetic inputs, for feature_norm")
        mean, Q = statistics(encode_rows(inputs, encoder))
        return {"mean": mean.numpy(), "Q": Q.numpy()}

    arrays = load_or_build(cache, f"features-norm-{key}", build, progress=progress)
    mean, Q = (torch.from_numpy(arrays[name].copy()) for name in ("mean", "Q"))
    return replace(encoder, digest=key, encode=partial(_decorrelated, encoder.encode, mean, Q))


def statistics(x: Float[Tensor, "n c *place"]) -> tuple[Float[Tensor, " c"], Float[Tensor, "c c"]]:
    """m and Q of public features, float32; see ``decorrelated``."""
    rows = x.double().movedim(1, -1).flatten(0, -2)
    mean = rows.mean(0)
    S = (rows - mean).mT @ (rows - mean) / len(rows)
    values, U = torch.linalg.eigh(S)
    values = values.clamp(min=0) / values.mean()
    scale = (values + DAMPING) ** POWER
    Q = (U * scale) @ U.mT
    s = (S.trace() * (values * scale**2).mean() / len(S)).sqrt()
    return mean.float(), (Q / s).float()


def _grouped(encode: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
    x = encode(inputs)
    return F.group_norm(x, gcd(GROUPS, x.shape[1]) if x.ndim == 4 else 1)


def _pooled(encode: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
    x = encode(inputs)
    if x.ndim != 4 or x.shape[2] % 2 or x.shape[3] % 2:
        raise ValueError(
            f"feature_norm=pool halves maps with an even side, and these features are {tuple(x.shape)[1:]}"
        )
    return F.avg_pool2d(x, 2)


def _mirrored(encode: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
    if isinstance(inputs, dict):
        raise ValueError("feature_norm=mirror is for images, and these are texts: leave mirror out")
    return (encode(inputs) + encode(inputs.flip(-1))) / 2


def _decorrelated(encode: Callable[[Inputs], Tensor], mean: Tensor, Q: Tensor, inputs: Inputs) -> Tensor:
    centred = encode(inputs).movedim(1, -1) - mean
    return (centred @ Q).movedim(-1, 1)
