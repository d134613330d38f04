"""BitFit: biases and classifier are trained, nothing else is formed, and a model without biases is told so."""

import math

import pytest
import torch
from torch import nn

import fedlsg.gradients.formulas.layers
import fedlsg.gradients.hooks
from fedlsg.carriers import Dense, prepare_model
from fedlsg.frame import Frame
from fedlsg.gradients.per_example import per_example_gradients, summed_gradient
from fedlsg.gradients.supported import trainable
from fedlsg.method import make_frame
from tests.fedlsg.support.gradient_oracle import cross_entropy
from tests.strategies.contract import FEATURES, SCHEDULE, SEED, WIDTH, Case, cnn, mlp

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


def test_what_is_frozen_stays_frozen():
    model = mlp()
    model[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match="no bias terms"):
        prepared(model)


def test_a_model_without_biases_is_refused():
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH, bias=False), nn.Tanh())
    model.add_module("classifier", nn.Linear(WIDTH, 3))
    with pytest.raises(ValueError, match=r"no bias terms to train outside of its classifier.*linear-probe"):
        prepared(model)


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


def weights_formed(monkeypatch, method: str) -> list[tuple[int, ...]]:
    """Shapes of the weights whose gradients a step forms, or keeps for ghost clipping, on the convolution net."""
    formed: list[tuple[int, ...]] = []
    for kind in (fedlsg.gradients.formulas.layers.LinearGradients, fedlsg.gradients.formulas.layers.ConvGradients):

        def watched(self, g, x, shipped=kind.weight):
            formed.append(tuple(self.layer.weight.shape))
            return shipped(self, g, x)

        monkeypatch.setattr(kind, "weight", watched)
    model = prepare_model(cnn(), Dense(train="biases" if method == "bitfit" else "all"), seed=0)
    x = torch.randn(4, FEATURES)
    per_example_gradients(model, cross_entropy, x, torch.arange(4), of_method(method, model))
    return formed


def test_no_gradient_of_a_frozen_weight_is_formed(monkeypatch):
    assert weights_formed(monkeypatch, "bitfit") == [(WIDTH, WIDTH)]


def test_the_gradients_that_dpsgd_forms_are_seen(monkeypatch):
    """Negative control of the count above."""
    assert len(weights_formed(monkeypatch, "dpsgd")) == 3


def test_inputs_of_frozen_weights_are_not_remembered(monkeypatch):
    remembered: dict[str, bool] = {}
    shipped = fedlsg.gradients.hooks.remember

    def watched(layer, x, again):
        memory = shipped(layer, x, again)
        remembered[layer.path] = memory.x is not None
        return memory

    monkeypatch.setattr(fedlsg.gradients.hooks, "remember", watched)
    model = prepared(cnn())
    per_example_gradients(model, cross_entropy, torch.randn(4, FEATURES), torch.arange(4), of_method("bitfit", model))
    assert remembered == {"1": False, "2": False, "4": False, "classifier": True}


def test_the_payload_is_small():
    frame = of_method("bitfit", prepared(mlp()))
    assert frame.kept == WIDTH + WIDTH * WIDTH + WIDTH
    assert frame.kept < sum(math.prod(p.shape) for p in mlp().parameters())
