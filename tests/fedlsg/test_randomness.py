"""Streams: what repeats and what never does, what they are distributed like, and that a secret key
cannot escape.

Statistics of secret streams are bounded at seven standard errors or more; all others run on a fixed
key.
"""

import concurrent.futures
import copy
import io
import math
import multiprocessing
import pickle
import struct
import warnings

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream

labels = st.lists(st.one_of(st.text("abcxyz-", max_size=8), st.integers(0, 10**6)), max_size=3)
seeds = st.integers(0, 2**40)


def chacha20_words(key: bytes, count: int) -> list[int]:
    """The key stream from block 0 under a zero nonce, as little-endian 64-bit numbers."""
    stream = (
        Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    )
    return list(struct.unpack(f"<{count}Q", stream))


def constant_word(stream: SecretStream, word: int) -> SecretStream:
    """The stream with its cipher replaced by one that repeats ``word``."""

    class Constant:
        def update(self, data: bytes) -> bytes:
            return struct.pack("<Q", word) * (len(data) // 8)

    stream._cipher = Constant()  # type: ignore[assignment]
    return stream


def test_words_are_the_key_stream_and_move_it_on():
    key = bytes(range(32))
    stream = SecretStream(key)
    words = [
        int(word) for part in (stream.words(3), stream.words(0), stream.words(5)) for word in part
    ]
    assert words == chacha20_words(key, 8)


@given(seed=seeds, names=labels)
def test_equal_seed_and_labels_repeat(seed, names):
    first, second = reproducible_stream(seed, *names), reproducible_stream(seed, *names)
    assert np.array_equal(first.words(9), second.words(9))
    assert torch.equal(
        torch.randn(9, generator=public_generator(seed, *names)),
        torch.randn(9, generator=public_generator(seed, *names)),
    )


@given(one=st.tuples(seeds, labels), two=st.tuples(seeds, labels))
def test_different_seed_or_labels_differ(one, two):
    if (one[0], *map(str, one[1])) == (two[0], *map(str, two[1])):
        return
    streams = [reproducible_stream(seed, *names).words(4) for seed, names in (one, two)]
    public = [
        torch.randn(4, generator=public_generator(seed, *names)) for seed, names in (one, two)
    ]
    assert not np.array_equal(*streams)
    assert not torch.equal(*public)


def test_public_golden():
    """Whoever changes a public draw breaks every recorded run: the seed is the start of a
    SHA-256.
    """
    assert public_generator(0, "carriers", 1, "0.weight").initial_seed() == 0x77491FF4B27E30


@pytest.mark.parametrize("bits", [16, 64])
def test_words_of_fewer_bits_are_the_same_stream(bits):
    first, second = reproducible_stream(0), reproducible_stream(0)
    assert second.words(64 // bits * 5, bits=bits).tobytes() == first.words(5).tobytes()


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_probability_1_is_always_true(word):
    """The highest word once rounded to a uniform of exactly 1."""
    assert constant_word(secret_stream(), word).bernoulli(1, 1.0).all()
    assert not constant_word(secret_stream(), word).bernoulli(1, 0.0).any()


def test_no_draw_is_repeated():
    stream = secret_stream()
    assert len(np.unique(np.concatenate([stream.words(1000) for _ in range(100)]))) == 100_000


def test_the_cipher_raises_where_its_counter_ends():
    """What "it raises past 2^35 numbers" rests on: the library refuses to wrap the 32-bit block
    counter.
    """
    last_block = Cipher(
        algorithms.ChaCha20(bytes(32), b"\xff" * 4 + bytes(12)), mode=None
    ).encryptor()
    last_block.update(bytes(64))
    with pytest.raises(ValueError, match="counter"):
        last_block.update(bytes(64))


@pytest.mark.parametrize("probability", [0.02, 0.5, 0.97])
def test_bernoulli_rate(probability):
    n = 200_000
    share = float(secret_stream().bernoulli(n, probability).double().mean())
    assert abs(share - probability) < 7 * math.sqrt(probability * (1 - probability) / n)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_a_key_of_another_length_is_refused(key):
    with pytest.raises(ValueError, match="32 bytes"):
        SecretStream(key)


@pytest.mark.parametrize(
    "escape",
    [
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        lambda s: torch.save({"noise": s}, io.BytesIO()),
        lambda s: pickle.dumps({"state": [s]}, protocol=2),
        lambda s: copy.deepcopy({"optimizer": {"noise": s}}),
    ],
    ids=["pickle", "copy", "deepcopy", "torch.save", "nested pickle", "nested deepcopy"],
)
def test_a_secret_stream_reaches_no_checkpoint(escape):
    with pytest.raises(TypeError, match="cannot be pickled"):
        escape(secret_stream())
    with pytest.raises(TypeError, match="cannot be pickled"):
        escape(reproducible_stream(0))


def test_a_secret_stream_shows_no_key():
    key = bytes(range(32))
    stream = SecretStream(key)
    assert key.hex() not in repr(stream)
    assert not any(key == value for value in vars(stream).values())


def test_a_fork_has_no_stream_of_its_parent():
    stream = secret_stream()
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with concurrent.futures.ProcessPoolExecutor(1, context, _share, (stream,)) as pool:
            with pytest.raises(ValueError, match="a forked process has no secret stream"):
                pool.submit(_draw_shared).result()
            assert pool.submit(_draw_own).result() == 3
    assert len(stream.words(3)) == 3, "negative control: the parent draws on"


_shared = []


def _share(stream):
    """Keep a parent's stream in the fork, which takes it without pickling."""
    _shared.append(stream)


def _draw_shared():
    return len(_shared[0].words(3))


def _draw_own():
    return len(secret_stream().words(3))
