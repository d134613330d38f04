"""Least squares on a layer's linear equations, and what noise and a random mask make of it (Theorem
5.1).

Symbols (Zhu and Blaschko 2023, sec. 5): K (equations, unknowns) constraints, g = K x gradient, x
input, s noise
deviation, k a K of one column, m a random mask of rate p, * the product of entries, C clip norm, c
    clip factor.
    Eq. 16        |x' - x|^2 = |K^+ n|^2 for noise n on g, in expectation s^2 trace((K^T K)^-1)
    Theorem 5.1   E (x' - x)^2 = s^2 E[1 / |m*k|^2] >= s^2 / ((1 - p) |k|^2)        (Jensen)
Theorem 5.1 leaves the clip out. With it, and c granted to the attacker, k becomes c k:
    clip, then mask    c = C / |k x| is the same for all masks: Theorem 5.1 at c k
    mask, then clip    c = C / |m*k x| undoes what the mask took: E (x' - x)^2 = s^2 x^2 / C^2 at
                       every rate
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.masks import uniform
from fedlsg.privacy import Mechanism, add_noise, clipped_sum
from fedlsg.randomness import SecretStream

Order = Literal["mask, clip", "clip, mask"]


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over draws and its standard error."""

    mean: float
    error: float


def least_squares(
    K: Float[Tensor, "equations unknowns"],
    g: Float[Tensor, "equations *several"],
    kept: Bool[Tensor, " equations"] | None = None,
) -> Float[Tensor, "unknowns *several"]:
    """x' = K^+ g over the kept equations (Eq. 16), for one gradient or several.

    Raises ValueError where they do not determine x: the error would be arbitrary.
    """
    if kept is not None:
        K, g = K[kept], g[kept]
    rank = int(torch.linalg.matrix_rank(K))
    if rank < K.shape[1]:
        raise ValueError(
            f"expected equations that determine {K.shape[1]} unknowns, the kept ones have rank "
            f"{rank}"
        )
    x: Tensor = torch.linalg.lstsq(K, g).solution
    return x


def bound(k: Float[Tensor, " m"], noise_std: float, rate: float) -> float:
    """Theorem 5.1's lower bound s^2 / ((1 - p) |k|^2), with p the share that is really frozen:
    floor(p m) / m.
    """
    m = len(k)
    kept = len(uniform(m, rate, generator=torch.Generator()))
    return noise_std**2 * m / (kept * float(k.square().sum()))


def theorem(
    k: Float[Tensor, " m"], noise_std: float, rate: float, *, draws: int, generator: torch.Generator
) -> Mean:
    """Theorem 5.1's s^2 E[1 / |m*k|^2], its expectation over masks by ``draws`` of them."""
    squares = k.double().square()
    energies = torch.stack(
        [squares[uniform(len(k), rate, generator=generator)].sum() for _ in range(draws)]
    )
    return _mean(noise_std**2 / energies)


def predicted(
    k: Float[Tensor, " m"],
    x: float,
    mechanism: Mechanism,
    order: Order,
    rate: float,
    *,
    draws: int,
    generator: torch.Generator,
) -> Mean:
    """The expected squared error of ``measured`` in closed form, the expectation over masks by
    ``draws`` of them.

    Where the clip is inactive both orders are Theorem 5.1. Raises ValueError for an order that is
    not one of the two.
    """
    check_order(order)
    s, gradient = mechanism.noise_std, (k * x).double()
    if not mechanism.clips:
        return theorem(k, s, rate, draws=draws, generator=generator)
    C = mechanism.clip_norm
    if order == "clip, mask":
        return theorem(
            k * min(1.0, C / float(gradient.norm())), s, rate, draws=draws, generator=generator
        )
    norms = torch.stack(
        [gradient[uniform(len(k), rate, generator=generator)].norm() for _ in range(draws)]
    )
    return _mean((s * x) ** 2 / norms.clamp(max=C).square())


def measured(
    k: Float[Tensor, " m"],
    x: float,
    mechanism: Mechanism,
    order: Order,
    rate: float,
    *,
    draws: int,
    generator: torch.Generator,
    noise: SecretStream,
    repeats: int = 8,
) -> Mean:
    """The squared error of Eq. 16 over ``draws`` of the mask and ``repeats`` of the noise for each.

    Mask, clip and noise are the code that clients run; the standard error counts masks.

    An experiment on the theorem, not an attack: x is known. The attacker is granted k and the clip
    factor, as the paper grants them by leaving the clip out; an attack on a payload has to find
    both.
    """
    check_order(order)
    gradient, errors = (k * x).double(), []
    for _ in range(draws):
        kept = uniform(len(k), rate, generator=generator)
        if order == "mask, clip":
            sent = clipped_sum([gradient[kept].unsqueeze(0)], mechanism)
        else:
            sent = clipped_sum([gradient.unsqueeze(0)], mechanism)[kept]
        factor = float(sent.norm() / gradient[kept].norm())
        received = add_noise(sent.repeat(repeats), mechanism, noise).reshape(repeats, -1)
        guesses = least_squares(factor * k[kept].double().unsqueeze(1), received.mT)
        errors.append((guesses - x).square().mean())
    return _mean(torch.stack(errors))


def check_order(order: str) -> None:
    """Raise ValueError unless ``order`` is one of the two."""
    if order not in get_args(Order):
        raise ValueError(f"expected order in {get_args(Order)}, got {order!r}")


def _mean(values: Float[Tensor, " draws"]) -> Mean:
    return Mean(mean=float(values.mean()), error=float(values.std() / len(values) ** 0.5))
