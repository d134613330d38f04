"""``engine=auto``: which engine a run takes. Weights, payloads and ledgers are the same on both;
only time differs.

Ray takes seconds to start and to end, and some milliseconds more for each message. It saves the
work of the clients that run at the same time. Where the numbers below come from: ``fedlsg docs
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
"""Seconds of a client's turn, and of a private step, without arithmetic."""
SPEED = 25e9
"""Operations a second and thread in a private step."""
ROWS = 4
HERE = "engine=local runs all clients in this process"


def with_engine(plan: Plan) -> tuple[Plan, str]:
    """The plan with an engine in place of ``auto``, and why, in words; as it is, and "", where an
    engine was given.
    """
    s = plan.settings
    if s.engine != "auto":
        return plan, ""
    if joins_cluster():
        return _with(plan, "ray"), f"there is a Ray to join ({HERE})"
    if asked := [name for name in OF_RAY if getattr(s, name) != RUN[name].default]:
        return _with(plan, "ray"), f"{asked[0]} is given ({HERE})"
    if in_use():
        if gets_place(s.client_cpus):
            return _with(plan, "ray"), f"this process uses Ray already ({HERE})"
        return _with(plan, "local"), (
            "the Ray of this process has no free processor (engine=ray waits for one)"
        )
    try:
        here = seconds_of(plan)
    # an estimate refuses no run: the model was measured on the whole test split before
    except Exception as error:
        return _with(
            plan, "local"
        ), f"the work is not known, the model fails on {ROWS} rows of test: {describe(error)}"
    workers = min(processors(), s.clients_per_round)
    there = START + (here + MESSAGE * plan.schedule.rounds * s.clients_per_round) / workers
    size = f"about {round(here, -math.floor(math.log10(here))):g}" if here >= 1 else "less than 1"
    work = f"{size} s of work for clients"
    if there < here:
        return _with(plan, "ray"), f"{workers} processors share {work} ({HERE})"
    return _with(plan, "local"), f"{work} does not pay for Ray's start (engine=ray starts it)"


def seconds_of(plan: Plan) -> float:
    """Seconds that all clients of the run take, one after the other, on a usual processor.

    The engine is in files that everybody may see. So it follows from public numbers: the batch is
    the one that the server divides by, never that of a client whose size is secret.
    """
    s, local = plan.settings, plan.local
    rows = local.expected_batch * s.multiplicity
    step = STEP + rows * 6 * multiplications(plan) / (SPEED * s.threads)
    return plan.schedule.rounds * s.clients_per_round * (CLIENT + local.steps * step)


@torch.no_grad()
def multiplications(plan: Plan) -> float:
    """Multiplications by weights in one forward pass of an example, the mean of a few public
    rows.
    """
    total = [0.0]

    def count(layer: nn.Module, _: object, result: object) -> None:
        first = (
            next(iter(result.values() if isinstance(result, dict) else result), None)
            if isinstance(result, dict | tuple)
            else result
        )
        if isinstance(first, Tensor) and not isinstance(layer, nn.Embedding):
            weights = [p for p in layer.parameters(recurse=False) if p.ndim > 1]
            # weights of several, one below the other
            of_gates = isinstance(layer, nn.RNNBase | nn.MultiheadAttention)
            each = first.numel() / len(rows)
            wide = [first.shape[-1] if of_gates else len(w) for w in weights]
            total[0] += sum(
                w.numel() * max(1.0, each / n) for w, n in zip(weights, wide, strict=True)
            )

    test, model = plan.workload.test, plan.initial.model().eval()
    rows = spaced(len(test), ROWS)
    for layer in model.modules():
        layer.register_forward_hook(count)
    with restored(plan.workload.models, data=True), own_draws(plan.device):
        model_outputs(model, to_device(test.batch(rows)[0], plan.device))
    return total[0]


def _with(plan: Plan, engine: Literal["ray", "local"]) -> Plan:
    return replace(plan, settings=replace(plan.settings, engine=engine))
