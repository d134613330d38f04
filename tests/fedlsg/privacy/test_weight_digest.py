"""Digests of weights: of all numbers, wherever they are, and of a single one that moves."""

import hashlib

import numpy as np
import pytest
import torch

from fedlsg.privacy import weight_digest
from fedlsg.privacy.weight_digest import BLOCK, digest_of, digests_of

SIZES = [1, 2, 3, 603, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 6 * BLOCK + 7]


def by_hand(numbers):
    """The definition, in integers of Python."""
    factors = hashlib.shake_128(b"fedlsg weights").digest(8 * BLOCK)
    factors = [int.from_bytes(factors[i : i + 8], "little") | 1 for i in range(0, 8 * BLOCK, 8)]
    bits = numbers.numpy().view(np.uint32).tolist()
    bits += bits[-1:] * (len(bits) % 2)
    words = [low + (high << 32) for low, high in zip(bits[::2], bits[1::2], strict=True)]
    upper = [word >> 32 for word in words]
    signed = [half - 2**32 * (half >= 2**31) for half in upper]
    content = len(numbers).to_bytes(8, "little")
    for read in (words, signed):
        blocks = [read[i : i + BLOCK] for i in range(0, len(read), BLOCK)]
        blocks += [[]] * (len(read) % BLOCK == 0)  # the rest is a sum, too
        for block in blocks:
            total = sum(word * factor for word, factor in zip(block, factors, strict=False))
            content += (total % 2**64).to_bytes(8, "little")
    return hashlib.blake2b(content, digest_size=8).digest()


@pytest.mark.parametrize("size", SIZES[1:])
def test_the_digest_is_its_definition(size):
    numbers = torch.randn(size)
    assert digest_of(numbers) == by_hand(numbers)
    assert len(digest_of(numbers)) == 8


@pytest.mark.parametrize("size", SIZES)
def test_each_number_counts(size):
    """One number of a tensor moves to the next float: at both ends, around blocks, and anywhere."""
    numbers = torch.randn(size)
    before = digest_of(numbers)
    places = {
        0,
        1,
        size - 2,
        size - 1,
        2 * BLOCK - 1,
        2 * BLOCK,
        *range(0, size, max(1, size // 9)),
    }
    seen = {before}
    for place in places & set(range(size)):
        moved = numbers.clone()
        moved[place] = torch.nextafter(moved[place], torch.tensor(9.0))
        seen.add(digest_of(moved))
    assert len(seen) == len(places & set(range(size))) + 1


@pytest.mark.parametrize("numbers", [torch.randn(6), torch.randn(4, 2), torch.full((8,), 0.5)])
@pytest.mark.parametrize("places", [(1, 3), (0, 2), (1, 3, 5), (0, 1), (1, 2)])
def test_signs_that_change_together_are_seen(numbers, places):
    """Two signs of numbers at odd places change a sum of words by a multiple of 2^64."""
    moved = numbers.clone()
    moved.view(-1)[list(places)] *= -1
    assert digest_of(moved) != digest_of(numbers)
    assert len(digest_of(moved)) == 8, "no constant"


def test_two_numbers_that_change_places_are_others():
    numbers = torch.randn(603)
    assert digest_of(numbers) != digest_of(numbers.flip(0))
    assert digest_of(torch.cat([numbers, numbers[-1:]])) != digest_of(numbers)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.25, float("nan")])
@pytest.mark.parametrize("size", SIZES)
def test_a_constant_is_its_number_and_one_that_moved_in_a_place_is_not(value, size):
    numbers = torch.full((size,), value)
    assert digest_of(numbers) == np.float32(value).tobytes()
    numbers[size // 2] = 3.0
    assert len(digest_of(numbers)) == (4 if size == 1 else 8)


def test_digests_are_of_numbers_wherever_they_lie():
    numbers = torch.randn(1001)
    column = torch.randn(1001, 3)
    column[:, 1] = numbers
    wanted = digest_of(numbers)
    assert wanted == digest_of(column[:, 1]) == digest_of(torch.cat([numbers[:1], numbers])[1:])
    image = torch.randn(4, 6, 3, 3)
    assert digest_of(image) == digest_of(image.to(memory_format=torch.channels_last))
    tensors = {str(size): torch.randn(size) for size in SIZES}
    assert digests_of(tensors) == {n: digests_of({n: t})[n] for n, t in tensors.items()}
    assert digest_of(numbers.half()) == digest_of(numbers.half().float())


def test_a_float64_tensor_has_the_digest_of_its_float32_and_that_of_its_bits():
    numbers = torch.randn(64, dtype=torch.float64)
    (single, bits), nearly = digests_of({"": numbers})[""], numbers.clone()
    nearly[5] = torch.nextafter(nearly[5], torch.tensor(9.0, dtype=torch.float64))
    assert digest_of(numbers.float()) == single
    assert digests_of({"": nearly})[""][0] == single
    assert digests_of({"": nearly})[""][1] != bits


def test_what_has_no_numbers_has_no_digest():
    assert digests_of({}) == {}
    for none in (torch.arange(3), torch.empty(0), torch.randn(3, device="meta")):
        assert digest_of(none) == b""


@pytest.mark.gpu
def test_a_gpu_has_the_same_digests():
    tensors = {str(size): torch.randn(size) for size in SIZES}
    there = {name: tensor.cuda() for name, tensor in tensors.items()}
    assert digests_of(there) == digests_of(tensors)
    assert digests_of(there | {"here": tensors["603"]})["here"] == digests_of(tensors)["603"]


def test_a_planted_mistake_is_found(monkeypatch):
    """The negative control: of even factors, a bit of a word can be lost."""
    numbers = torch.randn(603)
    before, moved = digest_of(numbers), numbers.clone()
    moved[1] = -moved[1]  # the highest bit of the first word
    assert digest_of(moved) != before
    even = torch.from_numpy(weight_digest._FACTORS * 2)

    def planted(device, lengths):
        return torch.cat([even[:length] for length in lengths])

    monkeypatch.setattr(weight_digest, "_factors_of", planted)
    whole = weight_digest._sums([numbers[:2].view(torch.int64), moved[:2].view(torch.int64)])
    assert whole[0][1].tolist() == whole[1][1].tolist()
