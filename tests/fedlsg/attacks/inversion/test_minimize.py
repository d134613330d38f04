import math

import pytest
import torch
from torch import Tensor

from fedlsg.attacks.search import Box, adam, lbfgs

START = torch.zeros(2, dtype=torch.float64)
FREE = Box(low=torch.full((2,), -math.inf), high=torch.full((2,), math.inf))


def rosenbrock(x: Tensor) -> Tensor:
    return (1 - x[0]).square() + 100 * (x[1] - x[0].square()).square()


def bowl(x: Tensor) -> Tensor:
    return (x - 2).square().sum()


def always(done: int, lowest: float) -> bool:
    return True


def test_lbfgs_finds_the_end_of_the_valley():
    point, value = lbfgs(rosenbrock, START, FREE, evaluations=200, go_on=always)
    assert point.tolist() == pytest.approx([1, 1], abs=1e-6)
    assert value < 1e-12


def test_the_box_holds_in_both():
    box = Box(low=torch.tensor([-1.0, -1.0]), high=torch.tensor([1.0, 5.0]))
    found = [lbfgs(bowl, START, box, evaluations=50, go_on=always)]
    for signed in (True, False):
        size = torch.full((2,), 0.2, dtype=torch.float64)
        found.append(adam(bowl, START, box, evaluations=200, step_size=size, signed=signed, go_on=always))
    for point, value in found:
        assert point.tolist() == pytest.approx([1, 2], abs=1e-2)
        assert value == pytest.approx(1, abs=1e-3)


def test_the_lowest_point_comes_back_not_the_last():
    size = torch.full((2,), 5.0, dtype=torch.float64)
    values = []

    def energy(x: Tensor) -> Tensor:
        values.append(bowl(x).item())
        return bowl(x)

    _, value = adam(energy, START, FREE, evaluations=3, step_size=size, signed=True, go_on=always)
    assert value == min(values) < values[-1]
