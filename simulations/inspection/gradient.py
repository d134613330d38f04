"""The batch gradient: what carriers have to hold. NOT PRIVATE."""

from functools import partial

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.gradients import call, trainable
from simulations.inspection.subject import Subject


def batch_gradient(subject: Subject, rows: Int64[Tensor, " n"]) -> dict[str, Tensor]:
    """Mean gradient of every trainable parameter over the examples, without clip and noise."""
    parameters = trainable(subject.model)
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    microbatch = max(1, subject.base.local.microbatch_size // subject.copies)
    with subject.same_dropout():
        for inputs, targets in subject.batches(rows, microbatch):
            outputs = partial(call, subject.model, inputs)
            losses = subject.base.local.precision.losses(outputs, subject.base.workload.loss, targets, targets)
            found = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
            for name, dW in zip(parameters, found, strict=True):
                if dW is not None:
                    total[name] += dW / (len(rows) * subject.copies)
    return total
