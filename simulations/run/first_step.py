"""How a first step's noise compares with what data ask for, before any training: the length of the
mean clipped gradient of public rows, next to the noise of a step.

Symbols: s the length of the mean clipped gradient over the clip norm, rho that of the noise of a
step over the clip norm, T updates. If the direction stayed, T steps would add up to T s, and their
noise to sqrt(T) rho: sqrt(T) s / rho is the signal of a run.

Public rows alone are read: those of the public test split, at the initial weights. s comes from two
halves of them, as the root of the inner product of their means, so that the sampling of few rows
does not count as signal.
"""

import math
import time
from dataclasses import dataclass

import torch

from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.privacy.clip import clipped_sum
from fedlsg.randomness import own_draws
from fedlsg.simulations.planning.advice.remarks import rho_of
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.workloads import to_device
from fedlsg.tensors import spaced
from fedlsg.user_code.objects import restored

ROWS = 256
"""Public rows, at most."""
AT_ONCE = 32
"""Rows of a pass, at most: every second pass is of the other half."""
SECONDS = 5.0
"""No pass begins later, once there is one of each half."""


@dataclass(frozen=True, kw_only=True)
class FirstStep:
    """``signal``: s; ``rho``; ``rows``: public ones that s is of; ``updates``: T."""

    signal: float
    rho: float
    rows: int
    updates: int

    @property
    def noise(self) -> float:
        """How many times as long the noise of a step is as its signal; inf without a signal."""
        return self.rho / self.signal if self.signal else math.inf

    @property
    def of_run(self) -> float:
        """sqrt(T) s / rho: how far a direction that stays moves the weights, next to noise."""
        return math.sqrt(self.updates) / self.noise if self.noise else math.inf


def first_step(plan: Plan) -> FirstStep | None:
    """The first step of a plan; None without noise or clip, for units of several rows, for rows of
    private data, and for gradients that the first frame does not hold.
    """
    mechanism, workload = plan.method.mechanism, plan.workload
    if not (mechanism.adds_noise and mechanism.clips) or plan.unit.whole or plan.unit.persons:
        return None
    if plan.settings.tests_private_rows:
        return None
    state = plan.initial.server()
    ratio = rho_of(plan, state.public)
    if not ratio or state.awaits_pruning:
        return None
    test, size = workload.test, min(AT_ONCE, plan.local.microbatch_size)
    parts = spaced(len(test), ROWS).split(size)
    sums: list[tuple[torch.Tensor, int]] = []
    began = time.monotonic()
    with restored(workload.loss, test.prepare, data=True), own_draws(plan.device):
        frame = state.public.frame(1, updates=0)
        for some in parts:
            if len(sums) > 1 and time.monotonic() - began > SECONDS:
                break
            inputs, targets = test.batch(some)
            gradients = per_example_gradients(
                state.model,
                workload.loss,
                to_device(inputs, plan.device),
                targets.to(plan.device),
                frame,
                isolation=plan.local.isolation,
            )
            sums.append((clipped_sum(gradients, mechanism, wide=True), len(some)))
    if len(sums) < 2:
        return None
    first, second = (
        sum((total for total, _ in half), torch.zeros_like(sums[0][0]))
        / sum(count for _, count in half)
        for half in (sums[::2], sums[1::2])
    )
    signal = math.sqrt(max(0.0, float(first @ second))) / mechanism.clip_norm
    updates = plan.schedule.rounds * plan.settings.local_steps
    return FirstStep(
        signal=signal, rho=ratio, rows=sum(count for _, count in sums), updates=updates
    )


MOST_OF_IT, PART_OF_IT = 1.0, 0.25
"""Signals of a run (``of_run``) from which on it was measured at two thirds or more of its gain
over guessing without noise, and at a fifth or more: digits, breast cancer and made-up classes,
dpsgd and lsg, 1 to 50 clients, epsilon 0.1 to 8.
"""


def first_step_words(first: FirstStep) -> str:
    """What the first step says of the accuracy."""
    if not first.signal:
        return (
            f"the gradients of {first.rows} public rows have no common direction at the start: "
            "nothing can be said"
        )
    if first.of_run >= MOST_OF_IT:
        expect = "expect most of the accuracy that there would be without noise"
    elif first.of_run >= PART_OF_IT:
        expect = "expect a part of the accuracy that there would be without noise"
    else:
        expect = "expect little more than guessing"
    return (
        f"in the first step the noise is {first.noise:.2g} times as long as the mean gradient of "
        f"{first.rows} public rows; if that kept its direction, {first.updates} steps would move "
        f"the weights {first.of_run:.2g} times as far as their noise: {expect}"
    )
