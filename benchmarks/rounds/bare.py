"""The bare loops: the same job in plain PyTorch, without messages, ledgers, files or evaluation.

``private`` computes a private round with the library's own functions: one frame, Poisson batches, clipped
sums, noise, one server step. ``floor`` is its arithmetic by hand. ``plain`` is hand-written federated SGD: shuffled
batches, no privacy.
"""

import hashlib
from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.rounds import jobs
from fedlsg.gradients import trainable
from fedlsg.method import aggregate, client_step, server_step
from fedlsg.randomness import secret_stream
from fedlsg.selection import UNIFORM
from fedlsg.state import PublicState, ServerState
from simulations.plan.plan import Plan

Round = Callable[[int], object]


def private(plan: Plan) -> Round:
    """One round, by number."""
    public = PublicState.start(plan.build_model(), plan.method, plan.schedule, seed=0, classifier="classifier")
    state, model, train = ServerState(public, divisor=plan.divisor), public.model, plan.workload.train

    def round_(number: int) -> None:
        frame, values = state.frame(), []
        for client in UNIFORM.select(len(plan.parts), jobs.COHORT, round=number, seed=0):
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


def floor(plan: Plan, *, payloads: bool) -> Round:
    """One round, by number: what a private round of an MLP computes, by hand, on all rows, 12 clients a pass.

    Gradients and norms as factors, one product a layer for all sums, the secret noise of each client, the sum, SGD. No
    check, no ledger, no message; ``payloads``: packed, hashed, and hashed again where they arrive.
    """
    model, train, mechanism = plan.build_model(), plan.workload.train, plan.method.mechanism
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    parameters = [p for layer in layers for p in (layer.weight, layer.bias)]

    @torch.no_grad()
    def round_(number: int) -> None:
        total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        selected = UNIFORM.select(len(plan.parts), jobs.COHORT, round=number, seed=0)
        for clients in (selected[i : i + 12] for i in range(0, len(selected), 12)):
            x, targets = train.batch(torch.cat([plan.parts[client] for client in clients]))
            inputs = [x.flatten(1)]
            for layer in layers[:-1]:
                inputs.append(layer(inputs[-1]).relu_())
            g = layers[-1](inputs[-1]).softmax(1)
            g[range(len(g)), targets] -= 1
            found = []
            for layer, given in zip(reversed(layers), reversed(inputs), strict=True):
                found.append((g, given))
                g = (g @ layer.weight) * (given > 0)
            found.reverse()
            squares = sum(g.square().sum(1) * (x.square().sum(1) + 1) for g, x in found)
            factors = (mechanism.clip_norm / squares.sqrt()).clamp(max=1).unsqueeze(1)
            scaled = [((g * factors).view(len(clients), -1, g.shape[1]), x) for g, x in found]
            sums = [t.flatten(1) for g, x in scaled for t in (g.mT @ x.view(len(g), -1, x.shape[1]), g.sum(1))]
            for client, own in zip(clients, torch.cat(sums, 1), strict=True):
                std = plan.terms[client].mechanism(mechanism).noise_std
                noisy = own + secret_stream().normal(len(own)).mul_(std)
                if payloads:
                    body = noisy.float().numpy().tobytes()
                    assert hashlib.sha256(body).digest() == hashlib.sha256(body).digest()
                total += noisy
        moved = total.float().split([p.numel() for p in parameters])
        for p, change in zip(parameters, moved, strict=True):
            p -= plan.method.server.learning_rate / plan.divisor * change.view_as(p)

    return round_


def plain(plan: Plan) -> Round:
    """One round, by number."""
    model, train = plan.build_model(), plan.workload.train
    parameters = list(trainable(model).values())
    optimizer = torch.optim.SGD(parameters, lr=plan.local.learning_rate)

    def round_(number: int) -> None:
        start = [p.detach().clone() for p in parameters]
        total = [torch.zeros_like(p) for p in parameters]
        for client in UNIFORM.select(len(plan.parts), jobs.COHORT, round=number, seed=0):
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
