"""What predicting the mean reaches: by hand for losses of numbers, nothing where a mean means
nothing.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedlsg.simulations.server.evaluate import score_of_mean
from tests.simulations.support.own import load, workload

X = np.ones((4, 2), dtype="float32")
Y = np.array([[1.0], [2.0], [3.0], [6.0]], dtype="float32")
"""Mean 3, variance 14 / 4, mean distance from the mean 1.5."""


def reached(loss: Any, y: np.ndarray = Y, **more: Any) -> Any:
    outputs, flat = more.pop("outputs", 1), more.pop("flat", False)
    layers = [nn.Linear(2, outputs), *([nn.Flatten(0)] if flat else [])]
    made = load(workload(train=(X, y), test=(X, y), loss=loss, **more))
    return score_of_mean(nn.Sequential(*layers), made, device="cpu")


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss of a user's own."""
    return (outputs - targets).square().flatten(1).mean(1)


def in_place(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One that changes what it gets."""
    return outputs.sub_(targets).square_().flatten(1).mean(1)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(nn.MSELoss(), 3.5), (nn.L1Loss(), 1.5), (squared, 3.5), (in_place, 3.5)],
)
def test_the_loss_of_the_mean_by_hand(loss, expected):
    assert reached(loss).loss == pytest.approx(expected)


def test_targets_without_a_second_dimension_and_several_targets():
    assert reached(nn.MSELoss(), Y[:, 0], flat=True).loss == pytest.approx(3.5)
    both = np.concatenate([Y, 2 * Y], axis=1)
    assert reached(nn.MSELoss(), both, outputs=2).loss == pytest.approx((3.5 + 14.0) / 2)


def test_metrics_of_the_mean_and_those_that_have_no_value():
    metrics = {
        "mae": lambda outputs, targets: (outputs - targets).abs().mean(),
        "correlation": lambda outputs, targets: torch.corrcoef(
            torch.stack([outputs.flatten(), targets.flatten()])
        )[0, 1],
    }
    assert reached(nn.MSELoss(), metrics=metrics).metrics == {"mae": pytest.approx(1.5)}


@pytest.mark.parametrize(
    ("loss", "y", "outputs"),
    [
        (nn.BCEWithLogitsLoss(), np.array([[0.0], [1], [1], [1]], dtype="float32"), 1),
        (nn.PoissonNLLLoss(log_input=True), Y, 1),
        (nn.CrossEntropyLoss(), np.array([0, 1, 2, 0]), 3),
        (lambda o, t: (o[:, 0] - t[:, 0]).square() + o[:, 1], Y, 2),
    ],
    ids=["logits", "logarithms", "classes", "two outputs for one target"],
)
def test_nothing_where_the_outputs_are_no_targets(loss, y, outputs):
    assert reached(loss, y, outputs=outputs) is None


def test_a_model_in_training_stays_in_training():
    made = load(workload(train=(X, Y), test=(X, Y), loss=nn.MSELoss()))
    model = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5)).train()
    model[1].eval()
    score_of_mean(model, made, device="cpu")
    assert [module.training for module in model.modules()] == [True, True, False]
