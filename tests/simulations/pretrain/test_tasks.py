"""The losses of both tasks, against sums by hand and their limits."""

import math

import torch

from simulations.pretrain.tasks import TASKS, TEMPERATURE, contrastive_loss, instance_loss

ROWS = torch.arange(3)


def test_the_contrastive_loss_is_that_of_simclr():
    first, second = (torch.randn(3, 5, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    views = [v / v.norm() for v in (*first, *second)]
    total = 0.0
    for i, view in enumerate(views):
        terms = {j: math.exp(float(view @ other) / TEMPERATURE) for j, other in enumerate(views) if j != i}
        total -= math.log(terms[(i + 3) % 6] / sum(terms.values()))
    assert abs(float(contrastive_loss(first, second, ROWS)) - total / 6) < 1e-5


def test_equal_views_of_different_images_cost_little():
    apart = torch.eye(3)
    assert contrastive_loss(apart, apart, ROWS) < 0.1
    assert contrastive_loss(apart, apart.roll(1, 0), ROWS) > 3


def test_the_instance_loss_is_the_cross_entropy_of_the_number():
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    expected = -torch.log_softmax(logits, 1)[ROWS, ROWS].mean()
    torch.testing.assert_close(instance_loss(logits, logits, ROWS), expected)


def test_heads_take_features():
    for task in TASKS.values():
        assert task.head(8, 20)(torch.randn(4, 8)).shape[0] == 4
    assert TASKS["instance"].head(8, 20)(torch.randn(4, 8)).shape == (4, 20)
