"""Counts of labels: the rule of signs by hand, whole batches of skewed clients, and what judges."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedlsg.attacks.inversion.label_fit import Equations, by_signs, nearest, round_to
from fedlsg.attacks.inversion.linear import label_counts
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import Knowledge
from tests.fedlsg.support.observed import digits, method, mlp, observe

GREY = Prior(shape=(1, 8, 8))


def without_bias() -> nn.Module:
    model = mlp(nn.ReLU)
    model.classifier = nn.Linear(64, 10, bias=False).double()
    return model


def batches(kind: str) -> list[torch.Tensor]:
    """Rows of clients with one class, with two, and with all."""
    _, labels = digits(200)
    of_class = [(labels == c).nonzero().flatten() for c in range(10)]
    if kind == "one":
        return [of_class[c][:n] for c, n in ((0, 8), (3, 16), (7, 8))]
    if kind == "two":
        return [torch.cat([of_class[c][:9], of_class[9 - c][:3]]) for c in (1, 2, 8)]
    return [torch.arange(40, 40 + n) for n in (16, 32)]


def share(model: nn.Module, kind: str, counts=label_counts, **settings: object) -> float:
    """How many of the labels are right, of all batches of a kind."""
    images, labels = digits(200)
    how, right, total = method("dpsgd", **settings), 0, 0
    for rows in batches(kind):
        seen = observe(how, model, images[rows], labels[rows])
        truth = torch.bincount(labels[rows], minlength=10)
        right += int(torch.minimum(counts(seen, GREY, Knowledge(examples=len(rows))), truth).sum())
        total += len(rows)
    return right / total


@pytest.mark.parametrize(("kind", "least"), [("one", 1.0), ("two", 0.97), ("all", 0.85)])
@pytest.mark.parametrize("model", [mlp, without_bias])
def test_labels_of_skewed_and_of_mixed_batches(model, kind: str, least: float):
    assert share(model(), kind) >= least


def test_noise_leaves_the_labels_of_one_class():
    assert share(mlp(), "one", mechanism="dp", noise_multiplier=0.3) >= 0.85


def test_each_rule_alone_is_caught():
    """Negative control: least squares spread a client's one class, signs lose mixed batches."""

    def alone(seen, prior, known):
        db = seen.blocks["classifier.bias", "dense"].double()
        even = torch.full((10, 10), 0.1, dtype=torch.float64) - torch.eye(10, dtype=torch.float64)
        solved = Equations(of_class=even, received=db).solve()
        return round_to(solved, known.examples)

    def signs(seen, prior, known):
        return by_signs(seen.blocks["classifier.bias", "dense"], known.examples)

    assert share(mlp(), "one", alone) < 0.99
    assert share(mlp(), "all", signs) < 0.8


def test_signs_by_hand():
    # two of class 1 and one of class 0 of three classes, even outputs: db = 3/3 - n
    assert by_signs(torch.tensor([0.0, -1.0, 1.0]), 2).tolist() == [0, 2, 0]
    assert by_signs(torch.tensor([-0.5, -1.5, 2.0]), 4).tolist() == [1, 3, 0]
    assert by_signs(torch.tensor([-1.0, -2.0, -3.0]), 2).tolist() == [0, 1, 1]


@given(n=st.lists(st.floats(0, 50), min_size=2, max_size=12), examples=st.integers(1, 60))
def test_rounded_counts_sum_to_the_examples(n: list[float], examples: int):
    counts = round_to(torch.tensor(n, dtype=torch.float64), examples)
    assert int(counts.sum()) == examples
    assert int(counts.min()) >= 0


def test_of_two_equal_fits_that_of_fewer_classes_is_kept():
    equations = Equations(of_class=torch.ones(20, 3), received=torch.ones(20))
    few, many = torch.tensor([3, 0, 0]), torch.tensor([1, 1, 1])
    assert nearest([many, few], [equations]).equal(few)
    # but not where more classes explain more
    equations = Equations(of_class=torch.eye(3), received=torch.ones(3))
    assert nearest([few, many], [equations]).equal(many)
