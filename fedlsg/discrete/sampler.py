"""Exact samples of the discrete Gaussian on the integers, with a real centre.

    P(x) = exp(-(x - c)^2 / (2 s^2)) / sum over integers y of exp(-(y - c)^2 / (2 s^2))

Symbols: c centre and s deviation, both in grid steps. c = n + f with an integer n and |f| <= 1/2; x = n + k.

Source: rejection sampling with exact Bernoulli(exp(-gamma)) draws of Canonne, Kamath and Steinke 2020 (arXiv
2004.00010), sec. 5. It differs because the centre is real, and for speed:
- The envelope is a staircase of integer columns that covers exp(-(k - f)^2 / (2 s^2)) for every f (``envelope``).
  Theirs is a discrete Laplace distribution, for an integer centre.
- A draw is a comparison of uniform bits with an enclosure of exp(-gamma). Theirs is a product of simpler draws. 63 bits
  and a table in integers decide all but some 1e-5 of the draws; the rest take more bits and integers of any length.
A centre in float64 is a rational number, and it is that number: no bit of it is lost.

Not covered: the time that a call takes depends on the samples, as with every rejection.
"""

from fractions import Fraction

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlsg.discrete.envelope import CELL, Envelope, enclose_exp, envelope_of
from fedlsg.randomness import SecretStream

AT_ONCE = 2**14
"""Samples drawn at once: they stay in the processor's cache."""

LARGEST_CENTRE = 2.0**61


def discrete_gaussian(centres: Float64[Tensor, " d"], deviation: Fraction, stream: SecretStream) -> Int64[Tensor, " d"]:
    """One independent sample for each centre, in grid steps.

    Guarantee: if the stream's bits were uniform, the law would be exactly P(x), for each centre as the rational number
    that the float64 is. No floating-point number is computed from random bits, or compared with them.
    Raises ValueError for a centre that is not finite or beyond 2^61, and for a deviation outside of [1/4, 4096] steps.
    """
    if centres.dtype != torch.float64:
        raise ValueError(f"expected centres in float64, got {centres.dtype}: convert them, which is exact")
    if not bool((centres.abs() <= LARGEST_CENTRE).all()):
        raise ValueError("expected finite centres of at most 2^61 grid steps: plan the grid for larger values")
    envelope = envelope_of(Fraction(deviation))
    values = centres.detach().cpu().numpy()
    samples = np.empty(len(values), dtype=np.int64)
    for begin in range(0, len(values), AT_ONCE):
        part = values[begin : begin + AT_ONCE]
        whole = np.rint(part)
        # Both differences are exact: a float64 and the nearest integer differ by a float64.
        samples[begin : begin + AT_ONCE] = whole.astype(np.int64) + _offsets(part - whole, envelope, stream)
    return torch.from_numpy(samples)


def _offsets(fractions: np.ndarray, envelope: Envelope, stream: SecretStream) -> Int64[np.ndarray, " part"]:
    """k for every f: points under the staircase until each is below its curve."""
    cut = np.floor(np.ldexp(fractions, envelope.fraction)).astype(np.int64)
    offsets = np.empty(len(fractions), dtype=np.int64)
    waiting = np.arange(len(fractions))
    while len(waiting):
        k, height = point(stream.words(len(waiting)), envelope)
        accepted, undecided = compare(k, height, cut[waiting], envelope)
        offsets[waiting] = k
        for i in np.flatnonzero(undecided):
            own = decide(int(k[i]), int(height[i]), Fraction(float(fractions[waiting[i]])), envelope, stream)
            accepted[i] = own is not None
            offsets[waiting[i]] = 0 if own is None else own
        waiting = waiting[~accepted]
    return offsets


def point(words: np.ndarray, envelope: Envelope) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Column and height of a uniform point. Column reach + 1 is the tail, reach + 2 is outside of the staircase."""
    unit = (words >> np.uint64(1)).view(np.int64)
    column = envelope.columns(unit)
    return column - envelope.reach, unit - envelope.starts[column]


def compare(
    k: Int64[np.ndarray, " n"], height: Int64[np.ndarray, " n"], cut: Int64[np.ndarray, " n"], envelope: Envelope
) -> tuple[np.ndarray, np.ndarray]:
    """Which points are certainly below kappa g(k - f), and for which this table cannot say.

    ``cut`` is f, rounded down to the table's fixed point. Guarantee: an accepted point is below the curve, and one that
    is neither accepted nor undecided is above it, for every f that is cut to the same number.
    """
    x = np.abs((k << envelope.fraction) - cut)
    node = np.minimum(x >> CELL, len(envelope.nodes) - 1)
    curve = envelope.nodes[node] - ((envelope.drops[node] * (x & ((1 << CELL) - 1))) >> CELL)
    coarse = height >> envelope.coarse
    inside = k <= envelope.reach
    accepted = inside & (coarse + 1 <= curve - envelope.margin)
    return accepted, (k == envelope.reach + 1) | (inside & ~accepted & (coarse < curve + envelope.margin))


def decide(k: int, height: int, f: Fraction, envelope: Envelope, stream: SecretStream) -> int | None:
    """The offset if the point is below the curve, else None: exact, with as many further bits as that takes.

    In the tail the offset is drawn here. Its sign is a bit, the block j has probability 2^-(j + 1), the place in the
    block is uniform over L. The column's height then stands for 2^(j + 2) L times itself.
    """
    factor = 1
    if k > envelope.reach:
        word, block = int(stream.words(1)[0]), 0
        sign = 1 if word & 1 else -1
        while int(stream.words(1)[0]) & 1:
            block += 1
        place = (word >> 1) % envelope.tail_block
        k = sign * (envelope.reach + 1 + block * envelope.tail_block + place)
        factor = envelope.tail_block << (block + 2)
    gamma = ((k - f) / envelope.deviation) ** 2 / 2
    return k if below(height, envelope.height * factor, gamma, stream) else None


def below(height: int, scale: int, gamma: Fraction, stream: SecretStream) -> bool:
    """Whether height + U < scale exp(-gamma), for U uniform in [0, 1) whose bits are drawn as they are needed."""
    bits = 0
    while True:
        bits += 64
        height = (height << 64) | int(stream.words(1)[0])
        precision = bits + scale.bit_length()
        low, high = enclose_exp(gamma, precision)
        if (height + 1) << precision <= low * (scale << bits):
            return True
        if height << precision >= high * (scale << bits):
            return False
