"""The share of torch.func: named and measured on public rows where such a layer is trained, and nowhere else."""

from collections import OrderedDict

import pytest
from torch import nn

from simulations.plan.advice import torch_func_line
from simulations.plan.base import Base
from simulations.plan.plan import make_plan
from simulations.settings.settings import from_mapping


def net(body: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(OrderedDict(body=body, tanh=nn.Tanh(), flat=nn.Flatten(), classifier=nn.Linear(width, 10)))


def without_formula() -> nn.Module:
    return net(nn.PReLU(), 64)


def with_formulas() -> nn.Module:
    return net(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(2, 2, 1), nn.Flatten(1, 2), nn.Conv1d(12, 2, 3)), 8)


@pytest.mark.parametrize("method", ["dpsgd", "sgd"])
@pytest.mark.parametrize("build", [without_formula, with_formulas])
def test_the_line_of_a_run(monkeypatch, build, method):
    monkeypatch.setattr(Base, "build_model", lambda self: build())
    settings = {"workload": "digits", "method": method, "clients": 2, "rounds": 2, "engine": "local"}
    private = {"noise_multiplier": 1.0, "epsilon": None} if method == "dpsgd" else {}
    plan = make_plan(from_mapping({**settings, **private}))
    line = torch_func_line(plan)
    if build is without_formula and method == "dpsgd":
        assert line is not None
        start, _, rest = line.partition(": ")
        assert start == "torch.func computes the gradients of body"
        assert 0 < int(rest.split("%")[0]) < 100
    else:
        assert line is None
