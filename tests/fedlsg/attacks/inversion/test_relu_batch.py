"""Whole ReLU batches: sparse columns by hand, exact images from every whole payload, and honest refusals."""

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.inversion.relu_batch import relu_batch, search_for, sparse_columns
from fedlsg.attacks.observation import Knowledge
from tests.fedlsg.support.observed import digits, mlp, observe

PRIOR = Prior(shape=(1, 8, 8))
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
    # G has columns (1, 2, 7, 0, 0, 0, 3) and (0, 0, 0, 4, 5, 6, 1); P mixes them by an invertible matrix.
    G = torch.tensor([[1.0, 0], [2, 0], [7, 0], [0, 4], [0, 5], [0, 6], [3, 1]], dtype=torch.float64)
    P = torch.linalg.qr(G @ torch.tensor([[1.0, 2], [3, -1]], dtype=torch.float64))[0]
    columns = P @ sparse_columns(P, generator(), search_for(P.dtype, 100_000))
    unit = columns / columns[6]  # scale is not determined; the last row is 3 and 1 in G
    first, second = sorted(unit.mT.tolist(), key=lambda column: column[3], reverse=True)
    assert [first, second] == [pytest.approx([0, 0, 0, 4, 5, 6, 1]), pytest.approx([1 / 3, 2 / 3, 7 / 3, 0, 0, 0, 1])]


@pytest.mark.parametrize("name", ["dpsgd", "rgp"])
@pytest.mark.parametrize("batch", [2, 4, 6])
def test_whole_batches_are_exact(name: str, batch: int):
    x, y = digits(batch, 10)
    guess = relu_batch(observe(name, mlp(nn.ReLU), x, y), PRIOR, NOTHING, generator())
    assert worst_psnr(guess.inputs, x) >= 100
    assert guess.objective < 1e-9
