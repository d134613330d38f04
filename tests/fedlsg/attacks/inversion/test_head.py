"""Labels and features from the classifier's gradient."""

import pytest
from torch import nn

from fedlsg.attacks.inversion.linear import label_of_one
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
