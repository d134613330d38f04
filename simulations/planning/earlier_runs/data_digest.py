"""Digests of stored rows, and of what a run is made from in addition to its settings and code.

A resumed run checks by them that its rows are those it began with, and a comparison that all of its
runs are made from the same.
"""

import hashlib
import re

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.training_rows import OwnPart
from fedlsg.simulations.workloads import Split
from fedlsg.simulations.workloads.base.parts import digest
from fedlsg.simulations.workloads.base.stored_arrays import arrays_of, is_known

DIGEST_BYTES = 32
ROWS_AT_ONCE = 1024
"""Part of the format: another number gives other digests."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Where an object is in memory: Python writes it for functions, and it differs in each process."""


def data_digest(split: Split, rows: Int64[Tensor, " n"] | None = None, *, key: bytes = b"") -> str:
    """Keyed BLAKE2b over the stored inputs and labels of rows in their order; 64 hex digits.

    Inputs that are stored as files or other objects are taken as prepared for the model. Rows that
    drew random numbers count by their labels alone: a resumed run makes them again, with other
    draws. ``ROWS_AT_ONCE`` rows are in memory at a time.

    rows: None: all rows.
    key: at most 64 bytes. Without the key, nobody can compute the digest, or test a guess of a row.
    Guarantee: it depends on these rows alone, not on the others, nor on how far a text is padded.
    A digest of private rows is SECRET itself: who has it and all rows but one can test guesses of
    that row. Keep it where only the owner of the rows can read it, or compute it under a key that
    stays there.
    Raises TypeError or IndexError for ``rows`` that the split does not have, as ``Split.batch``.
    """
    indices = torch.arange(len(split)) if rows is None else rows
    split.order(indices)  # refuses rows that the split does not have
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES, key=key)
    for part in indices.cpu().split(ROWS_AT_ONCE):
        stored = split.inputs[part.numpy()]
        arrays = stored if is_known(stored) else split.prepare(stored)
        for name, array in () if split.drawn else arrays_of("inputs", arrays):
            hashed.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            hashed.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        hashed.update(_label_bytes(split.labels[part]))
    return hashed.hexdigest()


def digest_of_rows(base: Base, *, key: bytes = b"") -> str:
    """``data_digest`` of all training rows. It is as SECRET as the rows.

    If persons are protected, it also covers the person and the client of each row; of a deployed
    client, whose rows are all its own, the person.
    """
    rows_digest = data_digest(base.workload.train, key=key)
    if base.person is None:
        return rows_digest
    content = rows_digest.encode() + base.person.numpy().tobytes()
    if not isinstance(base.parts, OwnPart):
        content += digest(base.parts).encode()
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=key).hexdigest()


def contents_of(base: Base) -> dict[str, str]:
    """What a run is made from: digests of training rows, test rows and recipe, and the number of
    the model's parameters.

    All of them may come from files that neither settings nor digests of code cover. They are equal
    for runs that differ in their seed alone. Rows are those before public features, whose last bits
    may depend on the processor. The noise multiplier is left out of the recipe, because clients of
    different sizes, which a seed deals, may need different noise.
    Digests of private rows are as SECRET as the rows.
    """
    workload = base.workload.before_features
    owners = None if workload.parts is None else digest(workload.parts)
    columns, test_columns = (
        {name: values.tolist() for name, values in sorted(by_name.items())}
        for by_name in (workload.columns, workload.test_columns)
    )
    tests = {name: data_digest(split) for name, split in workload.tests.items()}
    mechanism = {**vars(base.method.mechanism), "noise_multiplier": None}
    return {
        "training_rows": _digest_of(data_digest(workload.train), columns, owners),
        "test_rows": _digest_of(tests, test_columns),
        "recipe": _digest_of({**vars(base.method), "mechanism": mechanism}),
        "model": str(base.initial.dense_parameters),
    }


def _digest_of(*parts: object) -> str:
    """SHA-256 of what Python writes for these parts, without addresses in memory."""
    return hashlib.sha256(ADDRESS.sub("", repr(parts)).encode()).hexdigest()


def _label_bytes(labels: Tensor) -> bytes:
    """Classes as int64; other targets with their type and shape."""
    if labels.dtype == torch.int64 and labels.ndim == 1:
        return labels.numpy().astype("<i8").tobytes()
    array = np.ascontiguousarray(labels.numpy())
    return f"targets {array.dtype.str} {array.shape}\n".encode() + array.tobytes()
