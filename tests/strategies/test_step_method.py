"""What ``PrivateStep`` trains with where its user does not say."""

import pytest
import torch
from torch import nn

import fedlsg
from fedlsg.gradients import per_example_loss
from strategies import recipe
from strategies.step_method import is_regression, method_of, planned_steps


@pytest.mark.parametrize(
    ("given", "planned"),
    [
        ((None, None, None), (0.5, 40)),
        ((None, None, 5), (0.125, 40)),
        ((0.1, None, None), (0.1, 200)),
        ((None, 40, None), (0.5, 40)),
        ((0.2, 7, None), (0.2, 7)),
    ],
)
def test_steps_and_rate(given, planned):
    assert planned_steps(*given) == planned


def named(method="auto", learning_rate=None, optimizer=None, **settings):
    return method_of(method, settings, learning_rate, optimizer, model=MODEL, steps=100)


MODEL = nn.Linear(99, 50)
"""Of 5,000 numbers."""


def test_the_rule_is_the_default_and_each_part_can_be_given():
    plain = named()
    assert (plain.name, plain.server.optimizer, plain.server.learning_rate) == ("dpsgd", "adam", 0.02)
    assert plain.server.layer_rates == "fan-in"
    assert (named(rank=8).name, named(rank=8).server.layer_rates) == ("lsg", "equal")
    assert named(ema=0.0).server.ema == 0.0
    assert method_of("auto", {}, None, None, model=nn.Linear(1599, 50), steps=100).server.learning_rate == 0.01
    assert named(learning_rate="auto") == plain
    assert method_of("auto", {}, None, None, model=MODEL, steps=100, regression=True).server.learning_rate == 0.01
    assert is_regression(per_example_loss(nn.MSELoss()))
    assert not is_regression(per_example_loss(nn.CrossEntropyLoss()))
    assert named(optimizer="AdamW").server.learning_rate == 0.02
    old = named(learning_rate=0.4, momentum=0.9)
    assert (old.server.optimizer, old.server.ema, old.server.layer_rates) == ("sgd", 0.0, "equal")
    assert named(momentum=0.9).server.optimizer == "sgd"
    made = recipe("dpsgd")
    assert named(made) is made
    own = named(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert own.server.ema == 0.0
    with pytest.raises(ValueError, match="learning_rate: your own optimizer has its own"):
        named(learning_rate=0.1, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def test_a_step_with_nothing_but_epsilon_learns():
    torch.manual_seed(0)
    x, y = torch.randn(600, 6), torch.arange(600) % 3
    x[:, 0] += 3.0 * y
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    step = fedlsg.PrivateStep(model, nn.CrossEntropyLoss(), num_examples=500, epsilon=8.0, delta=1e-5)
    batches = step.batches((x[:500], y[:500]))
    for _ in range(step.steps):
        step.step(batches)
    with step.evaluated(), torch.no_grad():
        assert (model(x[500:]).argmax(1) == y[500:]).float().mean() > 0.75
    assert 7.9 < step.epsilon() <= 8.0
