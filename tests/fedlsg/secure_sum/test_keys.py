"""Keys, masks and shares: published vectors, what every key depends on, packing by hand, Shamir
against an oracle.
"""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.secure_sum import SecureSumError, keys
from fedlsg.secure_sum.keys import (
    AT_ONCE,
    PRIME,
    TAG_BYTES,
    add_masks,
    agreement_tags,
    check_public,
    clear,
    combine,
    commitment_to,
    open_shares,
    pair_seed,
    private_key,
    public_bytes,
    reduced,
    seal_shares,
    split,
    word,
)

TERMS = bytes(range(32))
A, B = (private_key(bytes([number]) * 32) for number in (1, 2))


def test_x25519_of_rfc_7748():
    """Section 6.1: Alice's private and public key."""
    secret = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    public = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert public_bytes(private_key(secret)).hex() == public


def test_both_ends_of_a_pair_agree_and_nobody_else():
    seed = pair_seed(A, 7, public_bytes(B), 3, TERMS)
    assert len(seed) == 32
    assert seed == pair_seed(B, 3, public_bytes(A), 7, TERMS)
    others = [
        pair_seed(A, 7, public_bytes(B), 4, TERMS),
        pair_seed(A, 8, public_bytes(B), 3, TERMS),
        pair_seed(A, 7, public_bytes(B), 3, bytes(32)),
        pair_seed(A, 7, public_bytes(private_key(bytes([3]) * 32)), 3, TERMS),
    ]
    assert len({seed, *others}) == 5


def test_sealed_shares_open_for_their_receiver_alone():
    sealed = seal_shares(A, 7, public_bytes(B), 3, TERMS, bytes(64))
    assert len(sealed) == 80
    assert open_shares(B, 3, public_bytes(A), 7, TERMS, sealed) == bytes(64)
    for receiver, sender, terms, text in [
        (4, 7, TERMS, sealed),
        (3, 8, TERMS, sealed),
        (3, 7, bytes(32), sealed),
        (3, 7, TERMS, sealed[:-1] + b"\0"),
        (7, 3, TERMS, sealed),
    ]:
        with pytest.raises(SecureSumError, match="altered"):
            open_shares(B, receiver, public_bytes(A), sender, terms, text)


def test_tags_fit_at_both_ends_and_depend_on_all_that_they_say():
    mine, due = agreement_tags(A, 7, public_bytes(B), 3, TERMS, bytes(32))
    assert (due, mine) == agreement_tags(B, 3, public_bytes(A), 7, TERMS, bytes(32))
    others = [
        agreement_tags(A, 7, public_bytes(B), 3, TERMS, TERMS),
        agreement_tags(A, 7, public_bytes(B), 3, TERMS[::-1], bytes(32)),
        agreement_tags(A, 8, public_bytes(B), 3, TERMS, bytes(32)),
        agreement_tags(A, 7, public_bytes(B), 4, TERMS, bytes(32)),
        agreement_tags(A, 7, public_bytes(private_key(bytes([3]) * 32)), 3, TERMS, bytes(32)),
    ]
    assert len({mine, due, *(tag for pair in others for tag in pair)}) == 12
    assert {len(mine), len(due)} == {TAG_BYTES}


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31), bytes(31), b""])
def test_keys_of_small_order_are_refused(key):
    with pytest.raises(SecureSumError, match="public key"):
        check_public(key)
    with pytest.raises(SecureSumError, match="public key"):
        pair_seed(A, 1, key, 2, TERMS)


def test_a_commitment_binds_seed_terms_and_client():
    made = {
        commitment_to(seed, terms, who)
        for seed in (bytes(32), TERMS)
        for terms in (bytes(32), TERMS)
        for who in (1, 2)
    }
    assert len(made) == 8


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
    assert np.array_equal(
        mask(bytes(range(32)), length, bits), wanted & word(bits).type(2**bits - 1)
    )


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


numbers = st.integers(0, PRIME - 1)


def as_bytes(number: int) -> bytes:
    return number.to_bytes(32, "big")


