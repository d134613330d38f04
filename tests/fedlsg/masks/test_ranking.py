"""Ranked sparsification: the memory against a list of epochs, noise where nothing was sent, and its deviation."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.frame import Block, Frame, Keep
from fedlsg.masks.ranking import Memory, noisy_everywhere
from fedlsg.training import accumulated_noise
from tests.fedlsg.support.step_oracle import EMPTY, NOISY, problem


@given(updates=st.lists(st.integers(0, 6), max_size=12), rate=st.floats(0, 0.99), seed=st.integers(0, 99))
def test_the_ranking_is_that_of_the_last_epoch_with_updates(updates, rate, seed):
    generator = torch.Generator().manual_seed(seed)
    memory, by_epoch = Memory(), {}
    for epoch in sorted(updates):
        gradient = torch.randn(9, generator=generator)
        memory = memory.add(gradient, epoch)
        by_epoch.setdefault(epoch, []).append(gradient)
    for epoch in range(max(updates, default=0), 8):
        before = [e for e in by_epoch if e < epoch]
        kept = memory.kept(rate, epoch)
        if not before:
            assert kept is None
            continue
        mean = torch.stack(by_epoch[max(before)]).mean(0).abs()
        frozen = min(math.floor(rate * 9 + 1e-9), 8)
        assert kept.tolist() == sorted(mean.argsort(stable=True)[frozen:].tolist())


def frame(kept: list[int], size: int = 4000, weight: float = 1.0) -> Frame:
    keep = Keep(index=torch.tensor(kept))
    return Frame(coordinates=(), blocks=(Block(parameter="w", part="dense", shape=(size,), keep=keep, weight=weight),))


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_frozen_coordinates_get_the_noise_that_kept_ones_have(weight):
    """On the scale of the gradient: a block of weight 4 in the clip has a quarter of the noise."""
    f = frame(list(range(0, 4000, 2)), weight=weight)
    values = 3.0 * torch.randn(f.kept, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    full = noisy_everywhere(values, f, 3.0, generator=torch.Generator().manual_seed(1))
    assert torch.equal(full[::2], values / weight)
    assert abs(float(full[1::2].std()) / float(full[::2].std()) - 1) < 0.06
    assert abs(float(full[1::2].mean())) < 0.3 / weight


def come_back(noise_std: float) -> bool:
    """Whether frozen coordinates ever rank among the kept again."""
    f = frame([0, 1], size=4)
    values = torch.tensor([0.5, -0.5]).double()
    seen = set()
    for draw in range(30):
        full = noisy_everywhere(values, f, noise_std, generator=torch.Generator().manual_seed(draw))
        seen |= set(Memory().add(full, 0).kept(0.5, 1).tolist())
    return seen == {0, 1, 2, 3}


def test_without_noise_a_frozen_coordinate_never_comes_back():
    """Negative control, and why the paper noises coordinates that it does not update."""
    assert come_back(1.0)
    assert not come_back(0.0)


@pytest.mark.parametrize(("steps", "momentum"), [(1, 0.0), (1, 0.9), (4, 0.0), (4, 0.9)])
def test_the_deviation_is_that_of_a_real_step(steps, momentum):
    p = problem()
    local = replace(EMPTY, steps=steps, momentum=momentum)
    noise = torch.cat([p.step(NOISY, local, seed) for seed in range(200)])
    assert float(noise.std()) == pytest.approx(accumulated_noise(NOISY.noise_std, steps, momentum), rel=0.03)
