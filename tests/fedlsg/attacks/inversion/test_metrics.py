import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.attacks.metrics import (
    best_matching,
    exact_match,
    mean_interval,
    psnr,
    squared_errors,
    ssim,
    token_recall,
)

# (channels, height, width, range) -> structural_similarity(..., channel_axis=0) and peak_signal_noise_ratio of
# scikit-image 0.26.0 between wave(1.0) and wave(1.1)
SKIMAGE = {
    (1, 8, 8, 1.0): (0.9249268109731166, 16.986379965081202),
    (3, 32, 32, 2.0): (-0.15376665095598147, 11.722258820797416),
    (1, 7, 9, 1.0): (0.9372334559904165, 17.660102871816985),
    (3, 12, 20, 1.0): (0.44353999164370944, 8.422120721242981),
}


def wave(channels: int, height: int, width: int, k: float) -> torch.Tensor:
    """(1, C, h, w) in [0, 1], by a formula that any language can repeat."""
    i, j = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in (height, width)), indexing="ij")
    phases = [0.5 + 0.5 * torch.sin(k * (c + 1) * 0.7 * i + 0.3 * j * k + c) for c in range(channels)]
    return torch.stack(phases).unsqueeze(0)


@pytest.mark.parametrize("case", SKIMAGE)
def test_ssim_and_psnr_agree_with_values_of_scikit_image(case):
    *shape, data_range = case
    a, b = wave(*shape, 1.0), wave(*shape, 1.1)
    similarity, ratio = SKIMAGE[case]
    assert ssim(a, b, data_range=data_range).item() == pytest.approx(similarity, abs=1e-12)
    assert psnr(a, b, data_range=data_range).item() == pytest.approx(ratio, abs=1e-10)


def test_psnr_by_hand():
    truth = torch.zeros(3, 1, 2, 2)
    guess = torch.stack([torch.full((1, 2, 2), 0.1), torch.zeros(1, 2, 2), torch.full((1, 2, 2), math.nan)])
    values = psnr(guess, truth, data_range=1.0)
    assert values[0].item() == pytest.approx(20.0, abs=1e-6)
    assert values[1].item() == math.inf
    assert math.isnan(values[2].item())


@given(seed=st.integers(0, 1000), count=st.integers(1, 5))
def test_matching_undoes_a_permutation(seed, count):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(count, 1, 4, 4, generator=generator, dtype=torch.float64)
    order = torch.randperm(count, generator=generator)
    guesses, truths = best_matching(squared_errors(truth[order], truth))
    assert torch.equal(order[guesses], truths)
    assert truths.tolist() == list(range(count))


def test_tokens_by_hand():
    assert token_recall([7, 5, 5, 9], [5, 7, 7, 8]) == 0.5  # one 7 of two, one 5, no 8
    assert token_recall([0, 5], [0, 0, 5, 6], ignored={0}) == 0.5
    assert math.isnan(token_recall([1], [0], ignored={0}))
    assert exact_match([0, 5, 6, 0], [5, 6], ignored={0})
    assert not exact_match([6, 5], [5, 6])


def test_intervals_cover_the_mean_as_often_as_they_say():
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(200):
        values = torch.randn(40, generator=generator, dtype=torch.float64) + 3
        interval = mean_interval(values, confidence=0.9)
        covered += interval.low <= 3 <= interval.high
    assert 168 <= covered <= 194  # 180 expected, 3 deviations of 4.2