def solved(given: dict[int, int], prime: int) -> list[int]:
    """Oracle: the coefficients of the polynomial through these points, by elimination."""
    rows = [[pow(x, power, prime) for power in range(len(given))] + [y] for x, y in given.items()]
    for at in range(len(rows)):
        pivot = next(row for row in rows[at:] if row[at])
        rows.remove(pivot)
        rows.insert(at, [value * pow(pivot[at], -1, prime) % prime for value in pivot])
        rows = [
            row
            if row is rows[at]
            else [(a - row[at] * b) % prime for a, b in zip(row, rows[at], strict=True)]
            for row in rows
        ]
    return [row[-1] for row in rows]


def test_shares_by_hand():
    assert split(as_bytes(5), [3, 2], [1, 2]) == {1: as_bytes(10), 2: as_bytes(19)}
    assert split(as_bytes(PRIME - 1), [1], [3]) == {3: as_bytes(2)}


@settings(max_examples=50)
@given(secret=numbers, coefficients=st.lists(numbers, max_size=5), extra=st.integers(0, 3))
def test_any_h_shares_give_the_secret(secret, coefficients, extra):
    threshold = len(coefficients) + 1
    made = split(as_bytes(secret), coefficients, range(1, threshold + extra + 1))
    for points in combinations(made, threshold):
        chosen = {x: made[x] for x in points}
        assert combine(chosen, threshold) == as_bytes(secret)
        assert solved({x: int.from_bytes(y, "big") for x, y in chosen.items()}, PRIME) == [
            secret,
            *coefficients,
        ]
    assert combine(made, threshold) == as_bytes(secret)


@settings(max_examples=30)
@given(secret=numbers, other=numbers, coefficients=st.lists(numbers, min_size=1, max_size=5))
def test_h_less_one_shares_fit_every_secret(secret, other, coefficients):
    """For any other secret there is exactly one polynomial through the same h - 1 shares."""
    threshold = len(coefficients) + 1
    made = split(as_bytes(secret), coefficients, range(1, threshold))
    through = {0: other, **{x: int.from_bytes(y, "big") for x, y in made.items()}}
    polynomial = solved(through, PRIME)
    assert split(as_bytes(other), polynomial[1:], range(1, threshold)) == made


def test_h_less_one_shares_are_uniform_whatever_the_secret(monkeypatch: pytest.MonkeyPatch):
    """All polynomials over a field of 7: any two of three shares have one distribution for all
    secrets; h do not.
    """
    monkeypatch.setattr(keys, "PRIME", 7)

    def views(secret: int, points: tuple[int, ...]) -> Counter[tuple[bytes, ...]]:
        made = (split(as_bytes(secret), list(c), points) for c in product(range(7), repeat=2))
        return Counter(tuple(one.values()) for one in made)

    for points in combinations(range(1, 7), 2):
        assert set(views(0, points).values()) == {1}
        assert all(views(secret, points) == views(0, points) for secret in range(7))
    assert views(1, (1, 2, 3)) != views(0, (1, 2, 3))  # negative control


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s.pop(2),
        lambda s: s.update({2: as_bytes(2**256 - 1)}),
        lambda s: s.update({2: b"short"}),
    ],
)
def test_too_few_or_malformed_shares_are_refused(spoil):
    made = split(as_bytes(5), [3, 2], [1, 2, 3])
    spoil(made)
    with pytest.raises(SecureSumError, match="share"):
        combine(made, 3)


@pytest.mark.parametrize(
    ("secret", "coefficients", "points"),
    [
        (bytes(31), [1], [1]),
        (as_bytes(PRIME), [1], [1]),
        (bytes(32), [PRIME], [1]),
        (bytes(32), [-1], [1]),
        (bytes(32), [1], [0]),
        (bytes(32), [1], [PRIME]),
    ],
)
def test_what_cannot_be_shared_is_refused(secret, coefficients, points):
    """A share at point 0 would be the secret."""
    with pytest.raises(ValueError, match="expected"):
        split(secret, coefficients, points)
