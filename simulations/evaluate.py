"""Accuracy and loss on the public test split."""

import torch
from torch import nn
from torch.nn import functional as F

from simulations.workloads import Split


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, *, device: str, batch_size: int = 500) -> tuple[float, float]:
    """(accuracy in 0..1, mean cross-entropy in nats) over the whole split, in evaluation mode."""
    training = model.training
    model.eval()
    correct, loss = 0, 0.0
    for rows in torch.arange(len(split)).split(batch_size):
        inputs, targets = split.batch(rows)
        logits = model(inputs.to(device))
        targets = targets.to(device)
        correct += int((logits.argmax(1) == targets).sum())
        loss += float(F.cross_entropy(logits, targets, reduction="sum"))
    model.train(training)
    return correct / len(split), loss / len(split)
