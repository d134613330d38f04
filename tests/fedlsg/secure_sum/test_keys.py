"""Secrets and keys: published vectors, and what every key depends on."""

import pytest

from fedlsg.secure_sum import SecureSumError
from fedlsg.secure_sum.keys import (
    TAG_BYTES,
    agreement_tags,
    check_public,
    commitment_to,
    open_shares,
    pair_seed,
    private_key,
    public_bytes,
    seal_shares,
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
        (4, 7, TERMS, sealed), (3, 8, TERMS, sealed), (3, 7, bytes(32), sealed), (3, 7, TERMS, sealed[:-1] + b"\0"),
        (7, 3, TERMS, sealed),
    ]:  # fmt: skip
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
    ]  # fmt: skip
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
        commitment_to(seed, terms, who) for seed in (bytes(32), TERMS) for terms in (bytes(32), TERMS) for who in (1, 2)
    }
    assert len(made) == 8
