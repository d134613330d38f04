"""What shuffled batches (sampling=shuffle) do not go with: where their epsilon would not be true, or is not proved."""

from collections.abc import Sequence
from statistics import fmean

from simulations.settings.run import Resolved, Settings

CLAIM = (
    "shuffled batches: each example is in one batch of an epoch, and an epoch counts as one release. No amplification "
    "by shuffling is claimed. Adjacency is zero-out: one example is replaced by a record without a gradient"
)


def check_sampling(s: Resolved) -> None:
    """Raise ValueError, naming the setting and the fix, for shuffled batches where they do not fit."""
    if s.sampling != "shuffle":
        return
    if s.batch_size is None:
        raise ValueError(
            f"sampling=shuffle cuts batches of a fixed size, by which the sums are divided, and sample_rate="
            f"{s.sample_rate:g} is a chance: give batch_size instead, a public number of examples"
        )
    if s.unit == "client":
        raise ValueError(
            "unit=client hides whole clients, whatever their batches are, and nothing is accounted by batches: take "
            "sampling=poisson"
        )
    if s.trust == "secure":
        raise ValueError(
            "sampling=shuffle under trust=secure: the bound on discrete noise is planned for Poisson batches; take "
            "trust=client, or sampling=poisson"
        )


def refuse_shuffled(s: Settings, what: str) -> None:
    """Raise ValueError for shuffled batches where ``what`` is made for Poisson batches."""
    if s.sampling == "shuffle":
        raise ValueError(
            f"{what} takes examples out of a client's data, which would move all others to other batches: it needs "
            "sampling=poisson, got sampling=shuffle"
        )


def batches_line(s: Resolved, sizes: Sequence[int], rate: float) -> str:
    """How batches are drawn, in a few words: the Poisson rate, or the batch size and the epoch of the mean client."""
    if s.sampling != "shuffle" or s.batch_size is None:
        return f"q = {rate:.4g}"
    return f"shuffled batches of {s.batch_size}, 1 epoch = {-(-fmean(sizes) // s.batch_size):.0f} steps"
