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


def test_the_first_step_of_signed_adam_by_hand():
    size = torch.tensor([0.5, 0.25], dtype=torch.float64)
    seen = []

    def energy(x: Tensor) -> Tensor:
        seen.append(x.tolist())
        return 3 * x[0] - 7 * x[1]

    adam(energy, START, FREE, evaluations=2, step_size=size, signed=True, go_on=always)
    assert seen[1] == pytest.approx([-0.5, 0.25])


def test_the_lowest_point_comes_back_not_the_last():
    size = torch.full((2,), 5.0, dtype=torch.float64)
    values = []

    def energy(x: Tensor) -> Tensor:
        values.append(bowl(x).item())
        return bowl(x)

    _, value = adam(energy, START, FREE, evaluations=3, step_size=size, signed=True, go_on=always)
    assert value == min(values) < values[-1]


def test_both_stop_when_told():
    size = torch.ones(2, dtype=torch.float64)
    for search in (lbfgs, lambda *a, **k: adam(*a, **k, step_size=size, signed=True)):
        done = []
        search(rosenbrock, START, FREE, evaluations=100, go_on=lambda n, lowest, done=done: done.append(n) or n < 3)
        assert 3 <= max(done) < 10


def test_lbfgs_keeps_to_its_budget():
    count = []
    lbfgs(lambda x: count.append(1) or rosenbrock(x), START, FREE, evaluations=10, go_on=always)
    assert len(count) <= 30  # one line search past it at most


def test_an_energy_without_a_gradient_or_a_value_does_no_harm():
    """sqrt at 0 has no finite derivative: an example whose gradient is zero gives that."""
    for search in (lbfgs, lambda *a, **k: adam(*a, **k, step_size=torch.ones(2).double(), signed=True)):
        point, value = search(lambda x: x.square().sum().sqrt(), START, FREE, evaluations=5, go_on=always)
        assert point.isfinite().all()
        assert value == 0
        point, value = search(lambda x: (x - 2).sum() + math.nan, START, FREE, evaluations=5, go_on=always)
        assert point.isfinite().all()
        assert value == math.inf


def test_a_short_time_decays_the_steps_as_few_evaluations_would():
    """Down a slope that never ends, 30 evaluations that fit take small steps at the end; cut off, they do not."""
    size = torch.full((2,), 0.5, dtype=torch.float64)

    def last_step(**options) -> float:
        points: list[Tensor] = []

        def slope(x: Tensor) -> Tensor:
            points.append(x.detach().clone())
            return -x.sum()

        clock = {"spent": lambda: len(points) / 30} if options.pop("clocked") else {}
        adam(slope, START, FREE, evaluations=1000, step_size=size, signed=True, **options, **clock)
        assert 28 <= len(points) <= 30
        return float((points[-1] - points[-2]).abs().max())

    assert last_step(clocked=True, go_on=always) < 0.05
    assert last_step(clocked=False, go_on=lambda done, lowest: done < 30) > 0.45


def test_ample_time_changes_nothing():
    size = torch.full((2,), 0.1, dtype=torch.float64)
    plain, timed = (
        adam(rosenbrock, START, FREE, evaluations=50, step_size=size, signed=True, go_on=always, **clock)[0].tolist()
        for clock in ({}, {"spent": lambda: 0.04})
    )
    assert plain == timed
