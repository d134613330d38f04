"""Features of every example of a split, computed from that example alone and kept in the cache;
``feature_norm``.

An encoder is public and frozen: filters, or weights that no private example of the run has changed.
So its features cost no privacy, if those of an example depend on no other example. Here each
example is encoded in a batch of its own: neither a statistic of the batch nor the rounding of a
larger product can carry anything over from its neighbours.

They are normalised each example by itself, or by statistics of synthetic inputs:
none           as they are
group          mean 0 and variance 1 in groups of channels of one example
pool           maps averaged over squares of 2x2: a quarter of the values
unit           length LENGTH, so that a bias and a clip norm of 1 count as a tenth of it
leaves, pink   centred and decorrelated by the features of synthetic images; tokens: by those of
               bags of words
group+leaves   several, from left to right

A mean over the clients' examples would be private: nothing here sees one. Tramer and Boneh 2021 add
noise to such means, which costs privacy; their group norm costs none, and is ``group`` here.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers.probe.carrier import Draw
from fedlsg.randomness import public_generator
from fedlsg.simulations.models.small import GROUPS
from fedlsg.simulations.workloads.base import Progress
from fedlsg.simulations.workloads.base.cache import load_or_build
from fedlsg.simulations.workloads.base.split import Inputs, Split

FORMAT = "float16, one example at a time, version 1"
SAID_EVERY = 1000
"""Examples between two lines of progress."""
DIGESTED_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoder:
    """A public, frozen function from the inputs of one example to its features.

    name: what reports call it. digest: of all that the function depends on: weights or filters,
    code, libraries.
    encode: inputs (1, ...) to features (1, D) or (1, C, h, w), float32 on the CPU.
    pixels: its inputs are images in 0..1, not what the workload prepares of them for its own
    models.
    """

    name: str
    digest: str
    encode: Callable[[Inputs], Tensor]
    pixels: bool = False

    def one(self, inputs: Inputs) -> Tensor:
        """Features (1, ...) of one example. Raises ValueError where the encoder fails, or returns
        another form.
        """
        try:
            with torch.no_grad():
                found = self.encode(inputs)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"features={self.name} fails on the inputs of this workload: "
                f"{type(error).__name__}: {error}"
            ) from error
        if found.ndim not in (2, 4) or len(found) != 1:
            raise ValueError(
                f"features={self.name} gives {tuple(found.shape)} for one example: expected (1, D) "
                "or (1, C, h, w)"
            )
        return found


def encode_split(
    split: Split, encoder: Encoder, *, cache: Path, progress: Progress, what: str
) -> Split:
    """The same examples as features: float16 in the cache folder, float32 in batches; ``what``
    names the split.

    Computed once: the entry's key depends on the encoder and on the inputs of all examples in their
    order.
    Guarantee: the features of an example are, to the last bit, a function of its inputs and the
    encoder.
    Raises ValueError for features that are not finite in float16; OSError if the cache cannot be
    written.
    """
    parts = np.array_split(np.arange(len(split)), -(-len(split) // DIGESTED_AT_ONCE))
    key = f"features-{digest_inputs((_inputs(split, rows) for rows in parts), encoder.digest)}"
    arrays = load_or_build(
        cache, key, lambda: {"features": _encode(split, encoder, progress, what)}, progress=progress
    )
    return Split(inputs=arrays["features"], labels=split.labels, prepare=as_float)


def encode_rows(inputs: Inputs, encoder: Encoder) -> Tensor:
    """Features of public inputs, one example at a time and rounded as those of a split, float32."""
    fields = inputs if isinstance(inputs, dict) else {"": inputs}
    rows = [
        {name: value[[row]] for name, value in fields.items()}
        for row in range(len(next(iter(fields.values()))))
    ]
    found = [encoder.one(row if isinstance(inputs, dict) else row[""]) for row in rows]
    return torch.cat(found).half().float()


def as_float(stored: np.ndarray) -> Tensor:
    """float32, a copy."""
    return torch.from_numpy(stored).to(torch.float32)


def _inputs(split: Split, rows: np.ndarray) -> Inputs:
    return split.prepare(split.inputs[rows])


def _encode(split: Split, encoder: Encoder, progress: Progress, what: str) -> np.ndarray:
    first = encoder.one(_inputs(split, np.array([0])))
    features = np.empty((len(split), *first.shape[1:]), dtype=np.float16)
    for row in range(len(split)):
        with np.errstate(over="ignore"):
            features[row] = encoder.one(_inputs(split, np.array([row])))[0].numpy()
        if not np.isfinite(features[row]).all():
            raise ValueError(
                f"features={encoder.name} gives values that are not finite in float16: give "
                "feature_norm=group"
            )
        if row % SAID_EVERY == SAID_EVERY - 1:
            progress(f"features of {what}: {row + 1:,} of {len(split):,} examples")
    return features


def digest_inputs(batches: Iterable[Inputs], salt: str) -> str:
    """32 hex digits: format, version of torch, salt, and all inputs in their order."""
    digest = hashlib.sha256(f"{FORMAT} torch {torch.__version__} {salt}".encode())
    for inputs in batches:
        for name, value in sorted(inputs.items()) if isinstance(inputs, dict) else [("", inputs)]:
            array = np.ascontiguousarray(value.numpy())
            digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(array.data.cast("B") if array.size else b"")
    return digest.hexdigest()[:32]


def digest_arrays(arrays: Mapping[str, np.ndarray], salt: str) -> str:
    """64 hex digits of every bit of public arrays: clients and server compare what they made of
    equal draws.
    """
    digest = hashlib.sha256(salt.encode())
    for name in sorted(arrays):
        digest.update(f"\n{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


ROWS = 1000
"""Synthetic inputs that statistics are taken of."""
LENGTH, SMALLEST = 10.0, 1e-12
"""Length of an example's features after ``unit``, and the least that is divided by."""
POWER, DAMPING = -0.25, 0.01
"""Exponent of the covariance, and what is added to its eigenvalues, as a share of their mean."""


