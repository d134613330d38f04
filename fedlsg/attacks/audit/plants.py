"""Named mistakes that can be planted in the shipped mechanism, to see whether an audit finds them.

Inside ``planted(name)`` functions of the shipped path are replaced; what comes out of it then is
not what is claimed. An audit does not know of it. For simulations and tests; nothing in a real run
calls this.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fedlsg.attacks.audit.setting import Setting
from fedlsg.privacy import Mechanism, add_noise, clipped_sum, poisson_batch
from fedlsg.randomness import SecretStream
from fedlsg.secure_sum.discrete import SumTerms, discrete_gaussian, plan_release, rotate

AddNoise = Callable[[Tensor], Tensor]
Patches = dict[str, Callable[..., Any]]
Noise = Callable[[Tensor, Any, SecretStream], Tensor]
"""Values, how much noise, the stream -> the values with noise."""
HOMES = {
    "add_noise": ("fedlsg.training.client_round", "fedlsg.training.client_level"),
    "discrete_gaussian": ("fedlsg.secure_sum.discrete.grid",),
    "clipped_sum": ("fedlsg.training.client_round", "fedlsg.training.client_level"),
    "poisson_batch": ("fedlsg.training.client_round", "fedlsg.attacks.audit.shipped"),
    "plan_release": ("fedlsg.attacks.audit.shipped",),
    "rotate": ("fedlsg.secure_sum.discrete.sum_release",),
}
"""Where the shipped path looks a function up."""


def in_noise(change: Callable[[Noise, AddNoise], Noise]) -> Patches:
    """One mistake in both kinds of noise; ``change`` gets the function, and what is sent without
    any noise.
    """
    return {
        "add_noise": change(add_noise, lambda total: total),
        "discrete_gaussian": change(discrete_gaussian, lambda centres: centres.round().long()),
    }


def scaled_noise(factor: Fraction) -> Patches:
    """Noise of another deviation than the claimed one."""

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        return total + add_noise(torch.zeros_like(total), mechanism, noise) * float(factor)

    def discrete(centres: Tensor, deviation: Fraction, noise: SecretStream) -> Tensor:
        return discrete_gaussian(centres, max(deviation * factor, Fraction(1, 4)), noise)

    return {"add_noise": plant, "discrete_gaussian": discrete}


def per_block_clip() -> Patches:
    """Every block clipped to C on its own, claimed as if the whole were (Ito et al. 2023, Alg.
    1).
    """

    def plant(gradients: Sequence[Tensor], mechanism: Mechanism, **options: bool) -> Tensor:
        return clipped_sum(gradients, replace(mechanism, clip="per-block"), **options)

    return {"clipped_sum": plant}


def no_clip() -> Patches:
    """Gradients summed as they are."""

    def plant(gradients: Sequence[Tensor], mechanism: Mechanism, *, wide: bool = False) -> Tensor:
        return torch.cat([block.sum(0).flatten() for block in gradients]).to(
            torch.float64 if wide else None
        )

    return {"clipped_sum": plant}


def clip_misses_block() -> Patches:
    """The last block is added as it is, and is not in the norm that is clipped."""

    def plant(gradients: Sequence[Tensor], mechanism: Mechanism, **options: bool) -> Tensor:
        *rest, missed = gradients
        most = clipped_sum(rest, mechanism, **options)
        return torch.cat([most, missed.sum(0).flatten().to(most)])

    return {"clipped_sum": plant}


def rotation_doubles() -> Patches:
    """The rotation of a secure sum's values makes them twice as long."""
    return {"rotate": lambda values, signs: 2 * rotate(values, signs)}


def shares_for(count: Callable[[SumTerms], int]) -> Patches:
    """Shares of the noise for another number of clients than those whose noise the readers do not
    know.
    """

    def plant(terms: SumTerms, mechanism: Mechanism, **sizes: int) -> Any:
        counted = count(terms)  # as in a sum of one client more, who reads along
        clients = max(terms.clients, counted + 1)
        wrong = replace(terms, clients=clients, min_survivors=counted + 1, colluders=1)
        return plan_release(
            wrong, replace(mechanism, noise_share=counted**-0.5, colluders=1), **sizes
        )

    return {"plan_release": plant}


def mask_unlike_noise() -> Patches:
    """Noise on the coordinates of another mask: some that are sent have none."""

    def change(add: Noise, bare: AddNoise) -> Noise:
        def plant(values: Tensor, how: Any, noise: SecretStream) -> Tensor:
            other = torch.rand(len(values), generator=torch.Generator().manual_seed(1)) < 0.9
            return torch.where(other.to(values.device), add(values, how, noise), bare(values))

        return plant

    return in_noise(change)


def noise_reused() -> Patches:
    """One draw for all steps of all clients."""

    def change(add: Noise, bare: AddNoise) -> Noise:
        drawn: dict[int, Tensor] = {}

        def plant(values: Tensor, how: Any, noise: SecretStream) -> Tensor:
            if len(values) not in drawn:
                drawn[len(values)] = add(torch.zeros_like(values), how, noise)
            return bare(values) + drawn[len(values)]

        return plant

    return in_noise(change)


