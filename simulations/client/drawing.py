"""The random draws of a client's round: batches, noise, dropout and augmentation."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from fedlsg.method import Batch
from fedlsg.privacy import Entry, ShuffledBatches
from fedlsg.randomness import (
    SecretStream,
    own_draws,
    public_generator,
    reproducible_stream,
    secret_stream,
    seed_draws,
)
from fedlsg.simulations.client.client_account import ClientAccount, batches_of
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.training_rows import OwnPart
from fedlsg.simulations.workloads.base.split import Inputs
from fedlsg.simulations.workloads.images.augment import draw_round, drawn_copies
from fedlsg.training import Groups, Positions

_RESTORED_OUTSIDE = list[str]()
"""Devices whose generators an enclosing ``kept_draws`` restores."""


@contextmanager
def kept_draws(device: str) -> Iterator[None]:
    """Restore torch's generators once, after a block in which many clients use ``draws``."""
    with own_draws(device):
        _RESTORED_OUTSIDE.append(device)
        try:
            yield
        finally:
            _RESTORED_OUTSIDE.pop()


@contextmanager
def draws(base: Base, partition: int, round: int) -> Iterator[None]:
    """Seed torch's own generators for one client in the block, in secret.

    Dropout draws from torch's own generator, by place in the batch. Without one example, the others
    get other places. That is harmless while the draws are secret: masks are independent of each
    other, so the release has the same distribution as if every example had drawn its mask in
    advance. Given those masks, one example moves the sum by C at most, and this also holds for
    their mixture. In the test mode the draws are the same on every engine (and a run is NOT
    PRIVATE).
    """
    _open_workers(base)
    restored_here = base.device not in _RESTORED_OUTSIDE
    with own_draws(base.device) if restored_here else nullcontext():
        seed = secrets.randbits(63)
        if base.settings.reproducible:
            seed = public_generator(base.settings.seed, "dropout", partition, round).initial_seed()
        seed_draws(seed, base.device)
        yield


def _open_workers(base: Base) -> None:
    """Start the processes that decode rows, before secrets are drawn, which a fork would copy."""
    if base.rows.ahead is not None:
        base.rows.ahead.workers.open()


def sampler_of(base: Base, account: ClientAccount, entry: Entry) -> SecretStream | ShuffledBatches:
    """The source of a charged attempt's batches: shuffled batches, or a stream for Poisson ones."""
    if entry.batches:
        key = None if base.settings.reproducible else account.batch_key(entry)
        return batches_of(base, entry, key)
    return stream_of(base, "sampler", entry.client, entry.round)


def stream_of(base: Base, purpose: str, partition: int, round: int) -> SecretStream:
    """The secret stream of one purpose; in the test mode, one that anybody can repeat."""
    s = base.settings
    if s.reproducible:
        return reproducible_stream(s.seed, *base.stream, purpose, partition, round)
    return secret_stream()


def groups(base: Base, partition: int) -> Groups:
    """A function that divides a batch into groups that may share a microbatch.

    Examples of a group have one shape (``Split.apart``). Rows that are read ahead are ordered here.
    """
    s, train, ahead = base.settings, base.workload.train, base.rows.ahead
    if ahead is None and train.groups is None:
        return lambda positions: [positions]

    def divide(positions: Positions) -> list[Positions]:
        rows = base.parts[partition][positions]
        if ahead is not None:  # images have one shape, and are read in the order of the batch
            ahead.expect(rows.numpy(), max(1, base.local.microbatch_size // s.multiplicity))
            return [positions]
        return [positions[places] for places in train.apart(rows)]

    return divide


def batches(base: Base, partition: int, round: int, used_rows: list[Tensor]) -> Batch:
    """A function from positions in a client's part to inputs and targets, augmented if so set.

    It appends the rows of the training split to ``used_rows``.

    Guarantee: given the draws, how an example is augmented does not depend on the client's other
    examples or on the batch. Each draw belongs to a row of the training split. Without one row, all
    rows after it have other draws. That is harmless while draws are secret and independent: it does
    not matter then which row has which. Draws that anybody can repeat would let one row move the
    sum by more than its sensitivity; only the test mode, and methods without an epsilon, have them.
    """
    s, augment = base.settings, base.rows.augment
    _open_workers(base)
    changes = None
    if augment is not None:
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        repeatable = s.reproducible or not base.method.mechanism.private
        if repeatable and not isinstance(base.parts, OwnPart):
            generator = public_generator(s.seed, "augment", partition, round)
        changes = draw_round(augment, len(base.workload.train), base.local.multiplicity, generator)

    def batch(positions: Tensor) -> tuple[Inputs, Tensor]:
        rows = base.parts[partition][positions]
        used_rows.append(rows)
        inputs, targets = base.rows.fetch(rows)
        if augment is not None and changes is not None:
            inputs, targets = drawn_copies(inputs, targets, changes[rows], augment)
        return inputs, targets

    return batch
