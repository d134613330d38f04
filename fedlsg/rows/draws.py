"""The random numbers that a user's code draws for one row, such as those of an augmentation.

Each row has a key of its own, from which all generators are seeded before the code makes the row.
Keys are the next words of a secret stream (ChaCha20). So the draws of a row are independent of
every other row, and nobody without the secret knows them. They do not follow from the number of the
row: it changes when another row leaves, and the draws of all later rows would show that.
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
"""Bytes of a word of the stream, and of a seed. A key has two words."""


class RowDraws:
    """Seeds all generators for one row after another.

    stream: where the keys are from; None: a new secret stream.
    held: generators that the user's data or code keep. They are seeded like the global ones of
        torch (CPU), python and numpy.
    A seed or a state that the code itself sets while it makes a row becomes a function of that seed
    and of the row's key. So equal seeds in a row stay equal, and nobody knows them.
    """

    def __init__(self, stream: SecretStream | None = None, held: Sequence[Any] = ()) -> None:
        self.stream = stream
        self.held = held
        self._key = b""  # of the row that is made now; empty between rows
        self._seeded_anew = 0

    def next_keys(self, count: int) -> list[bytes]:
        """The keys of the next rows."""
        if self.stream is None:
            self.stream = secret_stream()
        size = 2 * WORD
        words = self.stream.words(2 * count).tobytes()
        return [words[start : start + size] for start in range(0, len(words), size)]

    def next_key(self) -> bytes:
        """The key of the next row."""
        return self.next_keys(1)[0]

    @contextmanager
    def making(self) -> Iterator[None]:
        """Inside, rows can be made. Global generators are put back at the end."""
        with own_draws("cpu"), seeds_replaced(self._replacement):
            try:
                yield
            finally:
                self._key = b""

    def begin(self, key: bytes) -> None:
        """Seed everything for the row of this key: equal keys give equal draws."""
        self._key = b""  # the seeds that are set here are not replaced
        self._seeded_anew = 0
        seed_process(int.from_bytes(key[:WORD]) >> 1)
        for place, generator in enumerate(self.held):
            seed_generator(generator, _bits(key, f"held {place}"))
        self._key = key

    def _replacement(self, generator: Any, given: tuple[Any, ...]) -> int | None:
        """The seed in place of the ``given`` one; None: leave it as it is."""
        if not self._key:
            return None
        if given in ((), (None,)):  # "from fresh entropy": another seed each time
            self._seeded_anew += 1
            return _bits(self._key, f"new {self._seeded_anew}")
        return _bits(self._key, f"seed {given}")


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
