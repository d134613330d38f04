"""Mask: which coordinates a step keeps, as public data, with its settings.

Symbols (Ito et al. 2023, Eq. 4-7; Zhu and Blaschko 2023, Alg. 1; Adamczewski et al. 2023, Alg. 3):
    O (m,) importance of the out units of W     p sparsity, the share that is frozen
    I (n,) or (c,) importance of the in units   e epoch, E epochs; t round, T rounds
Masks come from public values only (weights, carriers, round, epoch, public seed), never from
gradients without noise: no function here takes a gradient. A ranking (``Memory``) sees noisy
gradients only.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fedlsg.config import Setting, check_declared
from fedlsg.config.rules import idle_unless
from fedlsg.frame import EVERYTHING, Block, Keep
from fedlsg.frame.public import Public, RoundTime
from fedlsg.masks.freezing import WHERE_FROZEN, Direction, gradual_cooling

Choose = Callable[[Block, Public], Bool[Tensor, "*shape"]]
"""``choose(block, public)``: True at each coordinate of the block that is kept, in
``block.shape``.
"""
MaskKind = Literal["all", "units", "energy", "uniform", "magnitude", "drop", "own"]
Importance = Annotated[
    Literal["weights", "carriers", "random", "energy"],
    Setting(
        "Importance of units: of weights or carriers, a probe's energy, or random.",
        rules=WHERE_FROZEN,
    ),
]
Redraw = Annotated[
    Literal["epoch", "step"],
    Setting(
        "How often a random mask is drawn again: each epoch, k times an epoch, or each step (a "
        "round).",
        others="a number k",
        rules=WHERE_FROZEN,
    ),
]
Ranking = Annotated[
    Literal["random", "gradients"],
    Setting("Freeze random coordinates, or those of the smallest noisy gradients."),
]
Drop = Annotated[
    Literal["none", "random", "magnitude"],
    Setting("Which gradients of a weight tensor are dropped in a round."),
]
Cooling = Annotated[
    bool,
    Setting(
        "Raise the share that is frozen from 0 to sparsity over the epochs.", rules=WHERE_FROZEN
    ),
]
Refresh = Annotated[
    bool,
    Setting(
        "Choose the smallest weights of W_t in every round, not of W_0 once.", rules=WHERE_FROZEN
    ),
]
ConvolutionsAlone = Annotated[
    bool,
    Setting("Freeze weights of convolutions alone, as SNF does.", rules=WHERE_FROZEN),
]
Sparsity = Annotated[
    float,
    Setting(
        "Share p of units or coordinates that is frozen; under cooling (the default of rs) it "
        "grows from 0 to p over the rounds.",
        "share",
        at_least=0,
        below=1,
    ),
]
SparsityFrom = Annotated[
    float,
    Setting(
        "Share of the rounds before which nothing is frozen.",
        "share",
        at_least=0,
        below=1,
        why="a share of the rounds",
        rules=WHERE_FROZEN,
    ),
]
DropRate = Annotated[
    float,
    Setting(
        "Share of the gradients of a weight tensor that is dropped in a round.",
        "share",
        at_least=0,
        below=1,
        rules=(idle_unless("drop!=none"),),
    ),
]


_kinds: dict[str, type["Mask"]] = {}
"""The class of each kind, which enters itself."""


@dataclass(frozen=True, kw_only=True)
class Mask:
    """The coordinates that a step keeps; ``sparsity`` is the share that it freezes.

    The kinds, each a subclass in ``kinds``, which ``Mask(kind=...)`` makes:

    ``all``: keeps every one.
    ``units``: rows of dL and columns of dR of important units, dense blocks whole (Ito et al. 2023,
        Alg. 1). ``importance`` is that of W or of the carriers, or the energy that a probe predicts
        in them. Or the same number of units is random, drawn again every epoch (Ito et al. 2023,
        sec. 4.4; units and not entries, so that only the choice differs).
    ``energy``: entries (i, j) of each S whose predicted energy, that of row i times that of column
        j, is largest.
    ``uniform``: uniformly random over all coordinates, redrawn every epoch, k times an epoch
        (``redraw=k``), or every step. ``cooling`` ramps the rate from 0 to ``sparsity`` over the
        epochs, of k masks an epoch over all masks (Zhu and Blaschko 2023, Alg. 1, and ``--refresh``
        of their code). ``ranking="gradients"`` freezes the coordinates that the noisy gradients of
        the last epoch rank lowest (App. I there).
    ``magnitude``: in every weight tensor the entries of smallest abs(W_0), or of smallest abs(W_t)
        with ``refresh``; biases and norms whole (the baseline "Sparse DPSGD" of Ito et al. 2023).
        With ``convolutions_alone`` all weights but those of convolutions are whole, too
        (SNF-DP-SGD, Luo et al. 2021).
    ``drop``: in every weight tensor and every step, random entries or those of smallest abs(W_t)
        (Adamczewski et al. 2023, Alg. 3).
    ``own``: the choice of a user's function. ``choose(block, public)`` takes a ``Block`` and public
        values (``fedlsg.Public``), and returns a boolean tensor of ``block.shape``: True where a
        coordinate is kept, one at least. The server and every client call it for each block in
        every round, and compare their frames by digest: it must always return the same, so it draws
        from ``public.generator`` only.

    ``sparsity_from``: before that share of the rounds nothing is frozen (Ito et al. 2023, sec.
        4.3); a ramp is cut off there, not shifted. "Step" here is a round: the local steps of a
        round share its mask, so one payload can carry them.

    Properties of a kind:

    ``whole``: whether it keeps every coordinate.
    ``entries``: whether it freezes single weights, so that gradients must be dense.
    ``units``: whether it freezes units.
    ``prunes``: whether it can be combined with pruning.
    """

    whole: ClassVar[bool] = False
    entries: ClassVar[bool] = False
    units: ClassVar[bool] = False
    prunes: ClassVar[bool] = False
    kind: Annotated[MaskKind, Setting(name="mask kind")] = "all"
    sparsity: Sparsity = 0.0
    direction: Direction = "top"
    importance: Importance = "weights"
    cooling: Cooling = False
    redraw: Redraw = "epoch"
    ranking: Ranking = "random"
    refresh: Refresh = False
    convolutions_alone: ConvolutionsAlone = False
    drop: Drop = "none"
    sparsity_from: SparsityFrom = 0.0
    choose: Choose | None = None

    def __new__(cls, **settings: Any) -> "Mask":
        # a copy and a pickle give no kind, and have the class of it
        kind: Any = settings.get("kind", "all" if cls is Mask else None)
        mask = object.__new__(_kinds.get(kind, cls))
        # python does not initialize an object of another class, as in replace(mask, kind=...)
        if not isinstance(mask, cls):
            mask.__init__(**settings)  # type: ignore[misc]
        return mask

    def __init_subclass__(cls, kind: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        _kinds[kind] = cls

    def __post_init__(self) -> None:
        check_declared(self)
        if _kinds[self.kind] is not type(self):
            raise ValueError(
                f"expected a mask of the kind of {type(self).__name__}, got kind={self.kind!r}"
            )
        if self.kind != "own" and self.choose is not None:
            raise ValueError(
                "a mask of kind 'own' needs choose=function, and no other kind takes one"
            )
        if self.kind != "drop" and self.drop != "none":
            raise ValueError(f"drop={self.drop!r} does not fit a mask of kind {self.kind!r}")
        if self.redraw not in ("epoch", "step") and self.masks_an_epoch is None:
            raise ValueError(
                "expected redraw=epoch, redraw=step or a number of masks an epoch, such as "
                f"redraw=5, got redraw={self.redraw!r}"
            )
        if self.ranking == "gradients" and (self.kind != "uniform" or self.redraw != "epoch"):
            raise ValueError(
                "ranking='gradients' ranks once an epoch: it needs a uniform mask and "
                "redraw='epoch'"
            )
        self.check()

    def check(self) -> None:
        """Raise ValueError for settings that this kind does not take."""

    def keep(self, blocks: tuple[Block, ...], rate: float, public: Public) -> tuple[Block, ...]:
        """The blocks with their kept coordinates, when the share ``rate`` is frozen.

        Deterministic in its arguments.
        """
        raise NotImplementedError

    @property
    def predicted(self) -> bool:
        """Whether it reads the energy that a probe predicts."""
        return False

    @property
    def from_start(self) -> bool:
        """Whether it reads W_0 of every weight tensor."""
        return False

    @property
    def choice(self) -> str:
        """A word for the coordinates that it keeps."""
        return self.kind if self.ranking == "random" else f"by {self.ranking}"

    @property
    def masks_an_epoch(self) -> int | None:
        """k, if ``redraw`` is a positive number of masks an epoch; else None."""
        word = str(self.redraw)
        return int(word) if word.isdecimal() and int(word) > 0 else None

    def draw(self, time: "RoundTime") -> tuple[int, int]:
        """(number of the round's random mask, from 0; number of masks of the run): one an epoch, or
        k.

        1e-9 covers the rounding of shares of an epoch.
        """
        if self.masks_an_epoch is None:
            return time.epoch, time.epochs
        masks_a_round = time.per_round * self.masks_an_epoch
        number = math.floor((time.round - 1) * masks_a_round + 1e-9)
        last = math.floor((time.rounds - 1) * masks_a_round + 1e-9)
        return number, last + 1

    def rate(self, time: "RoundTime") -> float:
        """Share of the coordinates that is frozen in a round; after the last one it stays."""
        if time.round - 1 < self.sparsity_from * time.rounds - 1e-9:
            return 0.0
        if not self.cooling:
            return self.sparsity
        number, masks = self.draw(time)
        return gradual_cooling(self.sparsity, min(number, masks - 1), masks)

    @property
    def growth(self) -> str:
        """How the share that is frozen grows over the rounds, in words; "" if it does not."""
        if not self.sparsity or not (self.cooling or self.sparsity_from):
            return ""
        words = f"{self.sparsity:g} of the values are frozen at the end"
        if self.sparsity_from:
            words += f", none before {self.sparsity_from:.0%} of the rounds"
        return words + ", growing from 0 over the rounds" * self.cooling


# Without this the signature of Mask is that of __new__: the fields' names must be in it.
_of_init = inspect.signature(Mask.__init__)
_without_self = list(_of_init.parameters.values())[1:]
Mask.__signature__ = _of_init.replace(parameters=_without_self)  # type: ignore[attr-defined]


def apply_mask(blocks: Sequence[Block], mask: Mask, public: Public) -> tuple[Block, ...]:
    """The blocks with the coordinates that ``mask`` keeps. Deterministic in its arguments.

    Raises ValueError if W_0 is needed and absent.
    """
    return mask.keep(tuple(blocks), mask.rate(public.time), public)


def split_kept(blocks: Sequence[Block], kept: Int[Tensor, " k"]) -> tuple[Block, ...]:
    """The blocks with the ascending positions ``kept`` of their flat vector."""
    edges = torch.tensor([0, *(block.size for block in blocks)]).cumsum(0)
    cuts = torch.searchsorted(kept, edges).tolist()
    masked = []
    for block, start, low, high in zip(blocks, edges.tolist(), cuts, cuts[1:], strict=False):
        whole = high - low == block.size
        masked.append(
            replace(block, keep=EVERYTHING if whole else Keep(index=kept[low:high] - start))
        )
    return tuple(masked)
