"""Poisson batches and shuffled batches.

In a Poisson batch every example is in each step independently with probability q. Shuffled batches
have a fixed size ("partition sampling"): in each epoch every example is in exactly one batch.

Symbols: N examples, B the batch size, M = ceil(N / B) batches of an epoch. The last batch of an
epoch has the other N - (M - 1) B examples: none is dropped. Its sum is divided by B, too, which is
public.

Adjacency of shuffled batches is zero-out: one example is replaced by a null record, whose gradient
is 0. So N, M and the place of each example in the permutation stay the same. (Under add/remove, one
example less would move all later ones to other batches, and the claim below would be false.)
Replacing an example by another one is two steps of zero-out: the noise then counts half.

Given the permutations, one example is in one batch of an epoch, and only that release depends on
it. An epoch is therefore one Gaussian mechanism (parallel composition over its disjoint batches,
each of which may depend on earlier releases), and E epochs that are begun are its E-fold
composition. The permutations do not depend on the data. Their law only mixes such pairs of outputs,
and the hockey-stick divergence is jointly convex. No amplification by shuffling is claimed, and the
claim holds even if the permutations are known.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fedlsg.randomness import SecretStream

ZERO_OUT = "zero-out"
"""Adjacency of shuffled batches: an example is replaced by a record without a gradient."""
AT_ONCE = 2**20
"""Most draws that are made ahead: 8 MB of the stream."""


def check_sample_rate(sample_rate: float) -> None:
    """Raise ValueError unless the Poisson rate q is in (0, 1]."""
    if isinstance(sample_rate, bool) or not 0 < sample_rate <= 1:
        raise ValueError(f"expected 0 < {sample_rate=} <= 1")


class BernoulliDraws:
    """The Bernoulli draws of several batches of one size, made from a stream at once.

    stream: the secret stream.
    left: batches that are still to come.
    Guarantee: the draws are bit for bit those of one call of the stream for each batch, each used
    once.
    """

    def __init__(self, stream: SecretStream, *, batches: int) -> None:
        self.stream, self.left = stream, batches
        self._wanted: tuple[int, float] | None = None
        self._made: list[Tensor] = []

    def bernoulli(self, count: int, probability: float) -> Bool[Tensor, " count"]:
        """The draws of the next batch.

        Raises ValueError for another size or rate than that of the first batch, and if no batch is
        left.
        """
        if self._wanted is None:
            self._wanted = count, probability
        if not self.left or self._wanted != (count, probability):
            raise ValueError(
                f"expected {self.left} more batches of {self._wanted}, got {(count, probability)}"
            )
        if not self._made:
            batches = max(1, min(self.left, AT_ONCE // max(1, count)))
            draws = self.stream.bernoulli(batches * count, probability)
            self._made = list(draws.view(batches, count))
        self.left -= 1
        return self._made.pop(0)


def poisson_batch(
    num_examples: int, sample_rate: float, draws: SecretStream | BernoulliDraws
) -> Int[Tensor, " batch"]:
    """Positions in 0..num_examples-1 of one Poisson batch, ascending; possibly empty.

    An empty batch is a batch: the step that gets it still adds noise and still counts. The size is
    secret: it must not be sent, nor divide anything that is.
    """
    check_sample_rate(sample_rate)
    return draws.bernoulli(num_examples, sample_rate).nonzero().squeeze(1)


def batches_of_epoch(num_examples: int, batch_size: int) -> int:
    """M = ceil(N / B)."""
    if num_examples < 1 or batch_size < 1:
        raise ValueError(f"expected {num_examples=} >= 1 and {batch_size=} >= 1")
    return -(-num_examples // batch_size)


def epochs_begun(batches: int, of_epoch: int) -> int:
    """Epochs of which the first ``batches`` batches of a client are, at ``of_epoch`` batches each.

    One example was in at most so many batches.
    """
    return math.ceil(batches / of_epoch)


def permutation(num_examples: int, stream: SecretStream) -> Int[Tensor, " n"]:
    """A uniformly random order of the positions: they are sorted by 64-bit words."""
    return torch.from_numpy(np.argsort(stream.words(num_examples), kind="stable"))


class ShuffledBatches:
    """The batches ``first``, ``first`` + 1, ... of a client, counted over all of its epochs.

    ``order(epoch)`` gives the stream of an epoch's permutation, always the same one.
    Guarantee: the batches of an epoch are disjoint and have every position once, also if other
    objects make some of them.
    """

    def __init__(
        self,
        *,
        num_examples: int,
        batch_size: int,
        first: int,
        order: Callable[[int], SecretStream],
    ) -> None:
        self.batches = batches_of_epoch(num_examples, batch_size)
        if first < 0:
            raise ValueError(f"expected {first=} >= 0")
        self.num_examples = num_examples
        self.batch_size = batch_size
        self._next = first
        self._order = order
        self._epoch, self._positions = -1, torch.zeros(0, dtype=torch.int64)

    def next_batch(self) -> Int[Tensor, " batch"]:
        """Positions in 0..N-1 of the next batch, ascending."""
        epoch, place = divmod(self._next, self.batches)
        if epoch != self._epoch:
            self._epoch, self._positions = epoch, permutation(self.num_examples, self._order(epoch))
        self._next += 1
        start = place * self.batch_size
        return self._positions[start : start + self.batch_size].sort().values
