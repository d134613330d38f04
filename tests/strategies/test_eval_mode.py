"""A model in eval mode trains without dropout: one warning."""

import warnings

import pytest
from torch import nn

from tests.strategies.own_loop import batch, private_step


class Rated(nn.Module):
    """Dropout as transformers have it: by a rate in an attribute."""

    def __init__(self):
        super().__init__()
        self.dropout = 0.1

    def forward(self, x):
        return nn.functional.dropout(x, self.dropout, training=self.training)


def net(drops):
    return nn.Sequential(nn.Linear(12, 8), drops, nn.Linear(8, 3))


def warnings_of(model, steps=3, **given):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = private_step(model, method="dpsgd", classifier=None, **given)
        for _ in range(steps):
            step.step(batch)
    return [str(w.message) for w in caught if "eval mode" in str(w.message)]


@pytest.mark.parametrize("drops", [nn.Dropout(0.1), Rated(), nn.Sequential(nn.AlphaDropout(0.2))])
def test_a_model_in_eval_mode_with_dropout_is_warned_of_once(drops):
    (words,) = warnings_of(net(drops).eval())
    assert "without its dropout (1" in words
    assert "call model.train()" in words


@pytest.mark.parametrize(
    "model",
    [
        net(nn.Dropout(0.1)),
        net(nn.Dropout(0.0)).eval(),
        net(nn.Tanh()).eval(),
        net(nn.Dropout(0.1).eval()),
    ],
    ids=["train mode", "a rate of 0", "no dropout", "a part in eval mode"],
)
def test_other_models_are_not(model):
    assert not warnings_of(model)


def test_the_mode_after_an_evaluation_is_that_of_before():
    model = net(nn.Dropout(0.1))
    step = private_step(model, method="dpsgd", classifier=None)
    with step.evaluated():
        assert not model.training
    assert model.training