def grouped(encoder: Encoder) -> Encoder:
    """Mean 0 and variance 1 in each of GROUPS groups of channels, or over all of a vector."""
    return replace(
        encoder, digest=f"{encoder.digest} group {GROUPS}", encode=partial(_grouped, encoder.encode)
    )


def pooled(encoder: Encoder) -> Encoder:
    """Averages over 2x2 squares. Raises ValueError, at the first example, for vectors and odd
    sides.
    """
    return replace(
        encoder, digest=f"{encoder.digest} pool", encode=partial(_pooled, encoder.encode)
    )


def lengthened(encoder: Encoder) -> Encoder:
    """Length LENGTH, whatever the contrast of an image or the number of features is."""
    return replace(
        encoder,
        digest=f"{encoder.digest} unit {LENGTH}",
        encode=partial(_lengthened, encoder.encode),
    )


ALONE = {"group": grouped, "pool": pooled, "unit": lengthened}
"""Parts that see one example alone."""


def decorrelated(encoder: Encoder, draw: Draw, *, cache: Path, progress: Progress) -> Encoder:
    """Q (x - m): m the mean and S the covariance of features of ``draw``, Q = s (S / mean(S) +
    DAMPING)^POWER.

    By channel of maps, whatever the place; by entry of vectors. mean(S) is the mean eigenvalue; s
    makes the mean variance of the synthetic features 1. Both sides of the noise gain: directions of
    small variance are learnt sooner. m and Q are computed once and kept in the cache folder: all
    processes of a machine have the same bits.
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
    return replace(
        encoder,
        digest=digest_arrays(arrays, key),
        encode=partial(_decorrelated, encoder.encode, mean, Q),
    )


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


def _lengthened(encode: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
    x = encode(inputs)
    length: Tensor = x.norm()
    return x * (LENGTH / length.clamp(min=SMALLEST))


def _grouped(encode: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
    x = encode(inputs)
    return F.group_norm(x, gcd(GROUPS, x.shape[1]) if x.ndim == 4 else 1)


def _pooled(encode: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
    x = encode(inputs)
    if x.ndim != 4 or x.shape[2] % 2 or x.shape[3] % 2:
        raise ValueError(
            "feature_norm=pool halves maps with an even side, and these features are "
            f"{tuple(x.shape)[1:]}"
        )
    return F.avg_pool2d(x, 2)


def _decorrelated(
    encode: Callable[[Inputs], Tensor], mean: Tensor, Q: Tensor, inputs: Inputs
) -> Tensor:
    centred = encode(inputs).movedim(1, -1) - mean
    return (centred @ Q).movedim(-1, 1)
