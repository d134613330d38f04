"""What follows the sum: optimizers of torch.optim by name, Yogi by hand, schedules."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedlsg.training.auto import auto_schedule, auto_server, fan_in_factor, size_factor
from fedlsg.training.server_round import ServerOptimizer, make_optimizer


def server(
    schedule: str, first: float = 1.0, last: float | None = 0.1, **settings
) -> ServerOptimizer:
    return ServerOptimizer(
        schedule=schedule,
        learning_rate=first,
        final_learning_rate=None if schedule == "constant" else last,
        **settings,
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


GRADIENTS = [torch.tensor([[1.0, -2.0], [0.5, 3.0]]), torch.tensor([[-1.0, 0.25], [4.0, 0.0]])]


def trained(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> torch.Tensor:
    for g in GRADIENTS:
        weight.grad = g.clone()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        (
            "AdamW",
            "betas=0.8 0.95, eps=1e-3",
            {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.0},
        ),
        ("Adagrad", "initial_accumulator_value=1", {"initial_accumulator_value": 1.0}),
        ("RMSprop", "momentum=0.9, centered=true", {"momentum": 0.9, "centered": True}),
        (
            "Muon",
            "ns_steps=3, nesterov=false",
            {"ns_steps": 3, "nesterov": False, "weight_decay": 0.0},
        ),
        ("Adafactor", "eps=none 0.01", {"eps": (None, 0.01)}),
        ("Rprop", "", {}),
    ],
)
def test_an_optimizer_by_name_is_torchs_class_with_its_options(name, text, options):
    ours, torchs = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    server = ServerOptimizer(
        optimizer=name.upper(), learning_rate=0.1, optimizer_options=text or None
    )
    assert server.optimizer == name
    optimizer, _ = make_optimizer({"weight": ours}, server, updates=2)
    assert type(optimizer) is getattr(torch.optim, name)
    assert trained(optimizer, ours).equal(
        trained(getattr(torch.optim, name)([torchs], lr=0.1, **options), torchs)
    )


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
        (
            {"optimizer": "AdamW", "optimizer_options": "beta=0.9 0.99"},
            "no option 'beta'.*did you mean 'betas'.*eps",
        ),
        ({"optimizer": "AdamW", "optimizer_options": "betas=0.9"}, "expected 2 numbers"),
        ({"optimizer": "AdamW", "optimizer_options": "betas=1.5 0.9"}, "Invalid beta"),
        ({"optimizer": "AdamW", "optimizer_options": "eps"}, "expected NAME=VALUE"),
        ({"optimizer": "AdamW", "optimizer_options": "eps=1, eps=2"}, "each once"),
        ({"optimizer": "AdamW", "optimizer_options": "lr=1"}, "no option 'lr'"),
        (
            {"optimizer": "AdamW", "optimizer_options": "amsgrad=2"},
            "expected true or false for amsgrad",
        ),
        ({"optimizer": "AdamW", "optimizer_options": "maximize=true"}, "no option 'maximize'"),
        ({"optimizer": "Doppler"}, "unknown optimizer 'Doppler'.*expected one of"),
        ({"optimizer": "Rprop", "weight_decay": 0.1}, "has no weight decay"),
        ({"optimizer": "RMSprop", "momentum": 0.9}, "optimizer_options='momentum=0.9'"),
        ({"optimizer": "sgd", "optimizer_options": "nesterov=true"}, "Nesterov"),
        ({"optimizer": "Yogi", "optimizer_options": "eps=0"}, "eps"),
    ],
)
def test_what_no_optimizer_takes_is_refused_when_the_setting_is_made(settings, part):
    with pytest.raises(ValueError, match=part):
        ServerOptimizer(**settings)


@pytest.mark.parametrize(
    ("epochs", "local_steps", "rounds", "rate"),
    [
        (4, 1, 40, 0.1),
        (20, 1, 40, 0.5),
        (40, 1, 40, 1.0),
        (60, 1, 60, 1.0),
        (20, 5, 40, 0.1),
        (300, 5, 60, 1.0),
    ],
)
def test_rounds_and_rate_spend_the_epochs(epochs, local_steps, rounds, rate):
    assert auto_schedule(epochs, local_steps=local_steps) == (rounds, rate)
    assert rounds * rate * local_steps == epochs


def test_rates_and_average_follow_from_the_number_of_updates():
    found = auto_server(100, dense=True)
    assert found["learning_rate"] == 0.02  # 0.2 / sqrt(100)
    assert found["ema"] == 0.95  # 1 - 5 / 100
    assert ServerOptimizer(**found).options == {"betas": (0.5, 0.99)}
    assert auto_server(3, dense=False)["ema"] == 0.0
    assert [auto_server(t, dense=False)["learning_rate"] for t in (1, 4, 10)] == [
        0.02,
        0.04,
        0.06325,
    ]
    assert auto_server(100, dense=True, regression=True)["learning_rate"] == 0.01
    assert auto_server(100, dense=True, size=2.0)["learning_rate"] == 0.04
    assert auto_server(100, dense=True, size=2.0, regression=True)["learning_rate"] == 0.01
    assert auto_server(100, dense=True, size=0.5, regression=True)["learning_rate"] == 0.005
    assert auto_server(100, dense=False, size=2.0)["learning_rate"] == 0.02
    head = auto_server(100, dense=True, size=2.0, row_length=40.0)
    assert (head["learning_rate"], head["layer_rates"]) == (0.005, "equal")
    loaded = auto_server(100, dense=True, size=2.0, pretrained=True)
    assert (loaded["learning_rate"], loaded["classifier_learning_rate"]) == (0.002, 0.02)
    assert "classifier_learning_rate" not in auto_server(
        100, dense=True, pretrained=True, new_head=False
    )


def test_the_size_of_a_model_counts_by_its_root_and_less_in_dense_nets():
    assert size_factor([torch.zeros(50, 100)]) == 1.0
    assert size_factor([torch.zeros(800, 100)]) == 0.5
    assert size_factor([torch.zeros(800, 100 - 1), torch.zeros(8, 10, 10)]) == 0.25
    assert size_factor([torch.zeros(25, 100)]) == pytest.approx(2**0.5)
    assert size_factor([torch.zeros(2)]) == 2.0


def test_a_layer_has_a_rate_by_its_fan_in_and_its_bias_too():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 5), nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 2)
    )
    server = ServerOptimizer(optimizer="adam", learning_rate=0.1, layer_rates="fan-in")
    optimizer, _ = make_optimizer(dict(model.named_parameters()), server, updates=1)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for layer, fan_in in ((model[0], 75), (model[2], 64), (model[4], 8)):
        assert (
            rates[id(layer.weight)]
            == rates[id(layer.bias)]
            == pytest.approx(0.1 * (64 / fan_in) ** 0.25)
        )
    assert rates[id(model[3].weight)] == 0.1  # a norm has no fan-in
    assert fan_in_factor(64) == 1.0
