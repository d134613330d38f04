"""One example moves the released sum by at most C (1 + 1e-4): layers that are called, and parameters with uses."""

import pytest
import torch
from torch import Tensor, nn

from benchmarks.privacy.neighbours import BOUND, Subject, move, of_tensors
from fedlsg.gradients.formulas.rows import RowGradients
from fedlsg.gradients.precision import Precision
from tests.fedlsg.support.gradient_oracle import make_frame
from tests.fedlsg.support.layer_zoo import WORDS, ZOO, loss

EXAMPLES = 33


def steep(outputs: Tensor, targets: Tensor) -> Tensor:
    """Every example is clipped."""
    return 100 * loss(outputs.float(), targets)


def build(case: str, precision: str, storage: str, microbatch: int) -> Subject:
    """A row of ordinary examples; the last but one has large numbers, or one word only."""
    model, x, y = ZOO[case].build(EXAMPLES, torch.float32)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    if x.is_floating_point():
        x[-2] *= 1e3
    else:
        x[-2] = WORDS - 1
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    stored = Precision(precision=precision, activation_storage=storage)
    return of_tensors(model, frame, steep, x, y, microbatch_size=microbatch, precision=stored)


STORED = [("float32", "float32", 7), ("bfloat16", "float32", 7), ("float32", "bfloat16", 32)]
TURNS = [
    pytest.param(case, *stored, marks=() if turn == place % 3 else pytest.mark.slow)
    for place, case in enumerate(ZOO)
    for turn, stored in enumerate(STORED)
]
"""Every layer in one precision, and all precisions in turn; the other pairs are slow."""


@pytest.mark.parametrize(("case", "precision", "storage", "microbatch"), TURNS)
def test_one_example_moves_the_sum_by_c(case, precision, storage, microbatch):
    made = build(case, precision, storage, microbatch)
    for leaves in (0, EXAMPLES - 2):
        found = move(made, range(EXAMPLES), leaves)
        assert leaves or found.moved > 0.99, found  # an example of large numbers may have no gradient
        assert found.moved <= 1 + BOUND, found
        assert found.neighbours <= BOUND, found


@pytest.mark.parametrize("case", ["tied", "bag of words", "parameters, words, positions"])
def test_one_example_moves_the_sum_by_c_where_nothing_is_formed(case, monkeypatch):
    """Rows and factors, however small the table."""
    monkeypatch.setattr("fedlsg.gradients.formulas.rows.worth_it", lambda weight: True)
    monkeypatch.setattr("fedlsg.gradients.formulas.rows.product_is_cheaper", lambda weight, g: True)
    test_one_example_moves_the_sum_by_c(case, "float32", "float32", 32)


def test_negative_control_norms_of_rows_before_equal_ones_are_added(monkeypatch):
    """An example that reads one word often has a longer gradient than its rows say."""

    def apart(self: RowGradients) -> Tensor:
        return self.g.double().flatten(1).norm(dim=1)

    monkeypatch.setattr(RowGradients, "norms", apart)
    made = build("bag of words", "float32", "float32", 32)
    assert move(made, range(EXAMPLES), EXAMPLES - 2).moved > 1 + BOUND
