"""Digests of all numbers of tensors, by which weights that were trained are recognised.

A digest is the hash of sums: of each block of ``BLOCK`` words, and of their upper halves, times
odd public factors, modulo 2^64; a word is two numbers of 32 bits. A single word that changes always
changes its sum, for an odd factor has an inverse. Several that change go unseen with a chance
between 2^-64 and 2^-32, the chance of signs: they are the highest bits of the halves, and two signs
of upper numbers together change the sum of words by a multiple of 2^64. The sums are made where the
numbers are, at the speed of memory: a GPU sends the sums alone. Anybody can make numbers of a given
digest: it recognises, and proves nothing.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

BLOCK = 2**16
"""Words of a sum. Part of the format, as the factors are."""
DIGEST_BYTES = 8
"""Bytes of a digest. The bytes of a constant are four, and stand for themselves."""
SAMPLED = 256
"""Most numbers of a tensor in a sample."""
LEAST_ROUNDED = 64
"""Numbers of the smallest matrix that has digests of rounded numbers: of few numbers, or of scales
near 1, the rounded ones of honest models can be equal.
"""
_FACTORS = np.frombuffer(hashlib.shake_128(b"fedlsg weights").digest(8 * BLOCK), "<i8") | 1
_TOTALS = np.cumsum(_FACTORS)


def digests_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[bytes, ...]]:
    """By name, a digest of the numbers as float32; of float64 ones a second one, of all their bits.

    Of equal numbers the number itself: new biases and scales are constants, and nobody's training
    can be recognised by them. Empty bytes for other than real numbers, and without any.
    """
    forms = [(name, form) for name, tensor in tensors.items() for form in _forms(tensor)]
    digests: dict[str, tuple[bytes, ...]] = dict.fromkeys(tensors, ())
    for device in {form.device for _, form in forms}:
        here = [(name, form) for name, form in forms if form.device == device]
        words = [_words(form) for _, form in here]
        sums = _sums([*words, *(each >> 32 for each in words)])
        pairs = zip(sums[: len(words)], sums[len(words) :], strict=True)
        for (name, form), (whole, upper) in zip(here, pairs, strict=True):
            digests[name] += (_digest(form.numel(), whole, upper),)
    return {name: each or (b"",) for name, each in digests.items()}


def digest_of(values: Tensor) -> bytes:
    """The digest of one tensor as float32."""
    return digests_of({"": values})[""][0]


def samples_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By name, some evenly spaced numbers of each floating point tensor, on the CPU."""
    samples = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.is_meta and tensor.numel():
            flat = tensor.detach().flatten()
            samples[name] = flat[:: len(flat) // SAMPLED + 1].float().cpu()
    return samples


def rounded_digests(
    tensors: Mapping[str, Tensor], samples: Mapping[str, Tensor]
) -> dict[str, tuple[bytes, ...]]:
    """By name, digests of the samples of matrices as float16 and as bfloat16.

    By them, copies that were saved in half precision are recognised. Small matrices, vectors and
    constants have none.
    """
    names = [name for name in samples if _has_rounded(tensors[name])]
    digests: dict[str, tuple[bytes, ...]] = dict.fromkeys(names, ())
    if not names:
        return digests
    together = torch.cat([samples[name] for name in names])
    for half in (torch.float16, torch.bfloat16):
        content = together.to(half).view(torch.int16).numpy().tobytes()
        end = 0
        for name in names:
            count = len(samples[name])
            begin, end = end, end + 2 * count
            part = content[begin:end]
            if part != part[:2] * count:
                words = f"{half} {tensors[name].numel()} ".encode() + part
                digest = hashlib.blake2b(words, digest_size=DIGEST_BYTES).digest()
                digests[name] += (digest,)
    return digests


def _has_rounded(tensor: Tensor) -> bool:
    """Whether a tensor is a matrix of enough numbers."""
    return tensor.dim() > 1 and tensor.numel() >= LEAST_ROUNDED


def _forms(values: Tensor) -> list[Tensor]:
    """Flat numbers of 32 bits to read; none of what has no digest."""
    if not values.is_floating_point() or values.is_meta or not values.numel():
        return []
    flat = values.detach().flatten().contiguous()
    bits = [flat.view(torch.float32)] if flat.dtype == torch.float64 else []
    return [flat.float(), *bits]


def _words(numbers: Tensor) -> Int64[Tensor, " words"]:
    """Pairs of numbers as integers; the last number is its own partner where they are odd."""
    if numbers.numel() % 2:
        numbers = torch.cat([numbers, numbers[-1:]])
    elif numbers.storage_offset() % 2:
        numbers = numbers.clone()
    return numbers.view(torch.int64)


def _sums(words: list[Tensor]) -> list[tuple[bytes, np.ndarray]]:
    """Of tensors on one device: the first word of each, and the sums of its blocks and of the rest
    that fills none. All rests take a few launches together, and all sums one transfer.
    """
    device, rests = words[0].device, [len(each) % BLOCK for each in words]
    factors, bounds = _factors(device), [0, *np.cumsum(rests).tolist()]
    cut = [each.split([len(each) - rest, rest]) for each, rest in zip(words, rests, strict=True)]
    products = torch.cat([rest for _, rest in cut]) * _factors_of(device, tuple(rests))
    upto = torch.cat([products.new_zeros(1), products.cumsum(0)])
    firsts = torch.cat([each[:1] for each in words])
    blocks = [whole.view(-1, BLOCK) for whole, _ in cut]
    # a product with a vector takes no memory, and GPUs have none of integers
    whole = [(b * factors).sum(1) if b.is_cuda else b @ factors for b in blocks if len(b)]
    made = torch.cat([firsts, upto[torch.tensor(bounds, device=device)], *whole]).cpu().numpy()
    count = len(words)
    first, of_rest = made[:count], np.diff(made[count : 2 * count + 1])
    of_blocks = np.split(made[2 * count + 1 :], np.cumsum([len(b) for b in blocks])[:-1])
    return [(first[i].tobytes(), np.append(each, of_rest[i])) for i, each in enumerate(of_blocks)]


def _digest(count: int, whole: tuple[bytes, np.ndarray], upper: tuple[bytes, np.ndarray]) -> bytes:
    """``whole``, ``upper``: first word and sums of so many numbers, and of their upper halves."""
    first = whole[0]
    if first[:4] == first[4:] and all(
        _are_equal((count + 1) // 2, *part) for part in (whole, upper)
    ):
        return first[:4]
    content = count.to_bytes(8, "little") + whole[1].tobytes() + upper[1].tobytes()
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _are_equal(words: int, first: bytes, sums: np.ndarray) -> bool:
    """Whether the sums are those of so many equal words."""
    rest = _TOTALS[words % BLOCK - 1] if words % BLOCK else np.int64(0)
    of_ones = np.append(np.repeat(_TOTALS[-1], words // BLOCK), rest)
    return np.array_equal(sums, np.frombuffer(first, "<i8") * of_ones)


@lru_cache(16)  # of constants
def _factors(device: torch.device) -> Int64[Tensor, " BLOCK"]:
    return torch.from_numpy(_FACTORS.copy()).to(device)


@lru_cache(16)  # of constants
def _factors_of(device: torch.device, lengths: tuple[int, ...]) -> Int64[Tensor, " all"]:
    """Those of several rests, one after the other."""
    return torch.cat([_factors(device)[:length] for length in lengths])