def noise_left_out(clients: int) -> Patches:
    """One of the clients of a sum adds no noise; where outputs are of single clients, every second
    output has none.
    """

    def change(add: Noise, bare: AddNoise) -> Noise:
        calls = count(1)

        def plant(values: Tensor, how: Any, noise: SecretStream) -> Tensor:
            return bare(values) if next(calls) % max(clients, 2) == 1 else add(values, how, noise)

        return plant

    return in_noise(change)


def by_batch_size(change: Callable[[Tensor, Tensor, int], Tensor]) -> Patches:
    """A mistake that follows from the realised batch size; ``change``: the sum, the sum with noise,
    the size.
    """
    size = 0

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        return change(total, add_noise(total, mechanism, noise), size)

    def draw(count: int, sample_rate: float, sampler: SecretStream) -> Tensor:
        nonlocal size
        batch = poisson_batch(count, sample_rate, sampler)
        size = len(batch)
        return batch

    return {"add_noise": plant, "poisson_batch": draw}


def full_batches() -> Patches:
    """Every example, or client, in every step, accounted as a Poisson sample."""
    return {"poisson_batch": lambda count, sample_rate, sampler: torch.arange(count)}


PLANTS: dict[str, Callable[[int], Patches]] = {
    "halved-noise": lambda _: scaled_noise(Fraction(1, 2)),
    "tenth-of-noise": lambda _: scaled_noise(Fraction(1, 10)),
    "noise-left-out": noise_left_out,
    "shares-for-all": lambda _: shares_for(lambda terms: terms.clients),
    "readers-not-counted": lambda _: shares_for(lambda terms: terms.min_survivors),
    "rotation-doubles": lambda _: rotation_doubles(),
    "clip-misses-block": lambda _: clip_misses_block(),
    "per-block-clip": lambda _: per_block_clip(),
    "no-clip": lambda _: no_clip(),
    "mask-unlike-noise": lambda _: mask_unlike_noise(),
    "noise-reused": lambda _: noise_reused(),
    # no noise where the batch is empty: silence shows that no unit took part
    "empty-batch-skipped": lambda _: by_batch_size(
        lambda total, noisy, size: noisy if size else total
    ),
    "divisor-from-data": lambda _: by_batch_size(lambda total, noisy, size: noisy / max(1, size)),
    "full-batches": lambda _: full_batches(),
}
"""By name; of the number of clients in one output."""
ONLY_GAUSSIAN = ("empty-batch-skipped", "divisor-from-data")
ONLY_SUMS = ("shares-for-all", "readers-not-counted", "rotation-doubles")


def refuse_plant(name: str | None, setting: Setting) -> None:
    """Raise ValueError for a mistake that what is audited cannot have: nothing would be planted."""
    if name is None:
        return
    if name not in PLANTS:
        raise ValueError(f"expected --plant in {', '.join(PLANTS)}, got {name!r}")
    stated = setting.stated
    if name in ONLY_SUMS and setting.sums is None:
        raise ValueError(
            f"--plant {name} is a mistake of secure sums: take trust=secure, got "
            f"trust={stated.trust}"
        )
    if name in ONLY_GAUSSIAN and setting.sums is not None:
        raise ValueError(
            f"--plant {name} is a mistake in Gaussian noise, and trust=secure has discrete noise"
        )
    if name == "noise-left-out" and stated.trust == "server":
        raise ValueError(
            f"--plant {name}: under trust=server no client adds noise; take tenth-of-noise"
        )
    if name == "full-batches" and stated.sample_rate == 1:
        raise ValueError(
            f"--plant {name} changes nothing at sample rate 1, where every unit is in every step"
        )
    if name == "shares-for-all" and stated.honest == stated.clients:
        raise ValueError(
            f"--plant {name} changes nothing where the noise of all {stated.clients} clients counts"
        )
    if name in ("per-block-clip", "clip-misses-block") and len(setting.frame.blocks) == 1:
        raise ValueError(
            f"--plant {name} changes nothing, or leaves no clip, where there is one block: see "
            "no-clip"
        )


@contextmanager
def planted(name: str | None, *, clients: int = 1) -> Iterator[None]:
    """The named mistake in the mechanism inside, and none after; ``None`` plants nothing.
    ``clients``: in one output.

    Raises ValueError for an unknown name.
    """
    if name is None:
        yield
        return
    if name not in PLANTS:
        raise ValueError(f"expected a plant in {', '.join(PLANTS)}, got {name!r}")
    with ExitStack() as stack:
        for function, mistake in PLANTS[name](clients).items():
            for home in HOMES[function]:
                stack.enter_context(patch(f"{home}.{function}", mistake))
        stack.enter_context(
            patch("fedlsg.training.client_round.allows_ghost_clipping", lambda frame: False)
        )  # plants work on formed gradients
        yield
