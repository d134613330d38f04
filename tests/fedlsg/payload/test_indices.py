"""Indices in bytes: exact, never longer than their cheapest form, and read without trust."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.frame import Keep
from fedlsg.payload.indices import decode_indices, encode_indices

shapes = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple), max_size=4)


def kept_of(shapes, seed) -> torch.Tensor:
    """Kept positions of blocks, each by another kind of mask."""
    rng, start, found = np.random.default_rng(seed), 0, []
    for shape in shapes:
        size = math.prod(shape)
        kind = rng.integers(6)
        if kind < 2 and len(shape) > 1:
            units = torch.from_numpy(rng.random(shape[kind]) < 0.5).nonzero().squeeze(1)
            kept = Keep(axis=int(kind), index=units).positions(shape)
        else:
            kept = torch.from_numpy(rng.random(size) < (0, 0, 0.05, 0.5, 1, 0)[kind]).nonzero().squeeze(1)
        found.append(kept + start)
        start += size
    return torch.cat([*found, torch.zeros(0, dtype=torch.int64)])


@given(shapes=shapes, seed=st.integers(0, 2**32))
@settings(max_examples=100)
def test_round_trip(shapes, seed):
    indices = kept_of(shapes, seed)
    section = encode_indices(indices, shapes)
    assert torch.equal(decode_indices(section, shapes), indices)
    assert len(section) <= sum(1 + (math.prod(shape) + 7) // 8 for shape in shapes)  # no worse than bitmaps


@pytest.mark.parametrize(
    ("shape", "keep", "by_hand"),
    [
        ((2, 3), Keep(), "00"),
        ((2, 3), Keep(index=torch.tensor([0, 4])), "0188"),
        ((2, 3), Keep(index=torch.zeros(0, dtype=torch.int64)), "0100"),
        ((40,), Keep(index=torch.zeros(0, dtype=torch.int64)), "0200"),
        ((40,), Keep(index=torch.tensor([2, 38])), "02020223"),
        ((300,), Keep(index=torch.tensor([299])), "0202ab02"),
        ((4, 5), Keep(axis=0, index=torch.tensor([1, 2])), "0360"),
        ((5, 4), Keep(axis=1, index=torch.tensor([0, 3])), "0490"),
        ((100, 2), Keep(axis=0, index=torch.tensor([7])), "050107"),
        ((2, 100), Keep(axis=1, index=torch.tensor([7])), "060107"),
        ((4, 50, 9), Keep(axis=1, index=torch.tensor([7])), "060107"),
    ],
)
def test_the_cheapest_form_by_hand(shape, keep, by_hand):
    positions = keep.positions(shape)
    assert encode_indices(positions, [shape]).hex() == by_hand
    assert torch.equal(decode_indices(bytes.fromhex(by_hand), [shape]), positions)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "cut short"),
        ("07", "unknown form 7"),
        ("ff", "unknown form 255"),
        ("03", "bitmap that does not fit"),
        ("01", "bitmap that does not fit"),
        ("0101", "bitmap that does not fit"),
        ("02", "a number is cut short"),
        ("0201", "cut short"),
        ("0202ff", "cut short"),
        ("02ffffffffffffffff7f", "cut short"),
        ("020106", "beyond the 6"),
        ("0203000005", "beyond the 6"),
        ("02028100", "too long"),
        ("0201ff", "number is cut short"),
        ("0000", "after the last block"),
    ],
)
def test_bytes_that_no_encoder_makes(bad, why):
    with pytest.raises(ValueError, match=why):
        decode_indices(bytes.fromhex(bad), [(2, 3)])


@given(stream=st.binary(max_size=30), shapes=shapes)
@settings(max_examples=100)
def test_any_bytes_are_indices_or_a_value_error(stream, shapes):
    try:
        indices = decode_indices(stream, shapes)
    except ValueError:
        return
    assert len(indices) <= sum(map(math.prod, shapes))
    assert bool((indices[1:] > indices[:-1]).all())
    assert torch.equal(decode_indices(encode_indices(indices, shapes), shapes), indices)
