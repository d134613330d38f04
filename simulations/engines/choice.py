"""The choice of an engine for ``engine=auto``, by time alone: results are the same on both.

Ray takes seconds to start and to end, and about a millisecond for each message. Clients that run at
the same time save time. With C seconds of work of all clients and M messages, engine local takes C,
and engine ray START + (C + MESSAGE M) / workers. The constants were measured: ``fedlsg docs
performance``, "Which engine".
"""

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedlsg.randomness import own_draws
from fedlsg.simulations.engines.cluster import gets_place, processors
from fedlsg.simulations.engines.door import in_use, joins_cluster
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.settings.settings import OF_RAY, RUN
from fedlsg.simulations.workloads import to_device
from fedlsg.strategies.own_loop.row_checks import model_outputs
from fedlsg.tensors import spaced
from fedlsg.user_code.failure import describe
from fedlsg.user_code.objects import restored

START = 5.0
"""Seconds that Ray's start, the imports of its workers and its end add to a run."""
MESSAGE = 0.001
"""Seconds of a worker for the transport of a client's message."""
CLIENT, STEP = 0.002, 0.001
"""Seconds of a client's call, and of a private step, without arithmetic."""
SPEED = 25e9
"""Operations a second and thread in a private step."""
ROWS = 4
"""Public rows on which the multiplications of the model are counted."""
HERE = "engine=local runs all clients in this process"


def with_engine(plan: Plan) -> tuple[Plan, str]:
    """The plan with an engine instead of ``auto``, and the reason; unchanged, and "", otherwise."""
    if plan.settings.engine != "auto":
        return plan, ""
    engine, reason = _choose(plan)
    return replace(plan, settings=replace(plan.settings, engine=engine)), reason


def _choose(plan: Plan) -> tuple[Literal["ray", "local"], str]:
    """The engine for a plan, and the reason."""
    s = plan.settings
    if joins_cluster():
        return "ray", f"there is a Ray to join ({HERE})"
    for name in OF_RAY:
        if getattr(s, name) != RUN[name].default:
            return "ray", f"{name} is given ({HERE})"
    if in_use():
        if gets_place(s.client_cpus):
            return "ray", f"this process uses Ray already ({HERE})"
        return "local", "the Ray of this process has no free processor (engine=ray waits for one)"
    try:
        on_local = seconds_of(plan)
    # an estimate refuses no run: the model was measured on the whole test split before
    except Exception as error:
        reason = f"the work is not known, the model fails on {ROWS} rows of test: {describe(error)}"
        return "local", reason
    workers = min(processors(), s.clients_per_round)
    messages = plan.schedule.rounds * s.clients_per_round
    on_ray = START + (on_local + MESSAGE * messages) / workers
    seconds = "less than 1"
    if on_local >= 1:  # with one significant digit
        seconds = f"about {round(on_local, -math.floor(math.log10(on_local))):g}"
    work = f"{seconds} s of work for clients"
    if on_ray < on_local:
        return "ray", f"{workers} processors share {work} ({HERE})"
    return "local", f"{work} does not pay for Ray's start (engine=ray starts it)"


def seconds_of(plan: Plan) -> float:
    """Seconds that all clients of the run take, one after the other, on a usual processor.

    A step takes STEP + B 6 M / (SPEED threads): B rows with M multiplications each, of two
    operations each, in the forward pass and twice as many in the backward pass. The engine is in
    files that everybody may see. So the estimate uses public numbers: B is what the server divides
    by, never the batch of a client whose size is secret.
    """
    s, local = plan.settings, plan.local
    rows = local.expected_batch * s.multiplicity
    step = STEP + rows * 6 * multiplications(plan) / (SPEED * s.threads)
    return plan.schedule.rounds * s.clients_per_round * (CLIENT + local.steps * step)


@torch.no_grad()
def multiplications(plan: Plan) -> float:
    """Multiplications by weights in one forward pass of an example: the mean of a few public rows.

    A weight matrix with n rows is applied (numbers of the output of an example) / n times.
    """
    total = [0.0]

    def count(layer: nn.Module, _: object, result: object) -> None:
        output = result
        if isinstance(result, dict | tuple):
            output = next(iter(result.values() if isinstance(result, dict) else result), None)
        if not isinstance(output, Tensor) or isinstance(layer, nn.Embedding):
            return
        # matrices of several gates or projections, one below the other, have more rows
        is_stacked = isinstance(layer, nn.RNNBase | nn.MultiheadAttention)
        numbers = output.numel() / len(rows)
        matrices = [p for p in layer.parameters(recurse=False) if p.ndim > 1]
        total[0] += sum(
            W.numel() * max(1.0, numbers / (output.shape[-1] if is_stacked else len(W)))
            for W in matrices
        )

    test, model = plan.workload.test, plan.initial.model().eval()
    rows = spaced(len(test), ROWS)
    for layer in model.modules():
        layer.register_forward_hook(count)
    with restored(plan.workload.models, data=True), own_draws(plan.device):
        model_outputs(model, to_device(test.batch(rows)[0], plan.device))
    return total[0]
