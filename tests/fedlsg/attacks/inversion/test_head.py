"""Labels and features from the classifier's gradient."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedlsg.attacks.inversion.linear import label_of_one
from fedlsg.attacks.observation import DoesNotApply
from tests.fedlsg.support.observed import digits, mlp, observe


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
