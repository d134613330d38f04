"""A trial whether a model learns at all: training on public rows without clip and noise.

For a run at the accuracy of guessing it shows whether noise is the reason. It uses the optimizer of
the run on a new model, and reads only the public test split, so it costs no privacy.
"""

import time

import torch
from torch import nn

from fedlsg.gradients import trainable
from fedlsg.randomness import own_draws
from fedlsg.simulations.planning.advice.hints import Trial
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.server.evaluate import evaluate
from fedlsg.simulations.workloads import Split, to_device
from fedlsg.simulations.workloads.base.split import beats_chance, chance_of
from fedlsg.tensors import spaced
from fedlsg.training.server_round import make_optimizer
from fedlsg.user_code.objects import restored

ROWS = 128
"""Public rows to train on, at most."""
MIN_STEPS, MAX_STEPS = 40, 200
"""Numbers of updates after those of the run at which the model is measured again, until it learns:
a run of few updates is no evidence against its model."""
SECONDS = 3.0
"""Time after which no update begins."""
SLOW_SECONDS = 0.5
"""Time of one evaluation on the rows from which a model is too slow to be tried."""


def learn_public_rows(plan: Plan) -> Trial | None:
    """Train a new model of a plan on public rows.

    None if test rows are private, if targets are no classes, and for a model that is slow or fails.
    ``Trial.learns``: whether its accuracy on the same rows is above guessing.
    """
    try:
        return _learn(plan)
    except Exception:  # a finished run does not fail for a sentence about it
        return None


def _learn(plan: Plan) -> Trial | None:
    workload = plan.workload
    if workload.num_classes is None or plan.settings.tests_private_rows:
        return None
    steps_of_run = min(max(plan.schedule.rounds, 1), MAX_STEPS)
    rows = workload.test.pick(spaced(len(workload.test), ROWS))
    with restored(workload.loss, workload.test.prepare, data=True), own_draws(plan.device):
        model = plan.initial.public().model.to(plan.device)
        began = time.monotonic()
        before = evaluate(model, rows, loss=workload.loss, device=plan.device)
        if time.monotonic() - began > SLOW_SECONDS:
            return None
        chance = chance_of({"test": rows}, workload.num_classes)
        updates, learns, after = 0, False, before
        for goal in dict.fromkeys((steps_of_run, max(steps_of_run, MIN_STEPS), MAX_STEPS)):
            seconds_left = SECONDS - (time.monotonic() - began)
            if learns or seconds_left <= 0:
                break
            updates += _train(plan, model, rows, goal - updates, seconds_left)
            after = evaluate(model, rows, loss=workload.loss, device=plan.device)
            assert after.accuracy is not None
            learns = beats_chance([after.accuracy], chance)
    return Trial(learns=learns, before=before.loss, after=after.loss, updates=updates)


def _train(plan: Plan, model: nn.Module, rows: Split, updates: int, seconds: float) -> int:
    """Train on all rows in each update; returns the number of updates that there was time for."""
    optimizer, scheduler = make_optimizer(
        trainable(model),
        plan.method.server,
        updates=updates,
        classifier=plan.workload.classifier or "",
    )
    inputs, targets = rows.batch(torch.arange(len(rows)))
    inputs, targets = to_device(inputs, plan.device), targets.to(plan.device)
    began = time.monotonic()
    model.train()
    for done in range(updates):
        if time.monotonic() - began > seconds:
            return done
        optimizer.zero_grad()
        outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        plan.workload.loss(outputs, targets).mean().backward()
        optimizer.step()
        scheduler.step()
    return updates
