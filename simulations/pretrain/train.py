"""The loop that trains a feature extractor on public images: Adam, a cosine schedule, two views of each image."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers import find_classifier
from fedlsg.randomness import own_draws, public_generator, seed_draws
from simulations.pretrain.tasks import Task
from simulations.pretrain.views import random_view

Report = Callable[[int, float], None]
"""Called after each step with its number, from 1, and its loss."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """``steps`` of ``batch`` images each; the learning rate falls from ``learning_rate`` to 0 along a cosine."""

    steps: int
    batch: int
    learning_rate: float = 1e-3


def pretrain(
    model: nn.Module,
    classifier: str | None,
    images: Float[Tensor, "n c h w"],
    task: Task,
    schedule: Schedule,
    *,
    seed: int,
    report: Report,
) -> list[float]:
    """Train everything but the classifier of ``model`` in place, on its device; returns the loss of each step.

    ``classifier``: its path, None for the last Linear; it is left as it is.
    Guarantee: a function of its arguments, on one kind of processor with one number of threads.
    Raises ValueError for a batch of less than two or more than all images, and a loss that is not finite.
    """
    if not 2 <= schedule.batch <= len(images) or schedule.steps < 1:
        raise ValueError(
            f"expected 2 <= batch={schedule.batch} <= {len(images)} images and steps={schedule.steps} >= 1"
        )
    device = next(model.parameters()).device
    path = find_classifier(model, classifier)
    place, _, name = path.rpartition(".")
    layer = model.get_submodule(path)
    setattr(model.get_submodule(place), name, nn.Identity())
    try:
        with own_draws(device.type):
            seed_draws(seed, device.type)
            with torch.no_grad():
                features = model(images[:2].to(device)).flatten(1).shape[1]
            head = task.head(features, len(images)).to(device)
            return _train(model, head, images, task, schedule, seed, report)
    finally:
        setattr(model.get_submodule(place), name, layer)


def _train(
    model: nn.Module, head: nn.Module, images: Tensor, task: Task, schedule: Schedule, seed: int, report: Report
) -> list[float]:
    device = next(model.parameters()).device
    generator = public_generator(seed, "pretrain", "views")
    trained = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(trained, lr=schedule.learning_rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.steps)
    losses = []
    for step in range(1, schedule.steps + 1):
        rows = torch.randperm(len(images), generator=generator)[: schedule.batch]
        shown = images[rows].to(device)
        views = torch.cat([random_view(shown, generator), random_view(shown, generator)])
        first, second = head(model(views).flatten(1)).chunk(2)
        loss = task.loss(first, second, rows.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falling.step()
        losses.append(float(loss.detach()))
        if not torch.isfinite(loss):
            raise ValueError(f"the loss of step {step} is not finite: give a smaller --learning-rate")
        report(step, losses[-1])
    return losses
