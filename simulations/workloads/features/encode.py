"""Features of every example of a split, computed from that example alone and kept in the cache.

An encoder is public and frozen: filters, or weights that no private example of the run has changed. So its features
cost no privacy, if those of an example depend on no other example. Here each example is encoded in a batch of its own:
neither a statistic of the batch nor the rounding of a larger product can carry anything over from its neighbours.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simulations.workloads.base.cache import load_or_build
from simulations.workloads.base.workload import Inputs, Progress, Split

FORMAT = "float16, one example at a time, version 1"
SAID_EVERY = 1000
"""Examples between two lines of progress."""
DIGESTED_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoder:
    """A public, frozen function from the inputs of one example to its features.

    name: what reports call it. digest: of all that the function depends on: weights or filters, code, libraries.
    encode: inputs (1, ...) to features (1, D) or (1, C, h, w), float32 on the CPU.
    pixels: its inputs are images in 0..1, not what the workload prepares of them for its own models.
    """

    name: str
    digest: str
    encode: Callable[[Inputs], Tensor]
    pixels: bool = False

    def one(self, inputs: Inputs) -> Tensor:
        """Features (1, ...) of one example. Raises ValueError where the encoder fails, or returns another form."""
        try:
            with torch.no_grad():
                found = self.encode(inputs)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"features={self.name} fails on the inputs of this workload: {type(error).__name__}: {error}"
            ) from error
        if found.ndim not in (2, 4) or len(found) != 1:
            raise ValueError(
                f"features={self.name} gives {tuple(found.shape)} for one example: expected (1, D) or (1, C, h, w)"
            )
        return found


def encode_split(split: Split, encoder: Encoder, *, cache: Path, progress: Progress, what: str) -> Split:
    """The same examples as features: float16 in the cache folder, float32 in batches; ``what`` names the split.

    Computed once: the entry's key depends on the encoder and on the inputs of all examples in their order.
    Guarantee: the features of an example are, to the last bit, a function of its inputs and the encoder.
    Raises ValueError for features that are not finite in float16; OSError if the cache cannot be written.
    """
    parts = np.array_split(np.arange(len(split)), -(-len(split) // DIGESTED_AT_ONCE))
    key = f"features-{digest_inputs((_inputs(split, rows) for rows in parts), encoder.digest)}"
    arrays = load_or_build(cache, key, lambda: {"features": _encode(split, encoder, progress, what)}, progress=progress)
    return Split(inputs=arrays["features"], labels=split.labels, prepare=as_float)


def encode_rows(inputs: Inputs, encoder: Encoder) -> Tensor:
    """Features of public inputs, one example at a time and rounded as those of a split, float32."""
    fields = inputs if isinstance(inputs, dict) else {"": inputs}
    rows = [{name: value[[row]] for name, value in fields.items()} for row in range(len(next(iter(fields.values()))))]
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
                f"features={encoder.name} gives values that are not finite in float16: give feature_norm=group"
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
