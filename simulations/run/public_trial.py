"""Whether a model learns at all: training on public rows without clip and noise, by the optimizer
of the run.

It answers what a run at the accuracy of guessing leaves open: noise, or something else. It reads
the public test split alone, on a new model, so it costs no privacy.
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
"""Public rows that are trained on, at most."""
MIN_STEPS, MAX_STEPS = 40, 200
"""Updates: as many as the run had; where the model has not learned by then, so many, one after the
other: a run of few updates is no evidence against its model."""
SECONDS = 3.0
"""No update begins later."""
SLOW_SECONDS = 0.5
"""Seconds of one look at the rows: a model that takes longer is not tried."""


def learn_public_rows(plan: Plan) -> Trial | None:
    """Train a new model of a plan on public rows; None where test rows are private ones, where
    targets are no classes, and for a slow model or one that fails.

    ``learns`` says whether its accuracy on the same rows is above guessing.
    """
    try:
        return _learn(plan)
    except Exception:  # a finished run does not fail for a sentence about it
        return None


def _learn(plan: Plan) -> Trial | None:
    workload = plan.workload
    if workload.num_classes is None or plan.settings.tests_private_rows:
        return None
    as_long = min(max(plan.schedule.rounds, 1), MAX_STEPS)
    some = workload.test.pick(spaced(len(workload.test), ROWS))
    with restored(workload.loss, workload.test.prepare, data=True), own_draws(plan.device):
        model = plan.initial.public().model.to(plan.device)
        began = time.monotonic()
        before = evaluate(model, some, loss=workload.loss, device=plan.device)
        if time.monotonic() - began > SLOW_SECONDS:
            return None
        chance = chance_of({"test": some}, workload.num_classes)
        done, learns, after = 0, False, before
        for goal in dict.fromkeys((as_long, max(as_long, MIN_STEPS), MAX_STEPS)):
            left = SECONDS - (time.monotonic() - began)
            if learns or left <= 0:
                break
            done += _train(plan, model, some, goal - done, left)
            after = evaluate(model, some, loss=workload.loss, device=plan.device)
            assert after.accuracy is not None
            learns = beats_chance([after.accuracy], chance)
    return Trial(learns=learns, before=before.loss, after=after.loss, updates=done)


def _train(plan: Plan, model: nn.Module, some: Split, updates: int, seconds: float) -> int:
    """Train on all rows in each update; returns how many there was time for."""
    optimizer, scheduler = make_optimizer(
        trainable(model),
        plan.method.server,
        updates=updates,
        classifier=plan.workload.classifier or "",
    )
    inputs, targets = some.batch(torch.arange(len(some)))
    given, wanted = to_device(inputs, plan.device), targets.to(plan.device)
    began = time.monotonic()
    model.train()
    for done in range(updates):
        if time.monotonic() - began > seconds:
            return done
        optimizer.zero_grad()
        outputs = model(**given) if isinstance(given, dict) else model(given)
        plan.workload.loss(outputs, wanted).mean().backward()
        optimizer.step()
        scheduler.step()
    return updates
