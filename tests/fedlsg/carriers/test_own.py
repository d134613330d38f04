"""Carriers by a user's function: what it must return, and where they may be used."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlsg.carriers import Carrier, OwnCarriers
from fedlsg.frame import forms, make_blocks
from fedlsg.frame.public import Public, Sizes
from fedlsg.masks.mask import Mask
from fedlsg.method import Method
from fedlsg.training import ServerOptimizer
from tests.fedlsg.support.own_methods import CORE, TANGENT, orthonormal

SIZES = {"w": Sizes(6, 2, 3, 8)}


def public(dtype: torch.dtype = torch.float32) -> Public:
    return Public(
        weights={"w": torch.ones(6, 8, dtype=dtype), "b": torch.ones(6, dtype=dtype)}, carried=SIZES
    )


def made(pair: Any, **changes: Any) -> Callable[[Public], Any]:
    """A function that returns one pair for w, and what else is given."""

    def own_function(public: Public) -> Any:
        return {"w": pair, **changes}

    return own_function


def core(make: Callable[[Public], Any]) -> Carrier:
    return OwnCarriers(make=make, form="core", rank=3, out_rank=2)


L, R = torch.randn(6, 2), torch.randn(3, 8)


def test_a_pair_becomes_the_coordinates_in_the_weights_own_type():
    where = core(made((L.double(), R.mT.contiguous().mT))).coordinates(public())
    assert [(c.name, c.carried, c.form) for c in where] == [
        ("w", True, forms.CORE),
        ("b", False, forms.CORE),
    ]
    assert where[0].L.dtype == torch.float32
    assert torch.equal(where[0].L, L)
    assert torch.equal(where[0].R, R)
    assert where[0].R.is_contiguous()
    assert [(b.part, b.shape) for b in make_blocks(where)] == [("core", (2, 3)), ("dense", (6,))]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            (L, R.mT),
            r"expected L of shape \(6, 2\) and R of shape \(3, 8\), got \(6, 2\), \(8, 3\)",
        ),
        (
            (L[:, :1], R),
            r"expected L of shape \(6, 2\) and R of shape \(3, 8\), got \(6, 1\), \(3, 8\)",
        ),
        ((L,), r"expected two tensors \(L, R\), got \(6, 2\)"),
        ((L, R, R), r"expected two tensors \(L, R\)"),
        (L, r"expected two tensors \(L, R\), got \(6, 2\)"),
        ((L, R.numpy()), r"expected two tensors \(L, R\), got \(6, 2\), ndarray"),
        ((L * float("nan"), R), "expected finite floating point numbers"),
        ((L, torch.full((3, 8), float("inf"))), "expected finite floating point numbers"),
        ((L.long(), R), "expected finite floating point numbers"),
    ],
)
def test_a_wrong_pair_is_refused_by_the_names_of_function_and_weight(pair, message):
    with pytest.raises(
        ValueError, match=r"carriers by .*test_own.made.<locals>.own_function for w: " + message
    ):
        core(made(pair)).coordinates(public())


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda public: {}, r"\[\]"),
        (made((L, R), b=(L, R)), r"\['b', 'w'\]"),
        (lambda public: None, "a NoneType"),
        (lambda public: (L, R), "a tuple"),
    ],
)
def test_exactly_the_carried_weights_have_a_pair(make, found):
    with pytest.raises(
        ValueError, match=r"a pair \(L, R\) for each name in public.carried, \['w'\], got " + found
    ):
        core(make).coordinates(public())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", ["L", "R", "neither"])
def test_eq_3_refuses_carriers_that_are_not_orthonormal(side, dtype):
    """A thousandth off is refused, rounding is not."""
    square = Public(
        weights={"w": torch.ones(6, 8, dtype=dtype)}, carried={"w": Sizes(6, 2, 2, 8)}, seed=3
    )

    def make(public: Public) -> dict[str, tuple[Tensor, Tensor]]:
        L, R = orthonormal(public)["w"]
        return {"w": (L * (1.001 if side == "L" else 1), R * (1.001 if side == "R" else 1))}

    if side == "neither":
        assert OwnCarriers(make=make, rank=2).coordinates(square)[0].carried
        return
    with pytest.raises(
        ValueError,
        match=rf"'tangent' \(Eq. 3\) needs orthonormal .* {side} is off by 0.002; .*'core'",
    ):
        OwnCarriers(make=make, rank=2).coordinates(square)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"mask": Mask(kind="units", sparsity=0.3)},
            "rows of dL and columns of dR: it needs low-rank carriers",
        ),
        ({"mask": Mask(kind="magnitude", sparsity=0.3)}, "need dense gradients"),
        ({"server": ServerOptimizer(estimator="averaged")}, "averages the two copies"),
    ],
)
def test_a_core_refuses_what_needs_dl_and_dr(choices, message):
    with pytest.raises(ValueError, match=message):
        Method(name="own", carrier=CORE, **choices)
    if "magnitude" not in str(choices):
        Method(name="own", carrier=TANGENT, **choices)
