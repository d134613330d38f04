"""What a client draws in a round: its batches, the noise, and what models and augmentation draw by
themselves.
"""

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

_KEPT = list[str]()
"""Devices whose generators an enclosing ``kept_draws`` puts back."""


@contextmanager
def kept_draws(device: str) -> Iterator[None]:
    """Inside, ``draws`` of many clients leave it to this to put the generators back, once: only
    clients run inside.
    """
    with own_draws(device):
        _KEPT.append(device)
        try:
            yield
        finally:
            _KEPT.pop()


@contextmanager
def draws(base: Base, partition: int, round: int) -> Iterator[None]:
    """Inside, torch's own generators are seeded for one client, in secret.

    Dropout, if a model has it, draws from torch's own generator, by place in the batch. One example
    less moves the others to other places. That is harmless while the draws are secret: masks are
    independent of each other, so the release has the same distribution as if every example had
    drawn its mask in advance. Given those masks, one example moves the sum by C at most, and this
    also holds for their mixture. In the test mode the draws are the same on every engine (and a run
    is NOT PRIVATE).
    """
    with nullcontext() if base.device in _KEPT else own_draws(base.device):
        seed = secrets.randbits(63)
        if base.settings.reproducible:
            seed = public_generator(base.settings.seed, "dropout", partition, round).initial_seed()
        seed_draws(seed, base.device)
        yield


def sampler_of(base: Base, account: ClientAccount, entry: Entry) -> SecretStream | ShuffledBatches:
    """What a charged attempt draws its batches from."""
    if entry.batches:
        return batches_of(
            base, entry, None if base.settings.reproducible else account.batch_key(entry)
        )
    return stream_of(base, "sampler", entry.client, entry.round)


def stream_of(base: Base, purpose: str, partition: int, round: int) -> SecretStream:
    """The secret stream of one purpose; in the test mode, one that anybody can repeat."""
    s = base.settings
    return (
        reproducible_stream(s.seed, *base.stream, purpose, partition, round)
        if s.reproducible
        else secret_stream()
    )


def groups(base: Base, partition: int) -> Groups:
    """The groups of a client's examples: only examples of one shape may share a microbatch
    (``Split.apart``).
    """

    s, train, ahead = base.settings, base.workload.train, base.rows.ahead
    if ahead is None and train.groups is None:
        return lambda positions: [positions]

    def of(positions: Positions) -> list[Positions]:
        rows = base.parts[partition][positions]
        if ahead is not None:  # images have one shape, and are read in the order of the batch
            ahead.expect(rows.numpy(), max(1, base.local.microbatch_size // s.multiplicity))
            return [positions]
        return [positions[places] for places in train.apart(rows)]

    return of


def batches(base: Base, partition: int, round: int, used_rows: list[Tensor]) -> Batch:
    """Inputs and targets of positions in a client's part, augmented if the settings say so; adds to
    ``used_rows``.

    Guarantee: given the draws, how an example is augmented does not depend on the client's other
    examples or on the batch. Each draw belongs to a row of the training split. A row less moves all
    rows after it to other draws. That is harmless while draws are secret and independent: it does
    not matter then which row has which. Draws that anybody can repeat would let one row move the
    sum by more than its sensitivity; the test mode has them, and so has a method that claims no
    epsilon.
    """
    s, augment, changes = base.settings, base.rows.augment, None
    if base.rows.ahead is not None:
        base.rows.ahead.workers.open()  # before secrets are drawn, which a fork would copy
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
