"""Accuracy and loss on public test splits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fedlsg.state import ServerState
from simulations.workloads import LoadedWorkload, Split, to_device
from strategies.strategy import DivergedError

FEW_ROWS = 8


@dataclass(frozen=True, kw_only=True)
class Score:
    """Accuracy in 0..1 and mean cross-entropy in nats; for several splits, their means with equal weights.

    ``by_split`` has the accuracy of each split.
    """

    accuracy: float
    loss: float
    by_split: Mapping[str, float]


class Evaluation:
    """Scores of a run's model, also over several processes: each round is evaluated once."""

    def __init__(self, state: ServerState, workload: LoadedWorkload, *, device: str) -> None:
        self._state, self._workload, self._device = state, workload, device
        self._measured: tuple[int, Score] | None = None

    def measure(self) -> Score:
        """Accuracy and loss of the model as it is now."""
        if self._measured is None or self._measured[0] != self._state.round:
            with self._state.evaluated() as model:
                found = score(model, self._workload.tests, device=self._device)
            self._measured = self._state.round, found
        return self._measured[1]

    def after_round(self, round: int, *, due: bool) -> Score | None:
        """The score if an evaluation is ``due``. Raises DivergedError, due or not, if the loss is not finite."""
        score = self.measure() if due else None
        loss = self._loss_on_few_rows() if score is None else score.loss
        if not math.isfinite(loss):
            raise DivergedError(f"round {round} left a model whose test loss is {loss}")
        return score

    def _loss_on_few_rows(self) -> float:
        """For rounds that are not evaluated: enough to see that the loss is not finite."""
        test = self._workload.test
        few = test.pick(torch.arange(min(FEW_ROWS, len(test))))
        with self._state.evaluated() as model:
            return score(model, {"": few}, device=self._device).loss

    def state_dict(self) -> dict[str, Any] | None:
        """The last score in plain values, None before the first."""
        if self._measured is None:
            return None
        round, measured = self._measured
        return {"round": round, "score": {**vars(measured), "by_split": dict(measured.by_split)}}

    def load_state_dict(self, saved: Mapping[str, Any] | None) -> None:
        """Continue from ``state_dict``."""
        self._measured = None if saved is None else (saved["round"], Score(**saved["score"]))


def score(model: nn.Module, tests: Mapping[str, Split], *, device: str, batch_size: int = 200) -> Score:
    """Evaluate on every test split of a workload (``workload.tests``).

    The means are unweighted: MNLI's matched and mismatched accuracies count the same, as the papers report them.
    """
    results = {name: evaluate(model, split, device=device, batch_size=batch_size) for name, split in tests.items()}
    return Score(
        accuracy=sum(accuracy for accuracy, _ in results.values()) / len(results),
        loss=sum(loss for _, loss in results.values()) / len(results),
        by_split={name: accuracy for name, (accuracy, _) in results.items()},
    )


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, *, device: str, batch_size: int = 200) -> tuple[float, float]:
    """(accuracy in 0..1, mean cross-entropy in nats) over the whole split, in evaluation mode."""
    training = {module: module.training for module in model.modules()}  # a frozen part may stay in evaluation mode
    model.eval()
    correct, loss = 0, 0.0
    for rows in split.order(torch.arange(len(split))).split(batch_size):
        inputs, targets = split.batch(rows)
        inputs = to_device(inputs, device)
        logits = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        targets = targets.to(device)
        correct += int((logits.argmax(1) == targets).sum())
        loss += float(F.cross_entropy(logits, targets, reduction="sum"))
    for module, mode in training.items():
        module.training = mode
    return correct / len(split), loss / len(split)
