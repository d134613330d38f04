"""Server optimizers by the names of torch.optim, Yogi by hand, and what is refused before a run."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedlsg.training.server import ServerOptimizer, make_optimizer

GRADIENTS = [torch.tensor([[1.0, -2.0], [0.5, 3.0]]), torch.tensor([[-1.0, 0.25], [4.0, 0.0]])]


def trained(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> torch.Tensor:
    for g in GRADIENTS:
        weight.grad = g.clone()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("AdamW", "betas=0.8 0.95, eps=1e-3", {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.0}),
        ("Adagrad", "initial_accumulator_value=1", {"initial_accumulator_value": 1.0}),
        ("RMSprop", "momentum=0.9, centered=true", {"momentum": 0.9, "centered": True}),
        ("Muon", "ns_steps=3, nesterov=false", {"ns_steps": 3, "nesterov": False, "weight_decay": 0.0}),
        ("Adafactor", "eps=none 0.01", {"eps": (None, 0.01)}),
        ("Rprop", "", {}),
    ],
)
def test_an_optimizer_by_name_is_torchs_class_with_its_options(name, text, options):
    ours, torchs = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    server = ServerOptimizer(optimizer=name.upper(), learning_rate=0.1, optimizer_options=text or None)
    assert server.optimizer == name
    optimizer, _ = make_optimizer({"weight": ours}, server, updates=2)
    assert type(optimizer) is getattr(torch.optim, name)
    assert trained(optimizer, ours).equal(trained(getattr(torch.optim, name)([torchs], lr=0.1, **options), torchs))


def by_hand_yogi(gradients: list[float], lr: float, tau: float) -> float:
    """Reddi et al. 2021, Algorithm 2, FedYogi, with v_(-1) = tau^2."""
    w, m, v = 0.0, 0.0, tau**2
    for g in gradients:
        m = 0.9 * m + 0.1 * g
        v = v - 0.01 * g * g * math.copysign(1, v - g * g) if v != g * g else v
        w -= lr * m / (math.sqrt(v) + tau)
    return w


@given(gradients=st.lists(st.floats(-5, 5), min_size=1, max_size=8), tau=st.floats(0.01, 1))
def test_yogi_is_the_papers_formula(gradients, tau):
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    server = ServerOptimizer(optimizer="Yogi", learning_rate=0.5, optimizer_options=f"eps={tau!r}")
    optimizer, _ = make_optimizer({"weight": weight}, server, updates=1)
    for g in gradients:
        weight.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
    assert weight.item() == pytest.approx(by_hand_yogi(gradients, 0.5, tau), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"optimizer": "adamww"}, "did you mean 'adamw'"),
        ({"optimizer": "LBFGS"}, "unknown optimizer 'LBFGS'.*AdamW.*Yogi"),
        ({"optimizer": "AdamW", "optimizer_options": "beta=0.9 0.99"}, "no option 'beta'.*did you mean 'betas'.*eps"),
        ({"optimizer": "AdamW", "optimizer_options": "betas=0.9"}, "expected 2 numbers"),
        ({"optimizer": "AdamW", "optimizer_options": "betas=1.5 0.9"}, "Invalid beta"),
        ({"optimizer": "AdamW", "optimizer_options": "eps"}, "expected NAME=VALUE"),
        ({"optimizer": "AdamW", "optimizer_options": "eps=1, eps=2"}, "each once"),
        ({"optimizer": "AdamW", "optimizer_options": "lr=1"}, "no option 'lr'"),
        ({"optimizer": "AdamW", "optimizer_options": "amsgrad=2"}, "expected true or false for amsgrad"),
        ({"optimizer": "AdamW", "optimizer_options": "maximize=true"}, "no option 'maximize'"),
        ({"optimizer": "Doppler"}, "'Doppler' was removed; commit 293cb648.*choose 'adam'"),
        ({"optimizer": "dp-adambc"}, "'dp-adambc' was removed; commit 293cb648"),
        ({"optimizer": "Rprop", "weight_decay": 0.1}, "has no weight decay"),
        ({"optimizer": "RMSprop", "momentum": 0.9}, "optimizer_options='momentum=0.9'"),
        ({"optimizer": "sgd", "optimizer_options": "nesterov=true"}, "Nesterov"),
        ({"optimizer": "Yogi", "optimizer_options": "eps=0"}, "eps"),
    ],
)
def test_what_no_optimizer_takes_is_refused_when_the_setting_is_made(settings, part):
    with pytest.raises(ValueError, match=part):
        ServerOptimizer(**settings)
