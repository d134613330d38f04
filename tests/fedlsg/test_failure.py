"""An error of a user's code names its type, its text and the user's line; an error of fedlsg's is its text."""

import pytest
import torch
from torch import nn

from fedlsg.failure import depends_on_values, describe


def caught(action):
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("no error")


def broken():
    return nn.Linear(3, 2)(torch.zeros(1, 4))  # the line that is named


def test_the_line_is_the_innermost_of_the_user_and_not_of_torch():
    error = caught(lambda: nn.Sequential(nn.Flatten(0))(broken()))
    text = describe(error)
    assert text.startswith(
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x4 and 3x2) (test_failure.py, line "
    )
    assert text.endswith(": return nn.Linear(3, 2)(torch.zeros(1, 4))  # the line that is named)")


@pytest.mark.parametrize(("action", "depends"), [
    (broken, False), (lambda: torch.zeros(2).nothing, False), (lambda: len(3), False),
    (lambda: nn.Embedding(2, 3)(torch.tensor([5])), True), (lambda: nn.functional.one_hot(torch.tensor([4]), 2), True),
    (lambda: torch.zeros(2, 2)[:, torch.tensor([3])], True), (lambda: torch.zeros(2).sum(3), False),
    (lambda: nn.BCELoss()(torch.tensor([2.0]), torch.tensor([1.0])), True), (lambda: {}["x"], True),
])  # fmt: skip
def test_other_values_are_proposed_only_where_they_may_help(action, depends):
    assert depends_on_values(caught(action)) == depends
