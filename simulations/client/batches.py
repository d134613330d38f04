"""A client's batches: rows of its part, prepared by the workload and augmented if the settings say so."""

import secrets

import torch
from torch import Tensor

from fedlsg.method import Batch
from fedlsg.randomness import public_generator
from fedlsg.training import Groups, Positions
from simulations.plan.base import OwnPart
from simulations.plan.plan import Base
from simulations.workloads import to_device
from simulations.workloads.base.workload import Inputs
from simulations.workloads.images.augment import draw_round, drawn_copies


def groups(base: Base, partition: int) -> Groups:
    """The groups of a client's examples: only examples of one shape may share a microbatch (``Split.apart``)."""

    def of(positions: Positions) -> list[Positions]:
        rows = base.parts[partition][positions]
        return [positions[places] for places in base.workload.train.apart(rows)]

    return of


def batches(base: Base, partition: int, round: int, drawn: list[Tensor]) -> Batch:
    """Inputs and targets of positions in a client's part, augmented if the settings say so; rows go to ``drawn``.

    Guarantee: how an example is augmented does not depend on the client's other examples or on the batch. Each draw
    belongs to a row of the training split. With public draws by place, one example more or less would change all
    examples after it, and the sum would move by more than its sensitivity. In a client's own data, one row less moves
    all rows after it: there the draws are secret and independent, so it does not matter which row has which draw.
    """
    s, augment, changes = base.settings, base.augment, None
    if augment is not None:
        if isinstance(base.parts, OwnPart):
            generator = torch.Generator().manual_seed(secrets.randbits(63))
        else:
            generator = public_generator(s.seed, "augment", partition, round)
        changes = draw_round(augment, len(base.workload.train), base.local.multiplicity, generator)

    def batch(positions: Tensor) -> tuple[Inputs, Tensor]:
        rows = base.parts[partition][positions]
        drawn.append(rows)
        inputs, targets = base.workload.train.batch(rows)
        if augment is not None and changes is not None:
            inputs, targets = drawn_copies(inputs, targets, changes[rows], augment)
        return to_device(inputs, s.device), targets.to(s.device)

    return batch
