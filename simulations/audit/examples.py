"""Canary examples for the training mode of ``fedlsg audit``: which rows, their new content, and their clients.

A canary is in the data of its client with probability 1/2, in secret. The other examples, their clients, the divisor
and the noise do not depend on which canaries are in.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.choices import choose
from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream
from fedlsg.training import Positions
from simulations.plan.plan import Plan
from simulations.workloads.base.workload import Inputs, Split, Stored

Images = Float[Tensor, "m *shape"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Inserted:
    """Rows of the training split that are canaries, ascending, the client of each, and whether it is included."""

    rows: Positions
    clients: Positions
    included: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Numbered:
    """Stored examples that come with their rows."""

    stored: Stored

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: Int64[np.ndarray, " b"], /) -> tuple[Int64[np.ndarray, " b"], object]:
        return rows, self.stored[rows]


def uniform_noise(images: Images, generator: torch.Generator) -> Images:
    """Every value uniform between the least and the largest of these images."""
    low, high = images.min(), images.max()
    return low + (high - low) * torch.rand(images.shape, generator=generator)


def two_tone(images: Images, generator: torch.Generator) -> Images:
    """Every value at either end of these images' range, with probability 1/2."""
    return torch.where(torch.rand(images.shape, generator=generator) < 0.5, images.min(), images.max())


def checkerboard(images: Images, generator: torch.Generator) -> Images:
    """Boards of both ends of the range, whose fields have from one pixel to half of the image a side, and any phase."""
    boards = torch.zeros(len(images), 1, *images.shape[-2:])
    for board in boards:
        for dim in (1, 2):
            field = int(torch.randint(1, board.shape[dim] // 2 + 1, (1,), generator=generator))
            phase = int(torch.randint(2 * field, (1,), generator=generator))
            stripes = (torch.arange(board.shape[dim]) + phase) // field % 2
            board += stripes.reshape((-1, 1) if dim == 1 else (1, -1))
    return torch.where(boards % 2 == 0, images.min(), images.max()).expand_as(images)


DRAWN: dict[str, Callable[[Images, torch.Generator], Images]] = {
    "noise": uniform_noise,
    "two-tone": two_tone,
    "checkerboard": checkerboard,
}
KINDS = ("mislabelled", *DRAWN)


def choose_canaries(plan: Plan, count: int, seed: int | None) -> Inserted:
    """Canaries drawn from all training examples, and which of them are included."""
    bits: SecretStream = secret_stream() if seed is None else reproducible_stream(seed, "audit", "coins")
    generator = public_generator(plan.settings.seed, "audit", "canaries")
    rows = torch.randperm(len(plan.workload.train), generator=generator)[:count].sort().values
    owner = torch.zeros(len(plan.workload.train), dtype=torch.int64)
    for client, part in enumerate(plan.parts):
        owner[part] = client
    return Inserted(rows=rows, clients=owner[rows], included=bits.bernoulli(count, 0.5))


def strongest(train: Split) -> str:
    """The kind that was easiest to distinguish in measurements: two-tone images, else wrong labels."""
    return "two-tone" if images_of(train, torch.zeros(1, dtype=torch.int64)) is not None else "mislabelled"


def images_of(train: Split, rows: Positions) -> Images | None:
    """The images in these rows, None where inputs are no images."""
    inputs = train.batch(rows)[0]
    return inputs if isinstance(inputs, Tensor) and inputs.ndim == 4 else None


def with_canaries(plan: Plan, inserted: Inserted, kind: str) -> Plan:
    """The plan whose training split holds the canaries, and those that are out taken from their clients.

    ``mislabelled``: the label moved to another class. The other kinds replace the image and give it any label.
    Raises ValueError for an unknown kind, for images where there are none, and for a client that has nothing left.
    """
    train = plan.workload.train
    generator = public_generator(plan.settings.seed, "audit", "labels")
    labels, count = train.labels.clone(), len(inserted.rows)
    least = 1 if kind == "mislabelled" else 0
    classes = plan.workload.classes("an audit of whole runs")
    shift = torch.randint(least, classes, (count,), generator=generator)
    labels[inserted.rows] = (labels[inserted.rows] + shift) % classes
    train = replace(train, labels=labels)
    if kind != "mislabelled":
        draw = choose("kind of canary", kind, {"mislabelled": uniform_noise, **DRAWN})
        images = images_of(train, inserted.rows)
        if images is None:
            raise ValueError(f"canaries of kind {kind!r} are images: take mislabelled for {plan.workload.name}")
        train = replaced(train, inserted.rows, draw(images, generator).contiguous())
    out = inserted.rows[~inserted.included]
    parts = [part[~torch.isin(part, out)] for part in plan.parts]
    if any(not len(part) for part in parts):
        raise ValueError("a client has no example left: take fewer --canaries or fewer clients")
    terms = [replace(t, num_examples=len(part)) for t, part in zip(plan.terms, parts, strict=True)]
    return replace(plan, workload=replace(plan.workload, train=train), parts=parts, terms=tuple(terms))


def replaced(split: Split, rows: Positions, images: Images) -> Split:
    """The split with these prepared images in place of its own in ``rows``."""
    place = torch.full((len(split),), -1)
    place[rows] = torch.arange(len(rows))

    def prepare(numbered: tuple[Int64[np.ndarray, " b"], object]) -> Inputs:
        numbers, stored = numbered
        inputs = split.prepare(stored)
        assert isinstance(inputs, Tensor)
        at = place[torch.from_numpy(numbers)]
        inputs[at >= 0] = images[at[at >= 0]]
        return inputs

    return replace(split, inputs=Numbered(stored=split.inputs), prepare=prepare)
