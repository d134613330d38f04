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


@pytest.mark.parametrize("case", SKIMAGE)
def test_ssim_agrees_with_scikit_image_where_it_is_installed(case):
    metrics = pytest.importorskip("skimage.metrics", reason="scikit-image, the oracle, is not installed")
    *shape, data_range = case
    generator = torch.Generator().manual_seed(1)
    a = torch.rand(4, *shape, generator=generator, dtype=torch.float64)
    b = (a + 0.2 * torch.randn(a.shape, generator=generator, dtype=torch.float64)).clamp(0, 1)
    for mine, x, y in zip(ssim(a, b, data_range=data_range), a.numpy(), b.numpy(), strict=True):
        expected = metrics.structural_similarity(x, y, data_range=data_range, channel_axis=0)
        assert mine.item() == pytest.approx(expected, abs=1e-12)


def test_a_gaussian_window_or_another_range_would_be_noticed():
    a, b = wave(1, 8, 8, 1.0), wave(1, 8, 8, 1.1)
    assert abs(ssim(a, b, data_range=2.0).item() - SKIMAGE[1, 8, 8, 1.0][0]) > 5e-4
    assert abs(psnr(a, b, data_range=2.0).item() - SKIMAGE[1, 8, 8, 1.0][1]) > 6


def test_psnr_by_hand():
    truth = torch.zeros(3, 1, 2, 2)
    guess = torch.stack([torch.full((1, 2, 2), 0.1), torch.zeros(1, 2, 2), torch.full((1, 2, 2), math.nan)])
    values = psnr(guess, truth, data_range=1.0)
    assert values[0].item() == pytest.approx(20.0, abs=1e-6)
    assert values[1].item() == math.inf
    assert math.isnan(values[2].item())


@given(seed=st.integers(0, 1000))
def test_ssim_is_symmetric_and_one_for_itself(seed):
    a, b = torch.rand(2, 2, 3, 9, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.allclose(ssim(a, b, data_range=1.0), ssim(b, a, data_range=1.0))
    assert torch.allclose(ssim(a, a, data_range=1.0), torch.ones(2, dtype=torch.float64))
    assert bool((ssim(a, b, data_range=1.0) < 1).all())


@given(seed=st.integers(0, 1000), count=st.integers(1, 5))
def test_matching_undoes_a_permutation(seed, count):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(count, 1, 4, 4, generator=generator, dtype=torch.float64)
    order = torch.randperm(count, generator=generator)
    guesses, truths = best_matching(squared_errors(truth[order], truth))
    assert torch.equal(order[guesses], truths)
    assert truths.tolist() == list(range(count))


def test_matching_is_the_best_in_all_and_not_the_greedy_one():
    cost = torch.tensor([[1.0, 2.0], [2.0, 100.0]])  # greedy takes (0, 0), and has to pay 100
    guesses, truths = best_matching(cost)
    assert cost[guesses, truths].sum() == 4


def test_matching_pairs_the_smaller_side():
    guesses, truths = best_matching(torch.tensor([[5.0, 0.0, 5.0]]))
    assert (guesses.tolist(), truths.tolist()) == ([0], [1])
    with pytest.raises(ValueError, match="finite"):
        best_matching(torch.tensor([[math.nan]]))


def test_tokens_by_hand():
    assert token_recall([7, 5, 5, 9], [5, 7, 7, 8]) == 0.5  # one 7 of two, one 5, no 8
    assert token_recall([0, 5], [0, 0, 5, 6], ignored={0}) == 0.5
    assert math.isnan(token_recall([1], [0], ignored={0}))
    assert exact_match([0, 5, 6, 0], [5, 6], ignored={0})
    assert not exact_match([6, 5], [5, 6])


def test_the_t_interval_by_hand():
    interval = mean_interval(torch.tensor([1.0, 2.0, 3.0]))
    reach = 4.302652729911275 / math.sqrt(3)  # t quantile of 0.975 at 2 degrees of freedom; deviation 1
    assert (interval.low, interval.mean, interval.high) == pytest.approx((2 - reach, 2, 2 + reach))
    assert str(interval) == "2.00 [-0.48, 4.48]"


def test_intervals_cover_the_mean_as_often_as_they_say():
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(200):
        values = torch.randn(40, generator=generator, dtype=torch.float64) + 3
        interval = mean_interval(values, confidence=0.9)
        covered += interval.low <= 3 <= interval.high
    assert 168 <= covered <= 194  # 180 expected, 3 deviations of 4.2


def test_what_metrics_refuse():
    image = torch.zeros(1, 1, 6, 9)
    with pytest.raises(ValueError, match="window"):
        ssim(image, image, data_range=1.0)
    with pytest.raises(ValueError, match="one shape"):
        psnr(image, image[..., 1:], data_range=1.0)
    with pytest.raises(ValueError, match="data_range"):
        psnr(image, image, data_range=0.0)
    with pytest.raises(ValueError, match="two finite values"):
        mean_interval(torch.tensor([1.0]))
