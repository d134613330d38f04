"""Planted mistakes of the protocol, each caught by a check that the honest protocol passes."""

import numpy as np
import pytest

from fedlsg.secure_sum import Terms, Total, keys, reproducible_root
from fedlsg.secure_sum import client as client_file
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import AttemptSecrets, add_masks, clear, pair_seed, public_bytes, reduced, sign
from fedlsg.secure_sum.messages import unpack_bits
from tests.fedlsg.support.secure_rounds import exact_sum, make_terms, random_inputs, run_attempt

TERMS = make_terms(5, survivors=4, colluders=1, length=64)
INPUTS = random_inputs(TERMS, 0)


def sum_is_exact() -> bool:
    found = run_attempt(TERMS, INPUTS, drop=lambda stage, who: stage == "unmask" and who == 10).outcome
    return isinstance(found, Total) and found.values.tolist() == exact_sum(INPUTS, found.survivors, TERMS.bits)


def vector(message: bytes, terms: Terms) -> np.ndarray:
    return unpack_bits(message[wire.HEADER.size : -wire.CHECKSUM_BYTES], terms.length, terms.bits)


def late_vector_shows_the_input() -> bool:
    """A client is counted as absent, its mask key is put together, and its masked vector comes after all."""
    words = vector(run_attempt(TERMS, INPUTS).masked[10], TERMS).copy()
    secrets = {who: AttemptSecrets(reproducible_root(0, who), TERMS.digest, who) for who in TERMS.clients}
    others = TERMS.neighbours[10]
    pairs = [pair_seed(secrets[10].mask_key, 10, public_bytes(secrets[j].mask_key), j, TERMS.digest) for j in others]
    add_masks(words, [(seed, -sign(10, j)) for seed, j in zip(pairs, others, strict=True)])
    return np.array_equal(clear(words, TERMS.bits), reduced(INPUTS[10], TERMS.bits))


def masks_repeat(one: Terms, two: Terms) -> bool:
    """Whether the difference of two masked vectors is that of their inputs."""
    inputs = random_inputs(one, 1), random_inputs(two, 2)
    y = [vector(run_attempt(t, x).masked[10], t) for t, x in zip((one, two), inputs, strict=True)]
    x = [reduced(values[10], one.bits) for values in inputs]
    return np.array_equal(y[0] - y[1], x[0] - x[1])


def test_the_honest_protocol_passes_all_checks():
    assert sum_is_exact()
    assert not late_vector_shows_the_input()
    assert not masks_repeat(TERMS, make_terms(5, survivors=4, colluders=1, length=64, attempt=1))


def forget_self_mask(words, seeds) -> None:
    """The first call of a client is that of its self-mask."""
    if not isinstance(seeds, list):
        add_masks(words, seeds)


def test_a_forgotten_self_mask_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_file, "add_masks", forget_self_mask)
    assert not sum_is_exact()
    assert late_vector_shows_the_input()


def test_equal_signs_are_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_file, "sign", lambda own, other: 1)
    assert not sum_is_exact()


def test_one_mask_in_two_attempts_is_caught(monkeypatch: pytest.MonkeyPatch):
    """Keys that do not bind the attempt."""
    monkeypatch.setattr(Terms, "digest", bytes(32))
    one, two = (make_terms(5, survivors=4, colluders=1, length=64, attempt=attempt) for attempt in (0, 1))
    assert masks_repeat(one, two)


def test_a_seed_folded_to_32_bits_is_caught(monkeypatch: pytest.MonkeyPatch):
    honest = keys.pair_seed
    monkeypatch.setattr(client_file, "pair_seed", lambda *about: honest(*about)[:4])
    with pytest.raises(ValueError, match="seed of 32 bytes, got 4"):
        sum_is_exact()
