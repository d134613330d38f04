"""The kinds of masks, one class each; ``Mask`` explains them."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.frame import EVERYTHING, Block, Coordinates, Keep
from fedlsg.frame.public import Public, call, name_of
from fedlsg.masks.freezing import (
    frozen_count,
    keep_units_of_each,
    smallest,
    uniform,
    unit_importance,
)
from fedlsg.masks.mask import Choose, Mask, split_kept

Blocks = tuple[Block, ...]


class Units(Mask, kind="units"):
    """Rows of dL and columns of dR of important units."""

    units: ClassVar[bool] = True

    def keep(self, blocks: Blocks, rate: float, public: Public) -> Blocks:
        """The blocks, of which dL keeps rows and dR keeps columns; dense ones stay whole."""
        axes = {b: 0 if b.part == "L" else 1 for b in blocks if b.part != "dense"}
        masked = [(b, axis) for b, axis in axes.items() if frozen_count(b.shape[axis], rate)]
        if self.importance == "random":
            generator = partial(public.generator, "units", public.time.epoch)
            index = [
                uniform(b.shape[axis], rate, generator=generator(b.parameter, b.part))
                for b, axis in masked
            ]
        else:
            # computed once for both blocks of a weight
            importance = cache(partial(self._importance, public))
            index = keep_units_of_each(
                [importance(b.parameter)[axis] for b, axis in masked], rate, self.direction
            )
        keeps = {b: Keep(axis=axis, index=i) for (b, axis), i in zip(masked, index, strict=True)}
        return tuple(replace(b, keep=keeps[b]) if b in keeps else b for b in blocks)

    def _importance(self, public: Public, parameter: str) -> tuple[Tensor, Tensor]:
        """Importance of out units and of in units, by the setting."""
        if self.importance == "energy":
            return public.energies[parameter]
        if self.importance == "carriers":
            return carrier_importance(next(c for c in public.coordinates if c.name == parameter))
        return unit_importance(public.weights[parameter])

    @property
    def predicted(self) -> bool:
        """Whether it reads the energy that a probe predicts."""
        return self.importance == "energy"

    @property
    def choice(self) -> str:
        """The units that it keeps, and their importance if it is not that of the weight."""
        if self.importance in ("weights", "random"):
            return "random" if self.importance == "random" else self.direction
        return f"{self.direction} by {self.importance}"


class Energy(Mask, kind="energy"):
    """Entries (i, j) of each S whose predicted energy is largest."""

    predicted = True

    def keep(self, blocks: Blocks, rate: float, public: Public) -> Blocks:
        """The blocks, of which cores keep the entries of largest energy; others stay whole."""
        return tuple(replace(block, keep=_energy_keep(block, rate, public)) for block in blocks)


class Uniform(Mask, kind="uniform"):
    """Random over all coordinates of the step."""

    def keep(self, blocks: Blocks, rate: float, public: Public) -> Blocks:
        """The blocks with one draw for all of their coordinates."""
        number, _ = self.draw(public.time)
        label = ("round", public.time.round) if self.redraw == "step" else (number,)
        size = sum(block.size for block in blocks)
        kept = uniform(size, rate, generator=public.generator("mask", *label))
        return split_kept(blocks, kept)


class Own(Mask, kind="own"):
    """The choice of a user's function."""

    def check(self) -> None:
        """Raise ValueError without a function, and for any other setting."""
        if not callable(self.choose):
            raise ValueError(
                "a mask of kind 'own' needs choose=function, and no other kind takes one"
            )
        settings = [f for f in fields(self) if f.name not in ("kind", "choose")]
        changed = [f.name for f in settings if getattr(self, f.name) != f.default]
        if changed:
            raise ValueError(
                f"a mask of kind 'own' takes no {', '.join(changed)}: its function decides (bind "
                "by functools.partial)"
            )

    def keep(self, blocks: Blocks, rate: float, public: Public) -> Blocks:
        """The blocks with the coordinates that the function chooses."""
        assert self.choose is not None
        return tuple(
            replace(block, keep=keep_chosen(block, self.choose, public)) for block in blocks
        )


class Whole(Mask, kind="all"):
    """Every coordinate of weights that are not pruned."""

    whole: ClassVar[bool] = True
    prunes: ClassVar[bool] = True

    def check(self) -> None:
        """Raise ValueError for a sparsity."""
        if self.sparsity:
            raise ValueError(
                f"sparsity={self.sparsity} needs a mask: this method keeps every coordinate"
            )

    def keep(self, blocks: Blocks, rate: float, public: Public) -> Blocks:
        """The blocks as they are, or without pruned weights."""
        if not public.pruned:
            return blocks
        return tuple(
            replace(block, keep=entries_kept(self, block, rate, public, magnitudes))
            for block in blocks
        )


class Magnitude(Mask, kind="magnitude"):
    """In every weight tensor all entries but those of smallest abs(W_0), or of smallest abs(W_t)
    with ``refresh``.
    """

    entries: ClassVar[bool] = True

    def keep(self, blocks: Blocks, rate: float, public: Public) -> Blocks:
        """The blocks without their smallest entries; biases and norms stay whole.

        With ``convolutions_alone`` all but kernels of convolutions stay whole. Raises ValueError
        then if the model has no convolution.
        """
        if self.convolutions_alone and rate and all(len(block.shape) != 4 for block in blocks):
            raise ValueError(
                "convolutions_alone=true would freeze nothing: the model has no Conv2d that is "
                "trained; leave it out, or choose another model"
            )
        return tuple(
            block
            if self.convolutions_alone and len(block.shape) != 4
            else replace(block, keep=entries_kept(self, block, rate, public, magnitudes))
            for block in blocks
        )

    @property
    def from_start(self) -> bool:
        """Whether it reads W_0 of every weight tensor."""
        return not self.refresh


