"""Images by gradient matching: what a search finds without and with noise; its distances and its
metrics.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.attacks.inversion.matching import ATTACKS, SMALL_IMAGE_NUMBERS, Matching, match
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.metrics import best_matching, psnr, squared_errors, ssim
from fedlsg.attacks.observation import Knowledge, Observation
from fedlsg.training.client_round import LocalTraining
from tests.fedlsg.support.observed import digits, method, mlp, observe

PRIOR = Prior(shape=(1, 8, 8), low=0.0, high=1.0)
METHODS = {"dpsgd": {}, "rgp": {}, "lsg": {"sparsity": 0.5}, "rs": {"sparsity": 0.5}}
DLG = replace(ATTACKS["dlg"], restarts=2)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def attacked(
    seen: Observation, labels: Tensor | None, examples: int | None, attack: Matching = DLG
) -> Tensor:
    """The guess of an attack that knows nothing else: the truth is not in reach of this
    function.
    """
    known = Knowledge(labels=labels, examples=examples)
    return match(seen, known, PRIOR, attack=attack, generator=generator())


def decibels(guess: Tensor, truth: Tensor) -> Tensor:
    guesses, truths = best_matching(squared_errors(guess, truth))
    return psnr(guess[guesses], truth[truths], data_range=1.0)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", METHODS)
def test_noise_free_digits_come_back(name):
    found = []
    for start in range(5):
        x, y = digits(1, start)
        seen = observe(method(name, **METHODS[name]), mlp(), x, y)
        found.append(decibels(attacked(seen, y, 1).inputs, x).item())
    assert sum(value > 40 for value in found) >= 4, found


@pytest.mark.parametrize("steps", [1, 2])
def test_a_batch_comes_back_in_some_order_also_after_several_steps(steps):
    x, y = digits(2, 5)
    local = LocalTraining(steps=steps, learning_rate=0.5, momentum=0.5, expected_batch=2.0)
    seen = observe(method("lsg", sparsity=0.5), mlp(), x, y, local=local)
    assert decibels(attacked(seen, y.flip(0), 2).inputs, x).min() > 40


# (channels, height, width, range) -> structural_similarity(..., channel_axis=0) and
# peak_signal_noise_ratio of scikit-image 0.26.0 between wave(1.0) and wave(1.1)
SKIMAGE = {
    (1, 8, 8, 1.0): (0.9249268109731166, 16.986379965081202),
    (3, 32, 32, 2.0): (-0.15376665095598147, 11.722258820797416),
    (1, 7, 9, 1.0): (0.9372334559904165, 17.660102871816985),
    (3, 12, 20, 1.0): (0.44353999164370944, 8.422120721242981),
}


def wave(channels: int, height: int, width: int, k: float) -> torch.Tensor:
    """(1, C, h, w) in [0, 1], by a formula that any language can repeat."""
    i, j = torch.meshgrid(
        *(torch.arange(n, dtype=torch.float64) for n in (height, width)), indexing="ij"
    )
    phases = [
        0.5 + 0.5 * torch.sin(k * (c + 1) * 0.7 * i + 0.3 * j * k + c) for c in range(channels)
    ]
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


def test_presets_and_forms_are_the_attacks_own():
    """A new attack has a long search for large images; only a likelihood has no naive form."""
    new = Matching(evaluations=5)
    assert new.for_images(SMALL_IMAGE_NUMBERS) is new
    assert (
        new.for_images(SMALL_IMAGE_NUMBERS + 1).evaluations,
        new.for_images(SMALL_IMAGE_NUMBERS + 1).restarts,
    ) == (2400, 1)
    assert ATTACKS["inverting-gradients"].for_images(3072).total_variation == 5e-2
    assert [name for name, attack in ATTACKS.items() if not attack.has_naive_form] == ["map"]
