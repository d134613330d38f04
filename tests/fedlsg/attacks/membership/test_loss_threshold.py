"""The loss threshold: by hand, on losses of known distributions, and on nothing."""

import numpy as np
import torch

from fedlsg.attacks.membership import best_threshold, loss_threshold


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_threshold_is_not_chosen_where_it_is_measured():
    """Negative control: measured on the half that chose it, noise alone would look like success."""
    own = []
    for seed in range(50):
        a, b = torch.randn(20, generator=generator(seed)), torch.randn(20, generator=generator(1000 + seed))
        threshold = best_threshold(a.numpy(), b.numpy())
        own.append(float(((a <= threshold).sum() + (b > threshold).sum()) / 40))
    assert np.mean(own) > 0.56
    fair = [
        loss_threshold(
            torch.randn(40, generator=generator(s)), torch.randn(40, generator=generator(1000 + s)), generator()
        ).success.value
        for s in range(50)
    ]
    assert abs(np.mean(fair) - 0.5) < 0.04
