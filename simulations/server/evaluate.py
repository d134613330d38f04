"""Accuracy and loss on public test splits."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from simulations.workloads import Split, to_device


@dataclass(frozen=True, kw_only=True)
class Score:
    """Accuracy in 0..1 and mean cross-entropy in nats; of several splits, their means with equal weights.

    ``by_split`` holds each split's own accuracy.
    """

    accuracy: float
    loss: float
    by_split: Mapping[str, float]


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
