"""Features of every example of a split are computed from that example alone, and kept in the cache.

An encoder is public and frozen: filters, or weights that no private example of the run has changed.
So its features cost no privacy, if those of an example depend on no other example. Here each
example is encoded in a batch of its own: neither a statistic of the batch nor the rounding of a
larger product can carry anything over from its neighbours. Products with statistics of synthetic
inputs are taken in blocks of one size, see ``blocks``.

``feature_norm`` normalises each example by itself, or by statistics of synthetic inputs:
none           as they are
group          mean 0 and variance 1 in groups of channels of one example
pool           maps averaged over squares of 2x2: a quarter of the values
unit           length UNIT_LENGTH, so that a bias and a clip norm of 1 count as a tenth of it
leaves, pink   centred and decorrelated by the features of synthetic images; tokens: by those of
               bags of words
group+leaves   several, from left to right

A mean over the clients' examples would be private: nothing here sees one. Tramer and Boneh 2021 add
noise to such means, which costs privacy; their group norm costs none, and is ``group`` here.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from fedlsg.simulations.workloads.features.blocks import BLOCK_ROWS, Product

FORMAT = "float16, one example at a time, version 2"
"""A part of the key of cached features; another form needs another text."""
FIRST_REPORT, REPORT_EVERY = 5.0, 60.0
"""Seconds until the time left is said, and between two such lines."""
DIGESTED_AT_ONCE = 256
"""Examples that are read at a time for the digest of a split."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoder:
    """A public, frozen function from the inputs of one example to its features.

    name: what reports call it.
    digest: of all that the function depends on: weights or filters, code, libraries.
    encode: inputs (1, ...) to features (1, D) or (1, C, h, w), float32 on the CPU.
    steps: functions of features (B, ...) that follow. A row's bits depend on that row alone.
    pixels: whether its inputs are images in 0..1, without the normalisation of the workload's own
        models.
    graph: as ``encode``, with a graph back to its inputs; None if it has none.
    """

    name: str
    digest: str
    encode: Callable[[Inputs], Tensor]
    steps: tuple[Callable[[Tensor], Tensor], ...] = ()
    pixels: bool = False
    graph: Callable[[Tensor], Tensor] | None = None

    def then(self, step: Callable[[Tensor], Tensor], digest: str) -> "Encoder":
        """This encoder and one more step; ``digest``: of both."""
        return replace(self, steps=(*self.steps, step), digest=digest)

    def of(self, examples: Sequence[Inputs]) -> Tensor:
        """Features (examples, ...). Raises ValueError if the encoder fails, or for another form."""
        features = torch.cat([self._encode_one(inputs) for inputs in examples])
        for step in self.steps:
            features = step(features)
        return features

    def with_graph(self, images: Float[Tensor, "b c h w"]) -> Tensor:
        """Features of images with a graph back to their pixels, for attacks that search for images.

        They are on the device and in the precision of the images. Stored features are rounded to
        float16, these are not.
        """
        assert self.graph is not None, "called for an encoder that has a graph"
        features = torch.cat([self.graph(image) for image in images.float().cpu().split(1)])
        for step in self.steps:
            features = step(features)
        return features.to(images)

    def _encode_one(self, inputs: Inputs) -> Tensor:
        """Features of one example before ``steps``; raises as ``of``."""
        try:
            with torch.no_grad():
                features = self.encode(inputs)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"features={self.name} fails on the inputs of this workload: "
                f"{type(error).__name__}: {error}"
            ) from error
        if features.ndim not in (2, 4) or len(features) != 1:
            raise ValueError(
                f"features={self.name} gives {tuple(features.shape)} for one example: expected "
                "(1, D) or (1, C, h, w)"
            )
        return features


