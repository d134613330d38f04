"""Carriers that a user's function makes of public values, checked before anything is sent in them.

Symbols: W (m, n) a carried weight, a kernel flattened; L (m, r), R (s, n) its carriers, in the form
``tangent`` r = s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedlsg.carriers.base import Carrier, Rank, of_pairs
from fedlsg.config import Setting, check_declared
from fedlsg.frame import Coordinates
from fedlsg.frame.forms import TANGENT, Sizes, find_form
from fedlsg.frame.public import MakeCarriers, Public, call, name_of

OutRank = Annotated[
    int, Setting("Columns of L of a core S = L^T dW R^T; rank is R's rows.", at_least=1)
]

Pair = tuple[Tensor, Tensor]
TOLERATED = 1e3
"""Units in the last place by which an entry of L^T L or R R^T may differ from the identity."""


@dataclass(frozen=True, kw_only=True)
class OwnCarriers(Carrier):
    """Carriers of a user's function.

    make: ``make(public)`` takes public values (``fedlsg.Public``) and returns (L, R) by name, one
        pair for each weight in ``public.carried``, which has the sizes (m, r, s, n) of L (m, r), R
        (s, n). The server and every client call it in every round, and compare their frames by
        digest: it must always return the same, so it draws from ``public.generator`` only.
    rank: r, and s, of the forms tangent and core.
    form: "tangent" sends dL and dR, which are lifted by Eq. 3. It needs orthonormal carriers, and
        r = s = ``rank``. "core" sends S = L^T dW R^T (r, s), which is lifted to L S R; s is at most
        n, r at most m. Carriers may have any scale: it weights the rows and columns of S before the
        clip, and again when S is lifted. "preconditioned": L (m, m) and R (n, n) are square,
        whatever the rank, and S (m, n) is the server's gradient as it is.
    out_rank: r in the form core; None means ``rank``.
    Raises ValueError for another form, and for ``out_rank`` in another form than core.
    """

    kind: ClassVar[str] = "own"
    make: MakeCarriers
    rank: Rank = 0
    form: Any = TANGENT
    out_rank: OutRank | None = None

    def __post_init__(self) -> None:
        check_declared(self)
        if not callable(self.make):
            raise ValueError(f"own carriers need make=function, got {type(self.make).__name__}")
        forms = ("tangent", "core", "preconditioned")
        object.__setattr__(self, "form", find_form(self.form, self.rank, self.out_rank, forms))

    @property
    def functions(self) -> tuple[Callable[..., object], ...]:
        """The user's ``make``."""
        return (self.make,)

    def sizes(self, W: Tensor) -> Sizes:
        """The sizes of the carriers of a weight, with ``out_rank`` columns of L."""
        sizes: Sizes = self.form.sizes(W, self.rank, self.out_rank)
        return sizes

    def coordinates(self, public: Public) -> tuple[Coordinates, ...]:
        """Coordinates in the carriers that ``make`` returns. Raises as ``make_own``."""
        return of_pairs(
            public.weights,
            make_own(self.make, public, orthonormal=self.form.orthonormal),
            self.form,
        )

    def needs_one_shape(self, where: Sequence[Coordinates]) -> bool:
        """True if carriers may have scales of any size: in all forms but tangent."""
        return not self.splits

    def in_sizes(self) -> Carrier:
        """Carriers that are unit vectors, which cost nothing to make."""
        return replace(self, make=unit_vectors)


def unit_vectors(public: Public) -> Mapping[str, Pair]:
    """The first unit vectors as carriers of every weight in ``public.carried``."""
    return {
        name: (torch.eye(m, r), torch.eye(s, n)) for name, (m, r, s, n) in public.carried.items()
    }


def make_own(make: MakeCarriers, public: Public, *, orthonormal: bool) -> dict[str, Pair]:
    """L and R of every carried weight, in its type and on its device, by a user's function.

    Raises ValueError, naming function and weight, unless they have the sizes of ``public.carried``
    and are finite, and are ``orthonormal`` where that is needed.
    """
    made: Any = call(make, public=public)
    who = f"carriers by {name_of(make)}"
    if not isinstance(made, Mapping) or made.keys() != public.carried.keys():
        returned = sorted(made) if isinstance(made, Mapping) else f"a {type(made).__name__}"
        raise ValueError(
            f"{who}: expected a pair (L, R) for each name in public.carried, "
            f"{sorted(public.carried)}, got {returned}"
        )
    pairs = {}
    for name, sizes in public.carried.items():
        L, R = _check_pair(made[name], sizes, f"{who} for {name}")
        L, R = (X.detach().to(public.weights[name]).contiguous() for X in (L, R))
        if orthonormal:
            check_orthonormal(L, R, f"{who} for {name}")
        pairs[name] = L, R
    return pairs


def _check_pair(pair: Any, sizes: Sizes, where: str) -> Pair:
    """L and R of one weight. Raises ValueError unless they are finite, in these sizes."""
    m, r, s, n = sizes
    if not isinstance(pair, tuple | list) or [type(X) for X in pair] != [Tensor, Tensor]:
        raise ValueError(f"{where}: expected two tensors (L, R), got {_kinds(pair)}")
    L, R = pair
    if (tuple(L.shape), tuple(R.shape)) != ((m, r), (s, n)):
        raise ValueError(
            f"{where}: expected L of shape {(m, r)} and R of shape {(s, n)}, got {_kinds(pair)}"
        )
    if not (
        L.is_floating_point()
        and R.is_floating_point()
        and bool(L.isfinite().all() and R.isfinite().all())
    ):
        raise ValueError(f"{where}: expected finite floating point numbers")
    return L, R


def _kinds(made: Any) -> str:
    """The shapes of tensors and the types of all else, for a message."""
    parts = made if isinstance(made, tuple | list) else [made]
    return ", ".join(
        str(tuple(X.shape)) if isinstance(X, Tensor) else type(X).__name__ for X in parts
    )


def check_orthonormal(L: Tensor, R: Tensor, where: str) -> None:
    """Raise ValueError unless L^T L = R R^T = I to rounding, which Eq. 3 needs."""
    for name, gram in (("L", L.mT @ L), ("R", R @ R.mT)):
        off = float((gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).abs().max())
        if not off <= TOLERATED * torch.finfo(gram.dtype).eps:
            raise ValueError(
                f"{where}: the form 'tangent' (Eq. 3) needs orthonormal columns of L and rows of "
                f"R, and {name} is off by {off:.2g}; make them so (torch.linalg.qr), or use "
                "form='core', which takes any"
            )
