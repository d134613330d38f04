"""Signal and noise of the first step, before any training, from gradients of public rows.

Symbols: s the norm of the mean clipped gradient over the clip norm C, rho the norm of the noise of
a step over C, T updates. If the direction stayed the same, T steps would add up to T s, and their
noise to sqrt(T) rho: sqrt(T) s / rho is the signal of a run.

Only rows of the public test split are read, at the initial weights. With g_1 and g_2 the mean
clipped gradients of two halves of them, s = sqrt(max(0, g_1 . g_2)) / C: the sampling of few rows
does not count as signal, since the halves are independent.
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
"""Rows of a pass, at most. Passes belong to the first and the second half alternately."""
SECONDS = 5.0
"""Time after which no pass begins, once there is one of each half."""


@dataclass(frozen=True, kw_only=True)
class FirstStep:
    """The numbers of a first step.

    signal: s.
    rho: norm of the noise over the clip norm.
    rows: public rows that were read.
    updates: T.
    """

    signal: float
    rho: float
    rows: int
    updates: int

    @property
    def noise(self) -> float:
        """rho / s, the norm of the noise over that of the signal; inf without a signal."""
        return self.rho / self.signal if self.signal else math.inf

    @property
    def of_run(self) -> float:
        """sqrt(T) s / rho, the signal of the run."""
        return math.sqrt(self.updates) / self.noise if self.noise else math.inf


def first_step(plan: Plan) -> FirstStep | None:
    """The first step of a plan; None if it cannot be measured.

    That is so without noise or clip, for units of several rows, for private test rows, and before
    pruning.
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
    sums: list[torch.Tensor] = []
    counts: list[int] = []
    began = time.monotonic()
    with restored(workload.loss, test.prepare, data=True), own_draws(plan.device):
        frame = state.public.frame(1, updates=0)
        for rows in spaced(len(test), ROWS).split(size):
            if len(sums) > 1 and time.monotonic() - began > SECONDS:
                break
            inputs, targets = test.batch(rows)
            gradients = per_example_gradients(
                state.model,
                workload.loss,
                to_device(inputs, plan.device),
                targets.to(plan.device),
                frame,
                isolation=plan.local.isolation,
            )
            sums.append(clipped_sum(gradients, mechanism, wide=True))
            counts.append(len(rows))
    if len(sums) < 2:
        return None
    zero = torch.zeros_like(sums[0])
    g_1 = sum(sums[::2], zero) / sum(counts[::2])
    g_2 = sum(sums[1::2], zero) / sum(counts[1::2])
    return FirstStep(
        signal=math.sqrt(max(0.0, float(g_1 @ g_2))) / mechanism.clip_norm,
        rho=ratio,
        rows=sum(counts),
        updates=plan.schedule.rounds * plan.settings.local_steps,
    )


MOST_OF_IT, PART_OF_IT = 1.0, 0.25
"""Signals of a run (``of_run``) from which runs kept two thirds, and a fifth, of their gain over
guessing without noise. Measured on digits, breast cancer and synthetic classes, with dpsgd and lsg,
1 to 50 clients, epsilon 0.1 to 8."""


def first_step_words(first: FirstStep) -> str:
    """A sentence about the accuracy to expect."""
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
