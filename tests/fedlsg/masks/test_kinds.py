"""Masks as objects: one class a kind, and all of them values."""

import copy
import pickle
from dataclasses import replace

import pytest

from fedlsg.masks import Mask
from fedlsg.masks.kinds import Magnitude, Uniform

KINDS = [
    {}, {"kind": "uniform", "sparsity": 0.5, "redraw": "step"}, {"kind": "magnitude", "sparsity": 0.5},
    {"kind": "units", "sparsity": 0.5}, {"kind": "drop", "drop": "random", "sparsity": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("given", KINDS)
def test_a_mask_is_a_value(given):
    mask = Mask(**given)
    for other in (Mask(**given), replace(mask), copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert (type(other), other, hash(other)) == (type(mask), mask, hash(mask))


def test_another_kind_is_another_class():
    mask = Mask(kind="uniform", sparsity=0.5)
    assert type(mask) is Uniform
    assert type(replace(mask, kind="magnitude")) is Magnitude
    assert replace(mask, kind="magnitude") == Mask(kind="magnitude", sparsity=0.5)
    with pytest.raises(ValueError, match="needs a mask"):
        replace(mask, kind="all")
