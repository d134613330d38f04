"""The frame of a round: which coordinates of the model a step differentiates, and which of them are
kept.

Symbols: L (m, r), R (r, n) carriers of a weight W (m, n). A trainable parameter is *carried*, in a
form (``frame.forms``: two blocks dL and dR, or one block S, say), or it is *dense* (one block, the
parameter itself). Blocks lie one after the other in one flat vector of ``frame.size`` coordinates;
the mask keeps some of them. Everything here is public: a function of the weights, the round and the
public seed (``frame.public``: what carriers and masks are made from).
"""

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedlsg.frame.forms import TANGENT, Form, Part
from fedlsg.lowrank import flatten_kernel
from fedlsg.tensors import to_device

Values = Float[Tensor, " kept"]

Group = Literal["carriers", "norms", "classifier"]
"""Parameters with a learning rate and a weight in the clip of their own. ``classifier``: the whole
head.
``norms``: other biases and norm scales. ``carriers``: every other weight, carried or dense."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Keep:
    """Kept coordinates of one block: whole slices along ``axis``, or flat positions where ``axis``
    is None.

    ``index`` is sorted int64 without repeats, on the CPU: a pass copies those of all blocks to its
    device at once. ``Keep(axis=None, index=None)`` keeps everything.
    """

    axis: int | None = None
    index: Int[Tensor, " kept"] | None = None

    def count(self, shape: tuple[int, ...]) -> int:
        """Number of kept coordinates of a block of ``shape``."""
        total = math.prod(shape)
        if self.index is None:
            return total
        if self.axis is None:
            return len(self.index)
        return len(self.index) * (total // shape[self.axis])

    def positions(self, shape: tuple[int, ...]) -> Int[Tensor, " kept"]:
        """Kept flat positions in a block of ``shape``, ascending."""
        if self.index is None:
            return torch.arange(math.prod(shape))
        if self.axis is None:
            return self.index
        grid = torch.arange(math.prod(shape)).reshape(shape)
        return grid.index_select(self.axis, self.index).flatten()


EVERYTHING = Keep()


@dataclass(frozen=True, kw_only=True, eq=False)
class Coordinates:
    """One trainable parameter: its name and shape, and its carriers (both None where it stays
    dense).

    Only in the form ``core`` may R have another number of rows than L has columns; there and in the
    form ``preconditioned`` neither need be orthonormal.
    """

    name: str
    shape: tuple[int, ...]
    L: Float[Tensor, "m r"] | None = None
    R: Float[Tensor, "s n"] | None = None
    form: Form = TANGENT

    @property
    def carried(self) -> bool:
        """Whether the parameter travels in its carriers."""
        return self.L is not None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The blocks that the parameter makes."""
        return self.form.parts if self.carried else ("dense",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A run of flat coordinates: dL (m, r), dR (r, n), S (r, s) or a dense parameter, with what the
    mask keeps of it.

    ``weight`` multiplies its gradient before the joint clip and divides what comes back: a block of
    weight 2 counts twice in the norm and gets half the noise.
    """

    parameter: str
    part: Part
    shape: tuple[int, ...]
    keep: Keep = EVERYTHING
    weight: float = 1.0

    @cached_property
    def size(self) -> int:
        """Number of coordinates before the mask."""
        return math.prod(self.shape)

    @cached_property
    def kept(self) -> int:
        """Number of coordinates after the mask."""
        return self.keep.count(self.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """All trainable parameters in model order, and the blocks that they make (dL before dR).

    ``sent`` is the frame of what is sent, if that differs from what a step differentiates
    (PowerSGD).
    ``personal``: parameters that are clipped and get noise like all others, and are not sent
        (``carriers.personal``).
    ``part_norm``: bound on an example's embeddings, and on the rests, before the joint clip
        (``privacy.clip_norms``).
    ``one_shape``: every microbatch has one public number of rows, as ``carriers.base`` says.
    """

    coordinates: tuple[Coordinates, ...]
    blocks: tuple[Block, ...]
    sent: "Frame | None" = None
    personal: tuple[str, ...] = ()
    part_norm: float | None = None
    one_shape: bool = False
    _copies: dict[torch.device, Tensor] = field(init=False, repr=False, default_factory=dict)

    @cached_property
    def embedded(self) -> "Frame | None":
        """The dense frame of the gradients that are embedded before the clip
        (``gradients.hooked_pass.blocks``), or None.
        """
        if not any(c.carried and c.form.embeds for c in self.coordinates):
            return None
        dense = tuple(Coordinates(name=c.name, shape=c.shape) for c in self.coordinates)
        return Frame(coordinates=dense, blocks=make_blocks(dense))

    @cached_property
    def layout(self) -> tuple[tuple[object, ...], ...]:
        """The coordinates and blocks without the values of carriers: names, shapes, forms. Equal
        where these are.
        """
        where = [
            (
                c.name,
                c.shape,
                c.form,
                None if c.L is None else c.L.shape,
                None if c.R is None else c.R.shape,
            )
            for c in self.coordinates
        ]
        return (*where, *[(b.parameter, b.part, b.shape) for b in self.blocks])

    @cached_property
    def wire(self) -> "Frame":
        """The frame that a payload is packed in."""
        if self.personal:
            coordinates = tuple(c for c in self.coordinates if c.name not in self.personal)
            return Frame(
                coordinates=coordinates,
                blocks=tuple(b for b in self.blocks if b.parameter not in self.personal),
            )
        return self if self.sent is None else self.sent

    @cached_property
    def size(self) -> int:
        """Coordinates before the mask."""
        return sum(block.size for block in self.blocks)

    @cached_property
    def kept(self) -> int:
        """Coordinates after the mask: the values of one payload."""
        return sum(block.kept for block in self.blocks)

    @property
    def dense_size(self) -> int:
        """Trainable parameters of the model: what a dense method would send."""
        return sum(math.prod(c.shape) for c in self.coordinates)

    @cached_property
    def indices(self) -> Int[Tensor, " kept"]:
        """Kept positions in the flat vector, ascending, on the CPU; not to be written to: frames
        that keep everything share them.
        """
        if self.kept == self.size:
            return _all_positions(self.size)
        indices = torch.empty(self.kept, dtype=torch.int64)
        starts = itertools.accumulate((block.size for block in self.blocks), initial=0)
        parts = indices.split([block.kept for block in self.blocks])
        for block, start, part in zip(self.blocks, starts, parts, strict=False):
            torch.add(block.keep.positions(block.shape), start, out=part)
        return indices

    def indices_on(self, device: torch.device) -> Int[Tensor, " kept"]:
        """``indices`` on a device, copied there once."""
        if device.type == "cpu":
            return self.indices
        if device not in self._copies:
            (self._copies[device],) = to_device([self.indices], device)
        return self._copies[device]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over block shapes, kept positions and the bits of (L, R): equal frames, equal
        digests.
        """
        sha = hashlib.sha256()
        for block in self.blocks:
            weight = "" if block.weight == 1 else f"{block.weight!r}|"
            sha.update(
                f"{block.parameter}|{block.part}|{block.shape}|{weight}{block.kept}|".encode()
            )
            if block.kept < block.size:
                sha.update(block.keep.positions(block.shape).contiguous().numpy().data)
        if carriers := [t.detach().contiguous().flatten().view(torch.uint8) for t in self.carriers]:
            sha.update(torch.cat(carriers).cpu().numpy().data)  # one transfer
        if self.sent is not None:
            sha.update(self.sent.digest)
        if self.personal or self.part_norm is not None:
            sha.update(
                repr(
                    self.personal if self.part_norm is None else (self.personal, self.part_norm)
                ).encode()
            )
        return sha.digest()

    @property
    def carriers(self) -> tuple[Tensor, ...]:
        """L, R of every carried parameter, in order."""
        return tuple(t for c in self.coordinates for t in (c.L, c.R) if t is not None)

    def gradients(self, values: Values, *, averaged: bool = False) -> dict[str, Tensor]:
        """Weight-shaped gradients implied by kept values: zeros where frozen, Eq. 3, L S R or S
        where carried.

        Linear in ``values``. ``averaged`` first averages the two copies of the r x r core
        (``average_core``).
        Raises ValueError if the number of values is not ``kept``.
        """
        return {
            c.name: sent[0]
            if c.L is None or c.R is None
            else c.form.lift(sent, c.L, c.R).reshape(c.shape)
            for c, sent in self.by_parameter(self.unflatten(values), averaged=averaged)
        }

    @torch.no_grad()
    def add_to(
        self,
        parameters: Mapping[str, Tensor],
        values: Values,
        scales: Mapping[str, float],
        *,
        averaged: bool = False,
    ) -> None:
        """Add scale times ``gradients(values)`` to every parameter, without forming it where its
        form knows how.
        """
        whole: dict[float, list[tuple[Tensor, Tensor]]] = {}
        for c, sent in self.by_parameter(self.unflatten(values), averaged=averaged):
            W, scale = parameters[c.name], scales[c.name]
            if c.L is None or c.R is None:
                whole.setdefault(scale, []).append((W, sent[0]))
            else:
                c.form.add(W, sent, c.L, c.R, scale)
        for scale, pairs in whole.items():
            torch._foreach_add_([W for W, _ in pairs], [G for _, G in pairs], alpha=scale)

    def project(self, gradients: Mapping[str, Tensor]) -> Values:
        """Kept values of weight-shaped gradients: what a step would send of them. Linear.

        ``gradients``: one in the shape of every parameter of the frame.
        """
        sent_parts = {
            (c.name, part): sent
            for c in self.coordinates
            for part, sent in zip(c.parts, _sent(c, gradients[c.name]), strict=True)
        }
        flat = torch.cat(
            [sent_parts[b.parameter, b.part].flatten() * b.weight for b in self.blocks]
        )
        return flat if self.kept == self.size else flat[self.indices_on(flat.device)]

    def by_parameter(
        self, tensors: Sequence[Tensor], *, averaged: bool = False
    ) -> Iterator[tuple[Coordinates, Sequence[Tensor]]]:
        """Every parameter with those of its blocks in the order of its parts; ``tensors``: one for
        each block.
        """
        of_block = dict(zip([(b.parameter, b.part) for b in self.blocks], tensors, strict=True))
        for c in self.coordinates:
            sent = [of_block[c.name, part] for part in c.parts]
            yield (
                c,
                c.form.average(sent, c.L, c.R)
                if averaged and c.L is not None and c.R is not None
                else sent,
            )

    def unflatten(self, values: Values) -> list[Tensor]:
        """Kept values as full blocks, zero where frozen, the clip's weights taken off again."""
        pieces = self.split(values)
        return [
            p if b.weight == 1 else p / b.weight for p, b in zip(pieces, self.blocks, strict=True)
        ]

    def split(self, values: Values) -> list[Tensor]:
        """Kept values as full blocks, zero where frozen, as they were clipped."""
        if values.shape != (self.kept,):
            raise ValueError(f"expected {self.kept} kept values, got shape {tuple(values.shape)}")
        full = values
        if self.kept < self.size:
            full = values.new_zeros(self.size).index_copy_(
                0, self.indices_on(values.device), values
            )
        pieces = full.split([block.size for block in self.blocks])
        return [
            piece.reshape(block.shape) for piece, block in zip(pieces, self.blocks, strict=True)
        ]


_POSITIONS: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def _all_positions(size: int) -> Int[Tensor, " size"]:
    """0 to size - 1, twice as long in memory as float32 values: once a process, while in use."""
    positions = _POSITIONS.get(size)
    if positions is None or positions._version:
        positions = _POSITIONS[size] = torch.arange(size)
    return positions


def _sent(c: Coordinates, G: Tensor) -> tuple[Tensor, ...]:
    return (G,) if c.L is None or c.R is None else c.form.project(flatten_kernel(G), c.L, c.R)


def make_blocks(coordinates: Sequence[Coordinates]) -> tuple[Block, ...]:
    """Unmasked blocks of the parameters, in order; rests after all others."""
    blocks = (
        Block(parameter=c.name, part=part, shape=shape_of(c, part))
        for c in coordinates
        for part in c.parts
    )
    return tuple(sorted(blocks, key=lambda block: block.part == "rest"))


def shape_of(c: Coordinates, part: Part) -> tuple[int, ...]:
    """Shape of one block of a parameter."""
    return c.shape if c.L is None or c.R is None else c.form.shape(part, c.shape, c.L, c.R)


def group_of(name: str, shape: tuple[int, ...], classifier: str) -> Group:
    """The group of a trainable parameter; ``classifier`` is the head's path."""
    if name.startswith(classifier + "."):
        return "classifier"
    return "norms" if len(shape) < 2 else "carriers"