def encode_split(
    split: Split, encoder: Encoder, *, cache: Path, progress: Progress, what: str
) -> Split:
    """The same examples as features: float16 in the cache folder, float32 in batches.

    They are computed once: the entry's key depends on the encoder and on the inputs of all examples
    in their order. ``what``: the name of the split.
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
    return Split(
        inputs=arrays["features"], labels=split.labels, prepare=as_float, encoded_from=split
    )


class LaterFeatures:
    """Features of a split that are computed when they are read, for a plan that reads few rows.

    Nothing is kept in the cache folder. Guarantee: the same features as those of ``encode_split``.
    """

    def __init__(self, split: Split, encoder: Encoder) -> None:
        self._split, self._encoder = split, encoder
        first = _encode_rows(split, encoder, [0])
        self._features: np.ndarray = np.zeros((len(split), *first.shape[1:]), dtype=np.float16)
        self._known = np.zeros(len(split), dtype=bool)

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        new = np.unique(rows)
        new = new[~self._known[new]]
        for block in _blocks_of(len(new)):
            numbers = new[block.start : block.stop]
            self._features[numbers] = _encode_rows(self._split, self._encoder, numbers)
        self._known[new] = True
        return np.asarray(self._features[rows])


def encode_later(split: Split, encoder: Encoder) -> Split:
    """The same examples as features that are computed when they are read."""
    return Split(
        inputs=LaterFeatures(split, encoder),
        labels=split.labels,
        prepare=as_float,
        encoded_from=split,
    )


def encode_rows(inputs: Inputs, encoder: Encoder) -> Tensor:
    """Features of public inputs, rounded as those of a split, float32."""

    def example(row: int) -> Inputs:
        if isinstance(inputs, dict):
            return {name: value[[row]] for name, value in inputs.items()}
        return inputs[[row]]

    count = len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)
    blocks = [encoder.of([example(row) for row in rows]) for rows in _blocks_of(count)]
    return torch.cat(blocks).half().float()


def _blocks_of(count: int) -> list[range]:
    """The numbers of ``count`` rows, BLOCK_ROWS at a time."""
    return [range(start, min(start + BLOCK_ROWS, count)) for start in range(0, count, BLOCK_ROWS)]


def as_float(stored: np.ndarray) -> Tensor:
    """Stored features as float32, a copy."""
    return torch.from_numpy(stored).to(torch.float32)


def _inputs(split: Split, rows: np.ndarray) -> Inputs:
    """The encoder's inputs of these rows."""
    return split.prepare(split.inputs[rows])


def _encode(split: Split, encoder: Encoder, progress: Progress, what: str) -> np.ndarray:
    """Features of all examples as float16; the time left is said from a first measurement on.

    Raises ValueError for features beyond the range of float16.
    """
    began, report_at = time.monotonic(), FIRST_REPORT
    progress(f"features of {what}: {len(split):,} examples; they are kept for later runs")
    first = _encode_rows(split, encoder, [0])
    features = np.empty((len(split), *first.shape[1:]), dtype=np.float16)
    for rows in _blocks_of(len(split)):
        features[rows.start : rows.stop] = _encode_rows(split, encoder, rows)
        seconds = time.monotonic() - began
        if seconds >= report_at and rows.stop < len(split):
            report_at = seconds + REPORT_EVERY
            minutes = seconds / rows.stop * (len(split) - rows.stop) / 60
            progress(
                f"features of {what}: {rows.stop:,} of {len(split):,} examples, "
                f"about {minutes:.1f} minutes left"
            )
    return features


