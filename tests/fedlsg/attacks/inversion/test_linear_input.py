"""The input of a linear layer from one gradient: exact by hand, exact for every method, and what breaks it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.attacks.inversion.linear import input_of_linear
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.training.client import LocalTraining
from tests.fedlsg.support.observed import digits, method, mlp, observe

PRIOR = Prior(shape=(1, 8, 8))
METHODS = ("dpsgd", "dp-powersgd", "rgp", "rgp-random", "lora", "rs", "lsg", "lsg-lora")


def relative_error(guess: Tensor, truth: Tensor) -> float:
    """Over the known entries."""
    known = guess.isfinite()
    return float((guess - truth)[known].norm() / truth[known].norm())


@pytest.mark.parametrize("name", METHODS)
def test_exact_under_every_method(name: str):
    x, y = digits(1)
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-4)):
        guess = input_of_linear(observe(name, mlp(), x, y, dtype=dtype), PRIOR)
        assert relative_error(guess.inputs, x) < tolerance
        assert guess.objective is not None
        assert guess.objective < tolerance


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), sparsity=st.sampled_from([0.0, 0.3, 0.5]), steps=st.integers(1, 3))
def test_exactly_the_kept_columns_whatever_clip_and_local_steps(seed: int, sparsity: float, steps: int):
    x, y = digits(1, seed)
    how = method("lsg", sparsity=sparsity, clip_norm=10.0 ** (seed % 5 - 3), norms_clip_weight=1 + seed % 3)
    local = LocalTraining(steps=steps, momentum=0.5 * (seed % 2), learning_rate=0.3)
    seen = observe(how, mlp(seed=seed), x, y, local=local)
    guess = input_of_linear(seen, PRIOR)
    kept = seen.kept["hidden.weight", "R"].any(0)
    assert guess.inputs.flatten().isfinite().equal(kept)
    assert int(kept.sum()) == 64 - int(64 * sparsity)
    assert relative_error(guess.inputs, x) < 1e-6


@pytest.mark.parametrize("name", ["dpsgd", "rgp", "rs"])
def test_without_a_bias_the_direction_is_exact_and_the_range_gives_the_scale(name: str):
    x, y = digits(1)
    x = x / x.max()  # an image that fills its range
    guess = input_of_linear(observe(name, mlp(bias=False), x, y), PRIOR)
    assert relative_error(guess.inputs, x) < 1e-9
    dark = input_of_linear(observe(name, mlp(bias=False), 0.5 * x, y), PRIOR)
    assert torch.cosine_similarity(dark.inputs.flatten(), x.flatten(), dim=0) > 1 - 1e-12
    assert relative_error(dark.inputs, 0.5 * x) == pytest.approx(1.0)  # what cannot be known is not claimed
    assert "scale from the prior" in dark.note
