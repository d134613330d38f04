"""What follows the sum: schedules, and optimizers that are torch's own."""

import math

import pytest
import torch
from torch import nn

from fedlsg.training.server_optimizer import ServerOptimizer, make_optimizer


def server(schedule: str, first: float = 1.0, last: float | None = 0.1, **settings) -> ServerOptimizer:
    return ServerOptimizer(
        schedule=schedule, learning_rate=first, final_learning_rate=None if schedule == "constant" else last, **settings
    )


def rates(a: ServerOptimizer, updates: int) -> list[float]:
    """The learning rates that the optimizer really used."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer, scheduler = make_optimizer({"weight": weight}, a, updates=updates)
    used = []
    for _ in range(updates):
        used.append(optimizer.param_groups[0]["lr"])
        weight.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
    return used


@pytest.mark.parametrize(
    ("schedule", "last", "wanted"),
    [
        ("constant", None, [2, 2, 2, 2]),
        ("linear", 0.4, [2, 1.6, 1.2, 0.8]),
        ("linear", None, [2, 1.5, 1, 0.5]),
        ("cosine", None, [2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5)]),
        ("cosine", 1, [2, 1.5 + math.sqrt(0.125), 1.5, 1.5 - math.sqrt(0.125)]),
        ("exponential", 0.125, [2, 1, 0.5, 0.25]),
        ("step", 0.25, [2, 2, 1, 0.5]),
    ],
)
def test_rates_by_hand(schedule, last, wanted):
    """Four updates from 2."""
    assert rates(server(schedule, 2.0, last), 4) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        *[
            ({"schedule": "linear", "final_learning_rate": v}, "final_learning_rate=")
            for v in (0, -1, math.nan, math.inf)
        ],
        ({"final_learning_rate": 0.1}, "needs a schedule"),
        ({"schedule": "exponential"}, "needs final_learning_rate"),
        ({"schedule": "step"}, "needs final_learning_rate"),
    ],
)
def test_a_last_rate_and_a_schedule_need_each_other(setting, part):
    with pytest.raises(ValueError, match=part):
        ServerOptimizer(**setting)
