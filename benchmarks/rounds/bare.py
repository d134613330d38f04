"""The bare loops: the same job in plain PyTorch, without messages, ledgers, files or evaluation.

``private`` computes a private round with the library's own functions: one frame, Poisson batches, clipped
sums, noise, one server step. ``plain`` is hand-written federated SGD: shuffled batches, no privacy.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.rounds import jobs
from fedlsg.gradients import trainable
from fedlsg.method import aggregate, client_step, server_step
from fedlsg.randomness import secret_stream
from fedlsg.state import PublicState, ServerState, select_clients
from simulations.plan.plan import Plan

Round = Callable[[int], object]


def private(plan: Plan) -> Round:
    """One round, by number."""
    public = PublicState.start(plan.build_model(), plan.method, plan.schedule, seed=0, classifier="classifier")
    state, model, train = ServerState(public, divisor=plan.divisor), public.model, plan.workload.train

    def round_(number: int) -> None:
        frame, values = state.frame(), []
        for client in select_clients(len(plan.parts), jobs.COHORT, round=number, seed=0):
            part = plan.parts[client]
            values.append(
                client_step(
                    model, lambda rows, part=part: train.batch(part[rows]),
                    lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
                    frame=frame, mechanism=plan.terms[client].mechanism(plan.method.mechanism), local=plan.local,
                    num_examples=len(part), sampler=secret_stream(), noise=secret_stream(), charge=lambda: None,
                )
            )  # fmt: skip
        server_step(
            model, state.optimizer, state.scheduler, aggregate(values), frame=frame, divisor=plan.divisor,
            server=plan.method.server,
        )  # fmt: skip
        state.round, state.updates = state.round + 1, state.updates + 1

    return round_


def plain(plan: Plan) -> Round:
    """One round, by number."""
    model, train = plan.build_model(), plan.workload.train
    parameters = list(trainable(model).values())
    optimizer = torch.optim.SGD(parameters, lr=plan.local.learning_rate)

    def round_(number: int) -> None:
        start = [p.detach().clone() for p in parameters]
        total = [torch.zeros_like(p) for p in parameters]
        for client in select_clients(len(plan.parts), jobs.COHORT, round=number, seed=0):
            part = plan.parts[client]
            for rows in part[torch.randperm(len(part))].split(jobs.BATCH):
                inputs, targets = train.batch(rows)
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            with torch.no_grad():
                for p, at, change in zip(parameters, start, total, strict=True):
                    change += p - at
                    p.copy_(at)
        with torch.no_grad():
            for p, change in zip(parameters, total, strict=True):
                p += change / jobs.COHORT

    return round_
