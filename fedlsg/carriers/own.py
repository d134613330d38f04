"""Carriers that a user's function makes of public values, checked before anything is sent in them.

Symbols: W (m, n) a carried weight, a kernel flattened; L (m, r), R (s, n) its carriers, in the form ``tangent`` r = s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedlsg.carriers.carrier import Carrier, of_pairs
from fedlsg.frame import Coordinates
from fedlsg.public import MakeCarriers, Public, Sizes, call, name_of

Pair = tuple[Tensor, Tensor]
TOLERATED = 1e3
"""Units in the last place by which an entry of L^T L or R R^T may differ from the identity."""


def carried_sizes(carrier: Carrier, weights: Mapping[str, Tensor], carried: Sequence[str]) -> dict[str, Sizes]:
    """The sizes of the carried weights and of their carriers, in model order."""
    return {name: carrier.sizes(W) for name, W in weights.items() if name in carried}


def own_coordinates(carrier: Carrier, public: Public) -> tuple[Coordinates, ...]:
    """Coordinates of every trainable parameter with carriers of kind ``own``. Raises as ``make_own``."""
    assert carrier.make is not None
    return of_pairs(public.weights, make_own(carrier.make, public, orthonormal=carrier.splits), carrier.form)


def make_own(make: MakeCarriers, public: Public, *, orthonormal: bool) -> dict[str, Pair]:
    """L and R of every carried weight, in its type and on its device, by a user's function.

    Raises ValueError, naming function and weight, unless they have the sizes of ``public.carried`` and are finite, and
    are ``orthonormal`` where that is needed.
    """
    made: Any = call(make, public=public)
    who = f"carriers by {name_of(make)}"
    if not isinstance(made, Mapping) or made.keys() != public.carried.keys():
        found = sorted(made) if isinstance(made, Mapping) else f"a {type(made).__name__}"
        raise ValueError(
            f"{who}: expected a pair (L, R) for each name in public.carried, {sorted(public.carried)}, got {found}"
        )
    pairs = {}
    for name, sizes in public.carried.items():
        L, R = _pair(made[name], sizes, f"{who} for {name}")
        L, R = (X.detach().to(public.weights[name]).contiguous() for X in (L, R))
        if orthonormal:
            check_orthonormal(L, R, f"{who} for {name}")
        pairs[name] = L, R
    return pairs


def _pair(pair: Any, sizes: Sizes, where: str) -> Pair:
    m, r, s, n = sizes
    if not isinstance(pair, tuple | list) or [type(X) for X in pair] != [Tensor, Tensor]:
        raise ValueError(f"{where}: expected two tensors (L, R), got {_kinds(pair)}")
    L, R = pair
    if (tuple(L.shape), tuple(R.shape)) != ((m, r), (s, n)):
        raise ValueError(f"{where}: expected L of shape {(m, r)} and R of shape {(s, n)}, got {_kinds(pair)}")
    if not (L.is_floating_point() and R.is_floating_point() and bool(L.isfinite().all() and R.isfinite().all())):
        raise ValueError(f"{where}: expected finite floating point numbers")
    return L, R


def _kinds(made: Any) -> str:
    parts = made if isinstance(made, tuple | list) else [made]
    return ", ".join(str(tuple(X.shape)) if isinstance(X, Tensor) else type(X).__name__ for X in parts)


def check_orthonormal(L: Tensor, R: Tensor, where: str) -> None:
    """Raise ValueError unless L^T L = R R^T = I to rounding: Eq. 3 is wrong for any other carriers."""
    for name, gram in (("L", L.mT @ L), ("R", R @ R.mT)):
        off = float((gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).abs().max())
        if not off <= TOLERATED * torch.finfo(gram.dtype).eps:
            raise ValueError(
                f"{where}: the form 'tangent' (Eq. 3) needs orthonormal columns of L and rows of R, and {name} is off "
                f"by {off:.2g}; make them so (torch.linalg.qr), or use form='core', which takes any"
            )
