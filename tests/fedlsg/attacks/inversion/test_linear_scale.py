"""Without a bias the rest of the model still tells the scale."""

import pytest

from fedlsg.attacks.guess import DoesNotApply, Guess
from fedlsg.attacks.inversion.head import label_of_one
from fedlsg.attacks.inversion.linear_input import input_of_linear
from fedlsg.attacks.inversion.linear_scale import settle_scale
from fedlsg.attacks.inversion.prior import Prior
from tests.fedlsg.support.observed import digits, method, mlp, observe

PRIOR = Prior(shape=(1, 8, 8))


@pytest.mark.parametrize("name", ["dpsgd", "rgp", "rs"])
def test_a_dark_image_of_unknown_scale_is_found(name: str):
    x, y = digits(1)
    x = 0.3 * x
    seen = observe(name, mlp(bias=False), x, y)
    rough = input_of_linear(seen, PRIOR)
    assert float((rough.inputs - x).norm() / x.norm()) > 1
    found = settle_scale(seen, rough, label_of_one(seen))
    assert float((found.inputs - x).norm() / x.norm()) < 1e-6
    assert found.objective < 1e-6


def test_the_sign_is_found_too():
    x, y = digits(1)
    seen = observe("rgp", mlp(bias=False), x, y)
    rough = input_of_linear(seen, PRIOR)
    found = settle_scale(seen, Guess(inputs=-rough.inputs), int(y))
    assert float((found.inputs - x).norm() / x.norm()) < 1e-6


def test_negative_control_a_wrong_label_explains_nothing():
    x, y = digits(1)
    seen = observe("rgp", mlp(bias=False), x, y)
    found = settle_scale(seen, input_of_linear(seen, PRIOR), (int(y) + 1) % 10)
    assert found.objective > 0.1


def test_unknown_columns_are_refused():
    x, y = digits(1)
    seen = observe(method("lsg", sparsity=0.5), mlp(bias=False), x, y)
    with pytest.raises(DoesNotApply, match="all known"):
        settle_scale(seen, input_of_linear(seen, PRIOR), int(y))