def _encode_rows(split: Split, encoder: Encoder, rows: Iterable[int]) -> np.ndarray:
    """Features of a block of examples as float16. Raises ValueError for values beyond its range."""
    with np.errstate(over="ignore"):  # too large for float16 becomes infinite: refused below
        features = encoder.of([_inputs(split, np.array([row])) for row in rows]).numpy()
        stored = features.astype(np.float16)
    if not np.isfinite(stored).all():
        raise ValueError(
            f"features={encoder.name} gives values that are not finite in float16: give "
            "feature_norm=group"
        )
    return stored


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
    """64 hex digits of every bit of public arrays.

    Clients and server compare the arrays that they made of equal draws.
    """
    digest = hashlib.sha256(salt.encode())
    for name in sorted(arrays):
        digest.update(f"\n{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


ROWS = 1000
"""The number of synthetic inputs for statistics."""
UNIT_LENGTH = 10.0
"""The length of an example's features after ``unit``."""
MIN_LENGTH = 1e-12
"""A smaller length is not divided by."""
POWER = -0.25
"""The exponent of the covariance."""
DAMPING = 0.01
"""A share of the mean eigenvalue of the covariance that is added to its eigenvalues."""


def grouped(encoder: Encoder) -> Encoder:
    """The encoder with mean 0 and variance 1 in each of GROUPS groups of channels.

    A vector is one group.
    """
    return encoder.then(partial(_each, _group), f"{encoder.digest} group {GROUPS}")


def pooled(encoder: Encoder) -> Encoder:
    """The encoder with averages over 2x2 squares.

    Raises ValueError, at the first example, for vectors and odd sides.
    """
    return encoder.then(partial(_each, _pool), f"{encoder.digest} pool")


def lengthened(encoder: Encoder) -> Encoder:
    """The encoder with features of length UNIT_LENGTH, for any contrast and number of features."""
    return encoder.then(partial(_each, _scale), f"{encoder.digest} unit {UNIT_LENGTH}")


def _each(function: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    """The function of each row by itself."""
    return torch.cat([function(row) for row in features.split(1)])


ALONE = {"group": grouped, "pool": pooled, "unit": lengthened}
"""Parts of ``feature_norm`` that see one example alone."""


def decorrelated(encoder: Encoder, draw: Draw, *, cache: Path, progress: Progress) -> Encoder:
    """The encoder with Q (x - m) in place of features x: centred and decorrelated.

    m is the mean and S the covariance of features of synthetic inputs from ``draw``:

        Q = s (S / mean(S) + DAMPING)^POWER

    with mean(S) the mean eigenvalue, and s so that the mean variance of the synthetic features is
    1. Maps have one m and Q over channels for all places, vectors over entries. With noise this
    helps, because directions of small variance are learnt sooner. m and Q are computed once and
    kept in the cache folder: all processes of a machine have the same bits.
    """
    result = draw(ROWS, public_generator(0, "features", "statistics"))
    inputs = result[0] if isinstance(result, tuple) else result
    key = digest_inputs([inputs], f"{encoder.digest} decorrelated {POWER} {DAMPING}")

    def build() -> dict[str, np.ndarray]:
        progress(f"features of {ROWS:,} synthetic inputs, for feature_norm")
        mean, Q = statistics(encode_rows(inputs, encoder))
        return {"mean": mean.numpy(), "Q": Q.numpy()}

    arrays = load_or_build(cache, f"features-norm-{key}", build, progress=progress)
    mean = torch.from_numpy(arrays["mean"].copy())
    product = Product(torch.tensor(arrays["Q"]))  # Q is symmetric: rows times Q

    def step(features: Tensor) -> Tensor:
        centred = features.movedim(1, -1) - mean
        return product(centred.reshape(-1, len(mean))).view(centred.shape).movedim(-1, 1)

    return encoder.then(step, digest_arrays(arrays, key))


def statistics(x: Float[Tensor, "n c *place"]) -> tuple[Float[Tensor, " c"], Float[Tensor, "c c"]]:
    """m and Q of public features, float32; see ``decorrelated``.

    With S = U diag(lambda) U^T, v = lambda / mean(lambda) and f = (v + DAMPING)^POWER it is
    Q = s U diag(f) U^T. The mean variance of U diag(f) U^T x is mean(lambda f^2), so
    1 / s = sqrt(mean(lambda) mean(v f^2)).
    """
    rows = x.double().movedim(1, -1).flatten(0, -2)
    mean = rows.mean(0)
    S = (rows - mean).mT @ (rows - mean) / len(rows)
    eigenvalues, U = torch.linalg.eigh(S)
    v = eigenvalues.clamp(min=0) / eigenvalues.mean()
    f = (v + DAMPING) ** POWER
    inverse_s = (S.trace() * (v * f**2).mean() / len(S)).sqrt()
    return mean.float(), ((U * f) @ U.mT / inverse_s).float()


def _scale(x: Tensor) -> Tensor:
    length: Tensor = x.norm()
    return x * (UNIT_LENGTH / length.clamp(min=MIN_LENGTH))


def _group(x: Tensor) -> Tensor:
    return F.group_norm(x, gcd(GROUPS, x.shape[1]) if x.ndim == 4 else 1)


def _pool(x: Tensor) -> Tensor:
    if x.ndim != 4 or x.shape[2] % 2 or x.shape[3] % 2:
        raise ValueError(
            "feature_norm=pool halves maps with an even side, and these features are "
            f"{tuple(x.shape)[1:]}"
        )
    return F.avg_pool2d(x, 2)