class Drop(Mask, kind="drop"):
    """In every weight tensor and round without random entries, or those of smallest abs(W_t)."""

    entries: ClassVar[bool] = True
    prunes: ClassVar[bool] = True

    def check(self) -> None:
        """Raise ValueError for drop="none"."""
        if self.drop == "none":
            raise ValueError(f"drop={self.drop!r} does not fit a mask of kind {self.kind!r}")

    def keep(self, blocks: Blocks, rate: float, public: Public) -> Blocks:
        """The blocks without the dropped entries; biases and norms stay whole."""
        choose = draws if self.drop == "random" else magnitudes
        return tuple(
            replace(block, keep=entries_kept(self, block, rate, public, choose)) for block in blocks
        )


def _energy_keep(block: Block, rate: float, public: Public) -> Keep:
    """The entries of a core with the largest energy; all of another block."""
    frozen = min(frozen_count(block.size, rate), block.size - 1)
    if block.part != "core" or not frozen:
        return EVERYTHING
    rows, columns = public.energies[block.parameter]
    energy = (rows.unsqueeze(1) * columns).flatten()
    return Keep(index=(~smallest(energy.cpu(), frozen)).nonzero().squeeze(1))


def carrier_importance(c: Coordinates) -> tuple[Float[Tensor, " m"], Float[Tensor, " n_or_c"]]:
    """Importance of out and in units by the carriers: row sums of abs(L), column sums of abs(R).

    The sum of an in channel of a convolution is over its taps, too. (Ito et al. 2023, sec. 4.4:
    "Sparsification based on low-rank matrices".)
    """
    assert c.L is not None
    assert c.R is not None
    R = c.R.detach().abs().reshape(c.R.shape[0], c.shape[1], -1)
    return c.L.detach().abs().sum(1), R.sum((0, 2))


Chosen = Callable[[Tensor, int, float, str, Public], Tensor]
"""``choose(values, frozen, rate, parameter, public)`` gives ascending places of kept values. It
freezes ``frozen`` of them, the share ``rate``.
"""


def entries_kept(mask: Mask, block: Block, rate: float, public: Public, choose: Chosen) -> Keep:
    """The kept entries of a weight tensor: a choice among those that are not pruned.

    Other blocks stay whole. Raises ValueError if W_0 is needed and absent.
    """
    if block.part != "dense" or len(block.shape) < 2:
        return EVERYTHING
    W, W_0 = public.weights[block.parameter].detach(), public.initial.get(block.parameter)
    if W_0 is None and (public.pruned or mask.from_start):
        raise ValueError(
            f"the initial value of {block.parameter} is needed to say which of its entries are kept"
        )
    source = W_0.to(W) if mask.from_start and W_0 is not None else W
    values = source.abs().flatten()
    trained: Tensor | None = None  # places of the entries that are not pruned; None for all
    if public.pruned and W_0 is not None:
        trained = not_pruned(W, W_0).flatten().nonzero().squeeze(1)
        values = values[trained]
    frozen = max(0, min(frozen_count(len(values), rate), len(values) - 1))
    if frozen == 0:
        if trained is None or len(values) == W.numel():
            return EVERYTHING
        return Keep(index=trained.cpu())
    chosen = choose(values, frozen, rate, block.parameter, public)
    return Keep(index=(chosen if trained is None else trained[chosen]).cpu())


def magnitudes(values: Tensor, frozen: int, rate: float, parameter: str, public: Public) -> Tensor:
    """Places of all but the smallest values: a ``Chosen``."""
    return (~smallest(values, frozen)).nonzero().squeeze(1)


def draws(values: Tensor, frozen: int, rate: float, parameter: str, public: Public) -> Tensor:
    """Random places, new in each round: a ``Chosen``."""
    generator = public.generator("drop", public.time.round, parameter)
    return uniform(len(values), rate, generator=generator).to(values.device)


def not_pruned(W: Float[Tensor, "*shape"], W_0: Float[Tensor, "*shape"]) -> Tensor:
    """True at weights that are not pruned: W is not 0, or W_0 is.

    Weights that start at 0 are never pruned. One that training moves to exactly 0 would count as
    pruned from then on.
    """
    return (W != 0) | (W_0.to(W.device) == 0)


def keep_chosen(block: Block, choose: Choose, public: Public) -> Keep:
    """The coordinates of a block that a user's function keeps.

    Raises ValueError, naming function and block, unless the choice is boolean, has the block's
    shape, and keeps something.
    """
    kept: Any = call(choose, block, public=public)
    where = (
        f"round {public.time.round}, mask by {name_of(choose)} for the {block.part} block of "
        f"{block.parameter}"
    )
    if not isinstance(kept, Tensor) or kept.dtype != torch.bool or tuple(kept.shape) != block.shape:
        returned = (
            f"{kept.dtype} of shape {tuple(kept.shape)}"
            if isinstance(kept, Tensor)
            else type(kept).__name__
        )
        raise ValueError(
            f"{where}: expected a boolean tensor of shape {block.shape}, got {returned}"
        )
    if not bool(kept.any()):
        raise ValueError(f"{where}: expected one coordinate at least that is kept, got none")
    if bool(kept.all()):
        return EVERYTHING
    return Keep(index=kept.flatten().nonzero().squeeze(1).cpu())
