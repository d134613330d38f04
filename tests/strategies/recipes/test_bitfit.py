"""BitFit: biases and classifier are trained, nothing else is formed, and a model without biases is told so."""

import pytest
import torch
from torch import nn

from fedlsg.carriers import Dense, prepare_model
from fedlsg.frame import Frame
from fedlsg.gradients.per_example import per_example_gradients, summed_gradient
from fedlsg.gradients.supported import trainable
from fedlsg.method import make_frame
from tests.fedlsg.support.gradient_oracle import cross_entropy
from tests.strategies.contract import FEATURES, SCHEDULE, SEED, Case, cnn, mlp

CLASSIFIER = ["classifier.weight", "classifier.bias"]


def of_method(name: str, model: nn.Module) -> Frame:
    """The first round's frame of a recipe without masks, on a model that is ready for it."""
    method = Case(name).method
    weights = {name: p.detach() for name, p in trainable(model).items()}
    return make_frame(
        method, weights, {}, carried=(), round=1, updates=0, schedule=SCHEDULE, seed=SEED, classifier="classifier"
    )


def prepared(model: nn.Module) -> nn.Module:
    return prepare_model(model, Dense(train="biases"), classifier="classifier", seed=0)


def test_biases_and_classifier_are_trained():
    assert list(trainable(prepared(mlp()))) == ["0.bias", *CLASSIFIER]
    assert list(trainable(prepared(cnn()))) == ["1.bias", "2.bias", "4.bias", *CLASSIFIER]


@pytest.mark.parametrize("make", [mlp, cnn])
def test_per_example_gradients_are_autograds(make):
    torch.manual_seed(0)
    model = prepared(make().double())
    x, y = torch.randn(5, FEATURES, dtype=torch.float64), torch.arange(5)
    frame = of_method("bitfit", model)
    got = torch.cat(per_example_gradients(model, cross_entropy, x, y, frame), dim=1)
    for i in range(5):
        loss = cross_entropy(model(x[i : i + 1]), y[i : i + 1]).sum()
        wanted = torch.autograd.grad(loss, list(trainable(model).values()))
        torch.testing.assert_close(got[i], torch.cat([g.flatten() for g in wanted]))
    torch.testing.assert_close(summed_gradient(model, cross_entropy, x, y, frame), got.sum(0))
