"""Poisson batches: every example joins every step independently with probability q."""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from fedlsg.randomness import SecretStream


def check_sample_rate(sample_rate: float) -> None:
    """Raise ValueError unless 0 < q <= 1."""
    if not 0 < sample_rate <= 1:
        raise ValueError(f"expected 0 < {sample_rate=} <= 1")


def poisson_batch(num_examples: int, sample_rate: float, sampler: SecretStream) -> Int[Tensor, " batch"]:
    """Positions in 0..num_examples-1 of one Poisson batch, ascending; possibly empty.

    An empty batch is a batch: the step that gets it still adds noise and still counts. The size is secret: it
    must not be sent, nor divide anything that is.
    """
    check_sample_rate(sample_rate)
    return sampler.bernoulli(num_examples, sample_rate).nonzero().squeeze(1)


def microbatches(batch: Int[Tensor, " batch"], size: int) -> Iterator[Int[Tensor, " micro"]]:
    """The batch in runs of at most ``size``, none dropped; an empty batch yields one empty run."""
    if size < 1:
        raise ValueError(f"expected microbatch size >= 1, got {size}")
    yield from torch.split(batch, size) if len(batch) else (batch,)
