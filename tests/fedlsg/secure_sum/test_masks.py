"""Masks and packing: the key stream of RFC 8439, words modulo 2^b, bits packed by hand, memory."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.secure_sum.masks import AT_ONCE, add_masks, clear, reduced, word

widths = st.integers(8, 64)


def mask(seed: bytes, length: int, bits: int) -> np.ndarray:
    words = np.zeros(length, word(bits))
    add_masks(words, [(seed, 1)])
    return clear(words, bits)


@pytest.mark.parametrize("bits", [8, 14, 32, 50])
def test_a_long_mask_is_one_key_stream(bits):
    length = 2 * AT_ONCE // word(bits).itemsize + 17
    stream = Cipher(algorithms.ChaCha20(bytes(range(32)), bytes(16)), mode=None).encryptor()
    wanted = np.frombuffer(stream.update(bytes(length * word(bits).itemsize)), word(bits))
    assert np.array_equal(mask(bytes(range(32)), length, bits), wanted & word(bits).type(2**bits - 1))


@given(bits=widths, values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9))
def test_masks_are_removed_exactly(bits, values):
    words = reduced(np.array(values, np.int64), bits)
    assert words.tolist() == [value % 2**bits for value in values]
    before = words.copy()
    seeds = [(bytes([at]) * 32, 1 if at % 2 else -1) for at in range(5)]
    add_masks(words, seeds)
    add_masks(words, [(seed, -direction) for seed, direction in seeds])
    assert np.array_equal(clear(words, bits), before)


@pytest.mark.parametrize("length", [0, 4, 31, 33, 64])
def test_a_seed_of_another_length_is_refused(length):
    """Negative control: a seed folded to 32 bits has 4 bytes."""
    with pytest.raises(ValueError, match="seed of 32 bytes"):
        add_masks(np.zeros(2, np.uint32), [(bytes(length), 1)])
