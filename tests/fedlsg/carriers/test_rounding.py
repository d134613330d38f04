"""Frames whose microbatches have one number of rows, since rounding could fill the clip; what happens else is in
tests/simulations/test_sensitivity.py.
"""

import pytest
import torch

from fedlsg.carriers import OwnCarriers
from fedlsg.carriers.base import EVEN
from fedlsg.carriers.probe import Probe
from fedlsg.forms import CORE
from fedlsg.frame import Coordinates


def core(longest_L: float, longest_R: float) -> tuple[Coordinates, ...]:
    """A dense bias, and a weight (6, 5) with a core of 2 x 3 whose longest scales are given."""
    L, R = torch.eye(6)[:, :2].clone(), torch.eye(5)[:3].clone()
    L[:, 1] *= longest_L
    R[2] *= longest_R
    return Coordinates(name="b", shape=(6,)), Coordinates(name="W", shape=(6, 5), L=L, R=R, form=CORE)


@pytest.mark.parametrize(
    ("longest", "wanted"),
    [((1, 1), False), ((EVEN, EVEN), False), ((EVEN, EVEN + 0.1), True), ((1, EVEN**2 + 1), True), ((785, 962), True)],
)
def test_a_core_is_judged_by_its_own_scales(longest, wanted):
    """785 and 962: probe with power 1 and damping 0.26 and one probe, where 1 / damping ^ power is below EVEN."""
    carrier = Probe(form="core", power=1.0, damping=0.26, rank=3)
    assert carrier.needs_one_shape(core(*longest)) is wanted


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"form": "preconditioned", "power": 0.5, "damping": 0.01}, True),
        ({"form": "preconditioned", "power": 0.25, "damping": 0.01}, False),
        ({"form": "embedding"}, True),
        ({"form": "embedding-only"}, False),
        ({"form": "tangent", "power": 1.0, "damping": 1e-6}, False),
        ({"form": "core", "make": lambda public: {}}, True),
        ({"form": "tangent", "make": lambda public: {}}, False),
    ],
)
def test_the_other_forms(changes, wanted):
    kind = OwnCarriers if "make" in changes else Probe
    assert kind(rank=3, **changes).needs_one_shape(core(1, 1)) is wanted
