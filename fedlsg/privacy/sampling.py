"""Poisson batches: every example joins every step independently with probability q."""

from jaxtyping import Bool, Int
from torch import Tensor

from fedlsg.randomness import SecretStream


def check_sample_rate(sample_rate: float) -> None:
    """Raise ValueError unless the Poisson rate q, the chance of every example in every step, is in (0, 1]."""
    if isinstance(sample_rate, bool) or not 0 < sample_rate <= 1:
        raise ValueError(f"expected 0 < {sample_rate=} <= 1")


AT_ONCE = 2**20
"""Draws made ahead at most: 8 MB of the stream."""


class BernoulliDraws:
    """The Bernoulli draws of several batches of one size, made from a stream at once.

    Guarantee: bit for bit those of one call of the stream a batch, each used once. Raises ValueError for a batch of
    another size or rate than the first, or one batch more.
    """

    def __init__(self, stream: SecretStream, *, batches: int) -> None:
        self.stream, self.left = stream, batches
        self._wanted: tuple[int, float] | None = None
        self._made: list[Tensor] = []

    def bernoulli(self, count: int, probability: float) -> Bool[Tensor, " count"]:
        """The draws of the next batch."""
        if self._wanted is None:
            self._wanted = count, probability
        if not self.left or self._wanted != (count, probability):
            raise ValueError(f"expected {self.left} more batches of {self._wanted}, got {(count, probability)}")
        if not self._made:
            runs = max(1, min(self.left, AT_ONCE // max(1, count)))
            self._made = list(self.stream.bernoulli(runs * count, probability).view(runs, count))[::-1]
        self.left -= 1
        return self._made.pop()


def poisson_batch(num_examples: int, sample_rate: float, draws: SecretStream | BernoulliDraws) -> Int[Tensor, " batch"]:
    """Positions in 0..num_examples-1 of one Poisson batch, ascending; possibly empty.

    An empty batch is a batch: the step that gets it still adds noise and still counts. The size is secret: it
    must not be sent, nor divide anything that is.
    """
    check_sample_rate(sample_rate)
    return draws.bernoulli(num_examples, sample_rate).nonzero().squeeze(1)
