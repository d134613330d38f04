"""The rule for runs without tuning: its numbers worked by hand, and layers with rates of their own."""

import pytest
import torch
from torch import nn

from fedlsg.training import ServerOptimizer, make_optimizer
from fedlsg.training.auto import auto_schedule, auto_server, fan_in_factor, size_factor


@pytest.mark.parametrize(
    ("epochs", "local_steps", "rounds", "rate"),
    [(4, 1, 40, 0.1), (20, 1, 40, 0.5), (40, 1, 40, 1.0), (60, 1, 60, 1.0), (20, 5, 40, 0.1), (300, 5, 60, 1.0)],
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
    assert auto_server(100, dense=True, regression=True)["learning_rate"] == 0.01
    assert auto_server(100, dense=True, size=2.0)["learning_rate"] == 0.04
    assert auto_server(100, dense=True, size=2.0, regression=True)["learning_rate"] == 0.01
    assert auto_server(100, dense=True, size=0.5, regression=True)["learning_rate"] == 0.005
    assert auto_server(100, dense=False, size=2.0)["learning_rate"] == 0.02
    loaded = auto_server(100, dense=True, size=2.0, pretrained=True)
    assert (loaded["learning_rate"], loaded["classifier_learning_rate"]) == (0.002, 0.02)
    assert "classifier_learning_rate" not in auto_server(100, dense=True, pretrained=True, new_head=False)


def test_the_size_of_a_model_counts_by_its_root_and_less_in_dense_nets():
    assert size_factor([torch.zeros(50, 100)]) == 1.0
    assert size_factor([torch.zeros(800, 100)]) == 0.5
    assert size_factor([torch.zeros(800, 100 - 1), torch.zeros(8, 10, 10)]) == 0.25
    assert size_factor([torch.zeros(25, 100)]) == pytest.approx(2**0.5)
    assert size_factor([torch.zeros(2)]) == 2.0


def test_a_layer_has_a_rate_by_its_fan_in_and_its_bias_too():
    model = nn.Sequential(nn.Conv2d(3, 4, 5), nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    server = ServerOptimizer(optimizer="adam", learning_rate=0.1, layer_rates="fan-in")
    optimizer, _ = make_optimizer(dict(model.named_parameters()), server, updates=1)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for layer, fan_in in ((model[0], 75), (model[2], 64), (model[4], 8)):
        assert rates[id(layer.weight)] == rates[id(layer.bias)] == pytest.approx(0.1 * (64 / fan_in) ** 0.25)
    assert rates[id(model[3].weight)] == 0.1  # a norm has no fan-in
    assert fan_in_factor(64) == 1.0
