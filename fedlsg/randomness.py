"""Public and secret randomness, which are never mixed; and one run at a time in a process.

Public draws (carriers, masks, partitions, client selection) come from ``public_generator``: anyone
who knows the seed can repeat them. Batches and noise come from streams of their own, each a
``SecretStream``: ChaCha20 with a key of the operating system. In the reproducible test mode the key
is derived from the seed: nothing made with it is private.

Streams give bits alone. ``fedlsg.noise`` computes noise from them with integers, so that attacks on
floating-point samplers (Mironov 2012) find nothing.

One run at a time (``alone``): torch's generators, its number of threads and the names of user code
are global. Two runs in two threads would draw from one generator, and neither would have its own
weights. So the second one waits. A thread may enter again. After an exception, also an interruption
in a notebook, the next thread enters. Other code does not wait: a model that another thread builds
meanwhile draws from the same generator, and changes the draws of dropout here.
"""

import hashlib
import logging
import os
import random
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from jaxtyping import Bool, UInt
from torch import Tensor


def public_generator(seed: int, *labels: str | int) -> torch.Generator:
    """A CPU generator for one public purpose: equal (seed, labels) give equal draws on every
    machine.
    """
    return torch.Generator().manual_seed(int.from_bytes(_digest(seed, *labels)[:7], "big"))


def check_cpu(generator: torch.Generator) -> None:
    """Raise ValueError for a generator of another device, whose draws differ from those of the
    CPU.
    """
    if generator.device.type != "cpu":
        raise ValueError(
            "expected a generator of the CPU, whose draws are equal everywhere, got "
            f"{generator.device}"
        )


class SecretStream:
    """A stream of 256 GiB of secret uniform bits from a 32-byte ChaCha20 key.

    Guarantee: without the key the bits are computationally indistinguishable from uniform ones. No
    draw is repeated: past 256 GiB (the cipher's block counter) it raises ValueError. It refuses to
    be pickled, so that it cannot reach a checkpoint or a message. A fork's copy of it is erased.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError(f"expected a key of 32 bytes, got {len(key)}")
        cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
        self._cipher: CipherContext | None = cipher.encryptor()
        _STREAMS.add(self)

    def bernoulli(self, count: int, probability: float) -> Bool[Tensor, " count"]:
        """Independent draws that are true with ``probability``, exact to 2^-53; 1 is always
        true.
        """
        # The mid-points (k + 1/2) / 2^52 are exact in float64 and are strictly inside (0, 1).
        uniform = ((self.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return torch.from_numpy(uniform < probability)

    def words(self, count: int, *, bits: Literal[16, 64] = 64) -> UInt[np.ndarray, " count"]:
        """Independent uniform words, for samplers that compute with integers only."""
        if self._cipher is None:
            raise ValueError("a forked process has no secret stream: make one in that process")
        size = bits // 8
        return np.frombuffer(self._cipher.update(bytes(size * count)), dtype=f"<u{size}")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SecretStream cannot be pickled: secret generators never leave their process"
        )


_STREAMS = weakref.WeakSet[SecretStream]()
"""The streams of this process."""


def _erase_streams() -> None:
    """In a forked process, erase the copies of its parent's streams."""
    for stream in _STREAMS:
        stream._cipher = None


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_erase_streams)


def secret_stream() -> SecretStream:
    """A stream that nobody can repeat: its key comes from the operating system and is not kept."""
    return SecretStream(os.urandom(32))


def reproducible_stream(seed: int, *labels: str | int) -> SecretStream:
    """A stream that anyone can repeat from the seed. Test mode: nothing made with it is private."""
    return SecretStream(_digest(seed, "reproducible", *labels))


@contextmanager
def own_draws(device: str) -> Iterator[None]:
    """A context after which the global generators of torch, python and numpy are as before.

    ``device``: "cpu", or "cuda" for the current GPU's generator, too.
    """
    state, numpy_state = random.getstate(), np.random.get_state()
    devices = [] if device == "cpu" else [torch.cuda.current_device()]
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def seed_draws(seed: int, device: str) -> None:
    """Seed the global generators of torch (CPU and device), python and numpy.

    A user's augmentation draws from one of them, in the order of the batch. Under a known seed one
    more example would change the draws of all later ones; under a secret seed they are independent
    of the other examples.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF])
    if device == "cuda":
        torch.cuda.manual_seed(seed)


def _digest(seed: int, *labels: str | int) -> bytes:
    """SHA-256 of a seed and labels."""
    return hashlib.sha256("\x1f".join(map(str, (seed, *labels))).encode()).digest()


WAITING = "another run is going on in this process, in another thread: this one begins when it ends"
"""Warning of ``alone``."""

_TURN = threading.RLock()
"""The lock of ``alone``."""


@contextmanager
def alone() -> Iterator[None]:
    """A context for one thread of this process: to build a model, take a private step or run a
    federation.

    It waits until another thread has left it, with a warning in this package's log. Inference mode,
    in which autograd records nothing, is off inside.
    """
    if not _TURN.acquire(blocking=False):
        logging.getLogger("fedlsg").warning(WAITING)
        _TURN.acquire()
    try:
        with torch.inference_mode(False):
            yield
    finally:
        _TURN.release()
