"""The random numbers of a row: a keyed function of a secret and the number of the draw.

The key of a stream (ChaCha20) is the secret; each row takes the next words of it. So its draws are
independent of every other row, and nobody who lacks the key knows them. They do not follow from the
number of the row, which moves when another row leaves.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from fedlsg.randomness import SecretStream, own_draws, secret_stream
from fedlsg.rows.seeds import seed_process, seeds_replaced

WORD = 8
"""Bytes of a seed; as many of the key are the salt."""


class RowDraws:
    """Seeds the generators for one row after another, all by a ``stream``: without one, by a new
    secret one.

    Seeded are the global generators of torch (CPU), python and numpy, and ``held``: those that the
    data keep. A seed or a state that the code sets itself becomes a function of it and of the row's
    key: equal seeds in a row stay equal, and nobody knows them.
    """

    def __init__(self, stream: SecretStream | None = None, held: Sequence[Any] = ()) -> None:
        self.stream, self.held = stream, held
        self._salt, self._unseeded = b"", 0

    def next_keys(self, count: int) -> list[bytes]:
        """The keys of the next rows."""
        if self.stream is None:
            self.stream = secret_stream()
        words = self.stream.words(2 * count).tobytes()
        return [words[start : start + 2 * WORD] for start in range(0, len(words), 2 * WORD)]

    def next_key(self) -> bytes:
        """The key of the next row."""
        return self.next_keys(1)[0]

    @contextmanager
    def making(self) -> Iterator[None]:
        """Inside, rows are made; global generators are afterwards as they were."""
        with own_draws("cpu"), seeds_replaced(self._replacement):
            try:
                yield
            finally:
                self._salt = b""

    def begin(self, key: bytes) -> None:
        """Seed everything for the row of this key. Equal keys, equal draws."""
        self._salt, self._unseeded = b"", 0  # without a salt, seeds are as they are given
        seed_process(int.from_bytes(key[:WORD]) >> 1)
        for place, generator in enumerate(self.held):
            seed_generator(generator, _bits(key, f"held {place}"))
        self._salt = key

    def _replacement(self, generator: Any, given: tuple[Any, ...]) -> int | None:
        if not self._salt:
            return None
        if given in ((), (None,)):  # to be seeded anew: each time otherwise
            self._unseeded += 1
            return _bits(self._salt, f"new {self._unseeded}")
        return _bits(self._salt, f"seed {given}")


def _bits(key: bytes, what: str) -> int:
    """63 bits that nobody knows without the key."""
    return int.from_bytes(blake2b(what.encode(), key=key, digest_size=WORD).digest()) >> 1


def seed_generator(generator: Any, seed: int) -> None:
    """Seed a generator object of torch, python or numpy."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed([seed & 0xFFFFFFFF, seed >> 32])
    else:
        bits = getattr(generator, "bit_generator", generator)
        bits.state = type(bits)(seed).state
