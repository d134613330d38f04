"""Inputs, labels and ReLU batches in closed form from one gradient: exact for every method, and
what breaks it.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedlsg.attacks.inversion.linear import input_of_linear, label_of_one
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.inversion.relu_batch import FLOAT64_TOLERANCES, relu_batch, sparse_columns
from fedlsg.attacks.observation import Knowledge
from fedlsg.training.client_round import LocalTraining
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
@given(
    seed=st.integers(0, 1000), sparsity=st.sampled_from([0.0, 0.3, 0.5]), steps=st.integers(1, 3)
)
def test_exactly_the_kept_columns_whatever_clip_and_local_steps(
    seed: int, sparsity: float, steps: int
):
    x, y = digits(1, seed)
    how = method(
        "lsg", sparsity=sparsity, clip_norm=10.0 ** (seed % 5 - 3), norms_clip_weight=1 + seed % 3
    )
    local = LocalTraining(steps=steps, momentum=0.5 * (seed % 2), learning_rate=0.3)
    seen = observe(how, mlp(seed=seed), x, y, local=local)
    guess = input_of_linear(seen, PRIOR)
    kept = seen.kept["hidden.weight", "R"].any(0)
    assert guess.inputs.flatten().isfinite().equal(kept)
    assert int(kept.sum()) == 64 - int(64 * sparsity)
    assert relative_error(guess.inputs, x) < 1e-6


def without_classifier_bias() -> nn.Module:
    model = mlp()
    model.classifier = nn.Linear(64, 10, bias=False).double()
    return model


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["dpsgd", "rgp", "lsg", "rs"])
def test_one_label_is_exact(name: str):
    for start in range(12):
        x, y = digits(1, start)
        for model in (mlp(), without_classifier_bias()):
            assert label_of_one(observe(name, model, x, y)) == int(y)


NOTHING = Knowledge()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def worst_psnr(guess: Tensor, truth: Tensor) -> float:
    """Of the worst image in the best matching, over known entries, range 1."""
    guess, truth = guess.flatten(1), truth.flatten(1)
    known = guess.isfinite().all(0)
    errors = (guess[:, None, known] - truth[None][:, :, known]).square().mean(2)
    rows, columns = linear_sum_assignment(errors.numpy())
    return float(-10 * errors[rows, columns].max().log10())


def test_sparse_columns_by_hand():
    # G has columns (1, 2, 7, 0, 0, 0, 3) and (0, 0, 0, 4, 5, 6, 1); P mixes them by an invertible
    # matrix.
    G = torch.tensor(
        [[1.0, 0], [2, 0], [7, 0], [0, 4], [0, 5], [0, 6], [3, 1]], dtype=torch.float64
    )
    P = torch.linalg.qr(G @ torch.tensor([[1.0, 2], [3, -1]], dtype=torch.float64))[0]
    columns = P @ sparse_columns(P, generator(), FLOAT64_TOLERANCES)
    unit = columns / columns[6]  # scale is not determined; the last row is 3 and 1 in G
    first, second = sorted(unit.mT.tolist(), key=lambda column: column[3], reverse=True)
    assert [first, second] == [
        pytest.approx([0, 0, 0, 4, 5, 6, 1]),
        pytest.approx([1 / 3, 2 / 3, 7 / 3, 0, 0, 0, 1]),
    ]


@pytest.mark.parametrize("name", ["dpsgd", "rgp"])
@pytest.mark.parametrize("batch", [2, 4, 6])
def test_whole_batches_are_exact(name: str, batch: int):
    x, y = digits(batch, 10)
    guess = relu_batch(observe(name, mlp(nn.ReLU), x, y), PRIOR, NOTHING, generator())
    assert worst_psnr(guess.inputs, x) >= 100
    assert guess.objective < 1e-9
