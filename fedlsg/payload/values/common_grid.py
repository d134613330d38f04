"""One grid of integers for all clients of a round: an outside protocol can add them modulo 2^b.

Symbols: x a client's value, D the step (a power of two), u public dither in (-1/2, 1/2), the same for all clients,
K summed clients, b bits, s deviation of the noise on each x:
    sender    q = floor(x / D + u + 1/2) mod 2^b      receiver    (sum of q - K u) D
A dither of each client's own (``Dither``) needs to know who is in the sum; a common one needs K only. It keeps every
single error uniform in (-D/2, D/2] whatever x is: the sum is unbiased, with or without noise. The errors of two clients
are not independent of each other, though: their covariance is at most
    D^2 / (2 pi^2) * sum over k >= 1 of exp(-4 pi^2 k^2 s^2 / D^2) / k^2
where x carries Gaussian noise of deviation s: nothing (4e-19 D^2) at s = D, all of D^2 / 12 at s = 0, where equal
values err equally. Stochastic rounding with secret draws would be independent at any s, with up to D^2 / 4 a client.

Guarantees: a sender refuses a value whose integer could overflow the sum of all clients; what the receiver computes is
the sum of the dequantized values exactly, in float64, without any rounding.
No privacy claim: the integers of one client are as private as its values were. Noise that is rounded on a grid is not
Gaussian: the sum of quantized shares of noise (``trust="aggregate"``) has no epsilon here, see
docs/secure-aggregation.md.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedlsg.payload.values.dither import LEVELS, quantize
from fedlsg.randomness import public_generator

MOST_BITS = 28
"""Bits of a sum at most: with the 25 of the dither it is exact in float64."""


@dataclass(frozen=True, kw_only=True)
class CommonGrid:
    """Public constants of a round's grid: step 2^exponent, sums of ``clients`` at most, modulo 2^bits."""

    seed: int
    exponent: int
    clients: int
    bits: int

    def __post_init__(self) -> None:
        if not -1000 <= self.exponent <= 1000:
            raise ValueError(f"expected -1000 <= exponent={self.exponent} <= 1000")
        if self.clients < 1:
            raise ValueError(f"expected clients={self.clients} >= 1")
        if not 1 < self.bits <= MOST_BITS or self.limit < 1:
            raise ValueError(
                f"expected up to {MOST_BITS} bits that hold {self.clients} clients, got bits={self.bits}: "
                "take more bits, or a wider step"
            )

    @property
    def step(self) -> float:
        """D."""
        return math.ldexp(1.0, self.exponent)

    @property
    def modulus(self) -> int:
        """2^bits."""
        return 1 << self.bits

    @property
    def limit(self) -> int:
        """Largest integer of one client: ``clients`` of them stay below half the modulus."""
        return (self.modulus // 2 - 1) // self.clients

    def levels(self, round: int, count: int) -> Int[Tensor, " count"]:
        """Levels d of the round's dither u = (d + 1/2) / 2^24 - 1/2, one a value, equal for all clients."""
        generator = public_generator(self.seed, "common dither", round)
        return torch.randint(LEVELS, (count,), generator=generator, dtype=torch.int64)


def grid_for(
    *, seed: int, bound: float, noise_std: float, floor_step: float, clients: int, count: int, failure: float
) -> CommonGrid:
    """The grid with the widest step of at most ``floor_step`` noise deviations, and the fewest bits that hold the sum.

    bound: largest magnitude of a value before its noise, such as N C. count: values of a payload.
    Guarantee: of ``clients`` honest payloads whose noise is N(0, noise_std^2), any value is refused with probability
    ``failure`` at most, since P(|noise| > t noise_std) <= exp(-t^2 / 2); what is not refused cannot overflow.
    Raises ValueError where there is no noise to take the step from, or more than 28 bits would be needed.
    """
    if not (0 < floor_step * noise_std < math.inf and 0 <= bound < math.inf):
        raise ValueError(f"expected noise and a finite bound, got {noise_std=} x {floor_step=} and {bound=}")
    if not (0 < failure < 1 and count >= 1 and clients >= 1):
        raise ValueError(f"expected 0 < {failure=} < 1, {count=} >= 1 and {clients=} >= 1")
    exponent = math.frexp(floor_step * noise_std)[1] - 1
    reach = bound + noise_std * math.sqrt(2 * math.log(count * clients / failure))
    steps = min(reach / math.ldexp(1.0, exponent), 2.0**MOST_BITS)
    largest = math.floor(steps) + 2  # rounding moves a value by up to one step
    return CommonGrid(seed=seed, exponent=exponent, clients=clients, bits=(clients * largest).bit_length() + 1)


def to_grid(values: Float[Tensor, " kept"], grid: CommonGrid, round: int) -> Int[Tensor, " kept"]:
    """One client's integers in [0, 2^bits), in the order of the round's kept positions.

    Raises ValueError, and nothing should be sent, where a value is not finite or its integer exceeds ``grid.limit``.
    """
    levels = grid.levels(round, len(values))
    symbols = quantize(values.detach().cpu().numpy(), grid.step, levels.numpy())
    whole = torch.from_numpy(symbols)
    if len(whole) and not bool(whole.abs().max() <= grid.limit):  # NaN compares false
        raise ValueError(
            f"a value is outside the {grid.limit} steps of {grid.step:g} that {grid.clients} clients may use of "
            f"{grid.bits} bits: plan the grid with a larger bound"
        )
    return whole.to(torch.int64) % grid.modulus


def from_sum(total: Int[Tensor, " kept"], grid: CommonGrid, round: int, clients: int) -> Float[Tensor, " kept"]:
    """The float64 sum of the dequantized values of ``clients`` clients, from the sum of their integers modulo 2^bits.

    Raises ValueError for integers outside [0, 2^bits), or more clients than the grid was planned for.
    """
    if not 1 <= clients <= grid.clients:
        raise ValueError(f"expected 1 <= {clients=} <= {grid.clients}, for which the grid was planned")
    if len(total) and (int(total.min()) < 0 or int(total.max()) >= grid.modulus):
        raise ValueError(f"expected integers in [0, 2^{grid.bits})")
    signed = torch.where(total >= grid.modulus // 2, total - grid.modulus, total)
    # In units of D / 2^25: q - u = q + 1/2 - (d + 1/2) / 2^24. Below 2^53, so exact in float64.
    fine = 2 * LEVELS * signed + clients * (LEVELS - 1 - 2 * grid.levels(round, len(total)))
    return fine.double() * math.ldexp(grid.step, -25)


def error_variance(grid: CommonGrid, clients: int, noise_std: float) -> float:
    """Bound on the variance of a summed error: K D^2 / 12, and the covariance of every two clients.

    Differs from independent dithers by the covariance, which noise of deviation ``noise_std`` on each value takes away.
    """
    square, terms = grid.step**2, 1000

    def harmonic(k: int) -> float:
        return math.exp(-((2 * math.pi * k * noise_std / grid.step) ** 2))

    shared = math.fsum(harmonic(k) / k**2 for k in range(1, terms)) + harmonic(terms) / (terms - 1)  # and all others
    covariance = square * min(1 / 12, shared / (2 * math.pi**2))
    return clients * square / 12 + clients * (clients - 1) * covariance
