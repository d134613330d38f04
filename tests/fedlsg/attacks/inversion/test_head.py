"""Labels and features from the classifier's gradient."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedlsg.attacks.inversion.linear import features, label_of_one, labels_of
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import DoesNotApply, Knowledge
from tests.fedlsg.support.observed import digits, mlp, observe

PRIOR = Prior(shape=(1, 8, 8))


def without_classifier_bias() -> nn.Module:
    model = mlp()
    model.classifier = nn.Linear(64, 10, bias=False).double()
    return model


@pytest.mark.parametrize("name", ["dpsgd", "rgp", "lsg", "rs"])
def test_one_label_is_exact(name: str):
    for start in range(12):
        x, y = digits(1, start)
        for model in (mlp(), without_classifier_bias()):
            assert label_of_one(observe(name, model, x, y)) == int(y)


@pytest.mark.parametrize(("name", "least"), [("dpsgd", 0.99), ("lsg", 0.99), ("rs", 0.9)])
def test_batches_of_eight(name: str, least: float):
    right = 0
    for start in range(0, 80, 8):
        x, y = digits(8, start)
        found = labels_of(observe(name, mlp(), x, y), PRIOR, Knowledge(examples=8))
        right += int(torch.minimum(found.bincount(minlength=10), y.bincount(minlength=10)).sum())
    assert right >= least * 80


def test_features_of_one_example_are_exact():
    x, y = digits(1)
    model = mlp()
    truth = torch.tanh(model.hidden(x.flatten(1)))[0].detach()
    for name in ("dpsgd", "rgp", "lsg"):
        found = features(observe(name, model, x, y), PRIOR, Knowledge(examples=1))
        torch.testing.assert_close(found.inputs[0], truth)
        assert found.labels is not None
        assert found.labels.tolist() == y.tolist()
    bare = without_classifier_bias()
    found = features(observe("rgp", bare, x, y), PRIOR, Knowledge(examples=1))
    cosine = torch.cosine_similarity(found.inputs[0], truth, dim=0)
    assert abs(float(cosine)) == pytest.approx(1.0)


def test_negative_control_the_opposite_sign_rule_is_wrong():
    x, y = digits(1)
    seen = observe("rgp", mlp(), x, y)
    assert int(seen.blocks["classifier.bias", "dense"].argmax()) != int(y)


def hinge(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.multi_margin_loss(outputs, targets, reduction="none")


def upside_down(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_label_rules_try_the_loss_and_refuse_what_does_not_point_to_the_label():
    images, labels = digits(1)
    seen = observe("dpsgd", mlp(), images, labels)
    assert label_of_one(seen) == int(labels[0])
    assert label_of_one(replace(seen, loss_fn=hinge)) == int(labels[0])  # its own output is pulled up as well
    for loss in (upside_down, nn.functional.mse_loss):
        with pytest.raises(DoesNotApply, match="label"):
            label_of_one(replace(seen, loss_fn=loss))
    with pytest.raises(DoesNotApply, match="no classes"):
        label_of_one(replace(seen, class_targets=False))
