import math

import torch

from fedlsg.attacks.inversion.matching import START_SPREAD, Pixels
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import Knowledge
from tests.fedlsg.support.observed import digits, method, mlp, observe

MEANS = torch.arange(10, dtype=torch.float64).div(10).reshape(10, 1, 1, 1).expand(10, 1, 8, 8)
PRIOR = Prior(shape=(1, 8, 8), low=0.0, high=1.0, mean=MEANS)


def unknowns(known: Knowledge, examples: int = 2) -> Pixels:
    x, y = digits(2)
    return Pixels(observe(method("rgp"), mlp(), x, y), known, PRIOR, examples)


def test_granted_labels_are_no_unknowns():
    sought = unknowns(Knowledge(labels=torch.tensor([3, 8]), examples=2))
    point = sought.start(1, torch.Generator().manual_seed(0))
    inputs, targets = sought.split(point)
    assert point.shape == sought.box.low.shape == (128,)
    assert targets.tolist() == [3, 8]
    assert (inputs - torch.tensor([0.3, 0.8]).reshape(2, 1, 1, 1)).abs().max() <= START_SPREAD / 2 + 1e-7


def test_other_labels_are_probabilities_and_set_what_is_expected():
    sought = unknowns(Knowledge(examples=2))
    point = sought.start(1, torch.Generator().manual_seed(0))
    _, targets = sought.split(point)
    assert point.shape == (2 * 64 + 2 * 10,)
    assert torch.allclose(targets.sum(1), torch.ones(2, dtype=torch.float64))
    assert sought.box.low[128:].tolist() == [-math.inf] * 20
    sure = torch.eye(10, dtype=torch.float64)[[3, 8]]
    assert torch.equal(sought.expected_under(sure), MEANS[[3, 8]])
    assert torch.allclose(sought.expected_under((sure + sure.flip(0)) / 2), torch.full((2, 1, 8, 8), 0.55).double())
