"""The frame of a round: the coordinates in which a step differentiates, and which a mask keeps.

Symbols: L (m, r), R (r, n) carriers of a weight W (m, n). A trainable parameter is *carried* in a
form (``frame.forms``), for example as two blocks dL and dR, or it is *dense*: one block, the
parameter itself. All blocks make one flat vector of ``frame.size`` coordinates; the mask keeps some
of them. Everything here is public: a function of the weights, the round and the public seed
(``frame.public``).
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
"""Groups of parameters, each with its own learning rate and weight in the clip. ``classifier``: the
whole head. ``norms``: other biases and norm scales. ``carriers``: every other weight, carried or
dense.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Keep:
    """Kept coordinates of one block.

    axis: ``index`` counts slices along this axis; None: it counts flat positions.
    index: sorted int64 without repeats, on the CPU (a pass copies those of all blocks to its device
        at once); None keeps everything.
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
    """One trainable parameter, and the carriers in which it is differentiated.

    name, shape: of the parameter.
    L, R: its carriers; both None for a dense parameter. ``Form.sizes`` has their sizes, and
        ``Form.orthonormal`` says whether they are orthonormal.
    form: what is sent of a carried parameter.
    """

    name: str
    shape: tuple[int, ...]
    L: Float[Tensor, "m r"] | None = None
    R: Float[Tensor, "s n"] | None = None
    form: Form = TANGENT

    @property
    def carried(self) -> bool:
        """Whether the parameter has carriers."""
        return self.L is not None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The blocks that the parameter makes."""
        return self.form.parts if self.carried else ("dense",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A block of flat coordinates: dL (m, r), dR (r, n), S (r, s), a rest, or a dense parameter.

    parameter: its name.
    part: which block of the parameter it is.
    shape: of the block.
    keep: the coordinates that the mask keeps.
    weight: multiplies the gradient before the joint clip, and divides the noisy sum: a block of
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
    """All trainable parameters in model order, and their blocks.

    coordinates: the parameters.
    blocks: their blocks, in the order of ``make_blocks``.
    sent: the frame of what is sent, if that differs from what a step differentiates (PowerSGD);
        else None.
    personal: names of parameters that are clipped and get noise like all others, and are not sent
        (``carriers.personal``).
    part_norm: bound on an example's embeddings, and on its rests, before the joint clip
        (``privacy.clip_norms``); None without embeddings.
    one_shape: whether every microbatch has one public number of rows (``carriers.base``).
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
        """The dense frame of gradients that are embedded before the clip; None without embeddings.

        ``gradients.hooked_pass.blocks`` embeds them.
        """
        if not any(c.carried and c.form.embeds for c in self.coordinates):
            return None
        dense = tuple(Coordinates(name=c.name, shape=c.shape) for c in self.coordinates)
        return Frame(coordinates=dense, blocks=make_blocks(dense))

    @cached_property
    def layout(self) -> tuple[tuple[object, ...], ...]:
        """Names, shapes and forms of coordinates and blocks, without the values of carriers."""
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
        """Kept positions in the flat vector, ascending, on the CPU.

        Nobody may write to them: frames that keep everything share them.
        """
        if self.kept == self.size:
            return _all_positions(self.size)
        indices = torch.empty(self.kept, dtype=torch.int64)
        starts = itertools.accumulate((block.size for block in self.blocks), initial=0)
        parts = indices.split([block.kept for block in self.blocks])
        for block, start, part in zip(self.blocks, starts, parts, strict=False):  # starts ends last
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
        """SHA-256 over block shapes, kept positions and the bits of (L, R), to compare frames."""
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
        if self.part_norm is not None:
            sha.update(repr((self.personal, self.part_norm)).encode())
        elif self.personal:
            sha.update(repr(self.personal).encode())
        return sha.digest()

    @property
    def carriers(self) -> tuple[Tensor, ...]:
        """L, R of every carried parameter, in order."""
        return tuple(t for c in self.coordinates for t in (c.L, c.R) if t is not None)

    def gradients(self, values: Values, *, averaged: bool = False) -> dict[str, Tensor]:
        """Weight-shaped gradients by name from kept values, lifted by the form of each parameter.

        Linear in ``values``; frozen coordinates are 0. ``averaged`` first averages the two copies
        of the r x r core (``average_core``).
        Raises ValueError if the number of values is not ``kept``.
        """
        gradients = {}
        for c, sent in self.by_parameter(self.unflatten(values), averaged=averaged):
            if c.L is None or c.R is None:
                gradients[c.name] = sent[0]
            else:
                gradients[c.name] = c.form.lift(sent, c.L, c.R).reshape(c.shape)
        return gradients

    @torch.no_grad()
    def add_to(
        self,
        parameters: Mapping[str, Tensor],
        values: Values,
        scales: Mapping[str, float],
        *,
        averaged: bool = False,
    ) -> None:
        """Add ``scales`` times ``gradients(values)`` to every parameter in place.

        Gradients of carried weights need not be formed (``Form.add``), and dense parameters of one
        scale are added together.
        """
        dense: dict[float, list[tuple[Tensor, Tensor]]] = {}
        for c, sent in self.by_parameter(self.unflatten(values), averaged=averaged):
            W, scale = parameters[c.name], scales[c.name]
            if c.L is None or c.R is None:
                dense.setdefault(scale, []).append((W, sent[0]))
            else:
                c.form.add(W, sent, c.L, c.R, scale)
        for scale, pairs in dense.items():
            torch._foreach_add_([W for W, _ in pairs], [G for _, G in pairs], alpha=scale)

    def project(self, gradients: Mapping[str, Tensor]) -> Values:
        """Kept values that a step would send of weight-shaped gradients. Linear.

        ``gradients``: one in the shape of every parameter of the frame, by name.
        """
        sent: dict[tuple[str, Part], Tensor] = {}
        for c in self.coordinates:
            tensors: tuple[Tensor, ...] = (gradients[c.name],)
            if c.L is not None and c.R is not None:
                tensors = c.form.project(flatten_kernel(gradients[c.name]), c.L, c.R)
            sent.update(zip([(c.name, part) for part in c.parts], tensors, strict=True))
        flat = torch.cat([sent[b.parameter, b.part].flatten() * b.weight for b in self.blocks])
        return flat if self.kept == self.size else flat[self.indices_on(flat.device)]

    def by_parameter(
        self, tensors: Sequence[Tensor], *, averaged: bool = False
    ) -> Iterator[tuple[Coordinates, Sequence[Tensor]]]:
        """Every parameter with the tensors of its blocks, in the order of its parts.

        ``tensors``: one for each block. ``averaged``: as in ``gradients``.
        """
        of_block = dict(zip([(b.parameter, b.part) for b in self.blocks], tensors, strict=True))
        for c in self.coordinates:
            sent: Sequence[Tensor] = [of_block[c.name, part] for part in c.parts]
            if averaged and c.L is not None and c.R is not None:
                sent = c.form.average(sent, c.L, c.R)
            yield c, sent

    def unflatten(self, values: Values) -> list[Tensor]:
        """Kept values as full blocks, zero where frozen, divided by the blocks' weights."""
        pieces = self.split(values)
        return [
            p if b.weight == 1 else p / b.weight for p, b in zip(pieces, self.blocks, strict=True)
        ]

    def split(self, values: Values) -> list[Tensor]:
        """Kept values as full blocks, zero where frozen, still with the blocks' weights."""
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
    """0 to size - 1, one tensor in a process while it is in use: it is twice as long as values."""
    positions = _POSITIONS.get(size)
    if positions is None or positions._version:  # somebody wrote to it
        positions = _POSITIONS[size] = torch.arange(size)
    return positions


def make_blocks(coordinates: Sequence[Coordinates]) -> tuple[Block, ...]:
    """Unmasked blocks in the order of parameters and parts, with the rests after all others."""
    blocks = (
        Block(parameter=c.name, part=part, shape=shape_of(c, part))
        for c in coordinates
        for part in c.parts
    )
    return tuple(sorted(blocks, key=lambda block: block.part == "rest"))  # stable


def shape_of(c: Coordinates, part: Part) -> tuple[int, ...]:
    """Shape of one block of a parameter."""
    return c.shape if c.L is None or c.R is None else c.form.shape(part, c.shape, c.L, c.R)


def group_of(name: str, shape: tuple[int, ...], classifier: str) -> Group:
    """The group of a trainable parameter; ``classifier`` is the head's path."""
    if name.startswith(classifier + "."):
        return "classifier"
    return "norms" if len(shape) < 2 else "carriers"
