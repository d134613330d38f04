import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.attacks.metrics import (
    best_matching,
    psnr,
    squared_errors,
    ssim,
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


@given(seed=st.integers(0, 1000), count=st.integers(1, 5))
def test_matching_undoes_a_permutation(seed, count):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(count, 1, 4, 4, generator=generator, dtype=torch.float64)
    order = torch.randperm(count, generator=generator)
    guesses, truths = best_matching(squared_errors(truth[order], truth))
    assert torch.equal(order[guesses], truths)
    assert truths.tolist() == list(range(count))
