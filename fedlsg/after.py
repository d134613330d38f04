"""What the server does after the sum: estimator, optimizer, learning-rate schedule."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

Estimator = Literal["eq3", "averaged"]
OptimizerName = Literal["sgd", "adam"]
Schedule = Literal["constant", "linear", "cosine", "exponential"]


@dataclass(frozen=True, kw_only=True)
class After:
    """Server side of a method.

    ``estimator="eq3"`` lifts carriers by Eq. 3; ``"averaged"`` first averages the two noised copies of the r x r
    core (unbiased only without a mask). The learning rate goes from ``learning_rate`` in the first round to
    ``final_learning_rate`` (0 where None) at the end of the run along the ``schedule``.
    """

    estimator: Estimator = "eq3"
    optimizer: OptimizerName = "sgd"
    learning_rate: float = 0.1
    final_learning_rate: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        for name, options in (("estimator", Estimator), ("optimizer", OptimizerName), ("schedule", Schedule)):
            if getattr(self, name) not in get_args(options):
                raise ValueError(f"expected {name} in {get_args(options)}, got {getattr(self, name)!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"expected 0 < learning_rate={self.learning_rate} < inf")
        if self.final_learning_rate is not None and not 0 < self.final_learning_rate < math.inf:
            raise ValueError(f"expected 0 < final_learning_rate={self.final_learning_rate} < inf")
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"expected 0 <= momentum={self.momentum} < 1 and weight_decay={self.weight_decay} >= 0")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError(f"optimizer 'adam' has its own moments: it takes no momentum={self.momentum}")
        if self.final_learning_rate is not None and self.schedule == "constant":
            raise ValueError("final_learning_rate needs a schedule: linear, cosine or exponential")
        if self.schedule == "exponential" and self.final_learning_rate is None:
            raise ValueError("schedule 'exponential' needs final_learning_rate > 0")

    def factor(self, update: int, updates: int) -> float:
        """Learning rate of server update ``update`` (from 0) of ``updates``, as a multiple of the first one."""
        if self.schedule == "constant":
            return 1.0
        t = min(update / updates, 1.0)
        last = 0.0 if self.final_learning_rate is None else self.final_learning_rate / self.learning_rate
        if self.schedule == "linear":
            return 1 + (last - 1) * t
        if self.schedule == "cosine":
            return last + (1 - last) * (1 + math.cos(math.pi * t)) / 2
        return float(last**t)


def make_optimizer(parameters: Iterable[nn.Parameter], after: After, *, updates: int) -> tuple[Optimizer, LambdaLR]:
    """The torch.optim optimizer and scheduler of a run of ``updates`` server updates."""
    optimizer: Optimizer
    if after.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, lr=after.learning_rate, weight_decay=after.weight_decay)
    else:
        optimizer = torch.optim.SGD(
            parameters, lr=after.learning_rate, momentum=after.momentum, weight_decay=after.weight_decay
        )
    return optimizer, LambdaLR(optimizer, lambda update: after.factor(update, updates))
