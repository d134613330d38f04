"""Named mistakes that can be planted in the client's mechanism, to see whether an audit finds them.

Inside ``planted(name)`` functions that ``client_step`` looks up are replaced; what comes out of it then is not what is
claimed. An audit does not know of it. For simulations and tests; nothing in a real run calls this.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fedlsg.discrete import discrete_gaussian
from fedlsg.privacy import Mechanism, add_noise, clipped_sum, poisson_batch
from fedlsg.randomness import SecretStream

Patches = dict[str, Callable[..., Any]]


def halved_noise() -> Patches:
    """Noise of half the claimed deviation."""

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        return total + (add_noise(torch.zeros_like(total), mechanism, noise) / 2)

    def discrete(centres: Tensor, deviation: Fraction, noise: SecretStream) -> Tensor:
        return discrete_gaussian(centres, deviation / 2, noise)

    return {"add_noise": plant, "fedlsg.discrete.grid.discrete_gaussian": discrete}


def per_block_clip() -> Patches:
    """Every block clipped to C on its own, claimed as if the whole were (Ito et al. 2023, Alg. 1)."""

    def plant(gradients: Sequence[Tensor], mechanism: Mechanism, **options: bool) -> Tensor:
        return clipped_sum(gradients, replace(mechanism, clip="per-block"), **options)

    return {"clipped_sum": plant}


def no_clip() -> Patches:
    """Gradients summed as they are."""
    return {"clipped_sum": lambda gradients, mechanism, **options: torch.cat([block.sum(0) for block in gradients])}


def mask_unlike_noise() -> Patches:
    """Noise on the coordinates of another mask: some that are sent have none."""

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        other = torch.rand(len(total), generator=torch.Generator().manual_seed(1)) < 0.9
        return torch.where(other.to(total.device), add_noise(total, mechanism, noise), total)

    return {"add_noise": plant}


def noise_reused() -> Patches:
    """One draw for all steps of all clients."""
    drawn: dict[int, Tensor] = {}

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        if len(total) not in drawn:
            drawn[len(total)] = add_noise(torch.zeros_like(total), mechanism, noise)
        return total + drawn[len(total)]

    return {"add_noise": plant}


def empty_batch_skipped() -> Patches:
    """No noise where the batch is empty: silence shows that nobody took part."""

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        return add_noise(total, mechanism, noise) if size[0] else total

    size, counted = _counted()
    return {"add_noise": plant, "poisson_batch": counted}


def divisor_from_data() -> Patches:
    """The noisy sum divided by the realised batch size."""

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        return add_noise(total, mechanism, noise) / max(1, size[0])

    size, counted = _counted()
    return {"add_noise": plant, "poisson_batch": counted}


def full_batches() -> Patches:
    """Every example in every step, accounted as a Poisson batch."""
    return {"poisson_batch": lambda count, sample_rate, sampler: torch.arange(count)}


def _counted() -> tuple[list[int], Callable[[int, float, SecretStream], Tensor]]:
    size = [0]

    def draw(count: int, sample_rate: float, sampler: SecretStream) -> Tensor:
        batch = poisson_batch(count, sample_rate, sampler)
        size[0] = len(batch)
        return batch

    return size, draw


PLANTS: dict[str, Callable[[], Patches]] = {
    "halved-noise": halved_noise,
    "per-block-clip": per_block_clip,
    "no-clip": no_clip,
    "mask-unlike-noise": mask_unlike_noise,
    "noise-reused": noise_reused,
    "empty-batch-skipped": empty_batch_skipped,
    "divisor-from-data": divisor_from_data,
    "full-batches": full_batches,
}


GAUSSIAN = ("mask-unlike-noise", "noise-reused", "empty-batch-skipped", "divisor-from-data")
"""Mistakes in Gaussian noise: discrete noise is added elsewhere, and would not have them."""


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The named mistake in the mechanism inside, and none after; ``None`` plants nothing. Raises ValueError."""
    if name is None:
        yield
        return
    if name not in PLANTS:
        raise ValueError(f"expected a plant in {', '.join(PLANTS)}, got {name!r}")
    with ExitStack() as stack:
        for function, mistake in PLANTS[name]().items():
            where = function if "." in function else f"fedlsg.training.client.{function}"
            stack.enter_context(patch(where, mistake))
        stack.enter_context(
            patch("fedlsg.training.client.allows_ghost_clipping", lambda frame: False)
        )  # plants work on formed gradients
        yield
