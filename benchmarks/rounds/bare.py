"""The bare loops: the same job in plain PyTorch, without messages, ledgers, files or evaluation.

``private`` computes a private round with the library's own functions: one frame, Poisson batches,
clipped sums, noise, one server step. ``floor`` is its arithmetic by hand. ``plain`` is hand-written
federated SGD: shuffled batches, no privacy. ``opacus``: a private round with Opacus.
"""

import hashlib
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from benchmarks.rounds import jobs
from fedlsg.config.selection import UNIFORM
from fedlsg.gradients import trainable
from fedlsg.method import aggregate, client_step, server_step
from fedlsg.noise import add_gaussian
from fedlsg.randomness import secret_stream
from fedlsg.simulations.planning.plan import Plan
from fedlsg.state import PublicState, ServerState

Round = Callable[[int], object]


def private(plan: Plan) -> Round:
    """One round, by number."""
    public = PublicState.start(
        plan.initial.model(), plan.method, plan.schedule, seed=0, classifier="classifier"
    )
    state = ServerState(public, divisor=plan.divisor)
    model = public.model
    train = plan.workload.train

    def round_(number: int) -> None:
        frame, values = state.frame(), []
        for client in UNIFORM.select(len(plan.parts), jobs.COHORT, round=number, seed=0):
            part = plan.parts[client]
            values.append(
                client_step(
                    model,
                    lambda rows, part=part: train.batch(part[rows]),
                    lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
                    frame=frame,
                    mechanism=plan.terms[client].mechanism(plan.method.mechanism),
                    local=plan.local,
                    num_examples=len(part),
                    sampler=secret_stream(),
                    noise=secret_stream(),
                    charge=lambda: None,
                )
            )
        server_step(
            model,
            state.optimizer,
            state.scheduler,
            aggregate(values),
            frame=frame,
            divisor=plan.divisor,
            server=plan.method.server,
        )
        state.round, state.updates = state.round + 1, state.updates + 1

    return round_


def floor(plan: Plan, *, payloads: bool) -> Round:
    """One round, by number: what a private round of an MLP computes, by hand, on all rows, 12
    clients a pass.

    Gradients and norms as factors, one product a layer for all sums, the secret noise of each
    client, the sum, SGD. No check, no ledger, no message; ``payloads``: packed, hashed, and hashed
    again where they arrive.
    """
    model, train, mechanism = plan.initial.model(), plan.workload.train, plan.method.mechanism
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
            sums = [
                t.flatten(1)
                for g, x in scaled
                for t in (g.mT @ x.view(len(g), -1, x.shape[1]), g.sum(1))
            ]
            for client, own in zip(clients, torch.cat(sums, 1), strict=True):
                std = plan.terms[client].mechanism(mechanism).noise_std
                noisy = add_gaussian(own.double(), std, secret_stream())
                if payloads:
                    body = noisy.float().numpy().tobytes()
                    assert hashlib.sha256(body).digest() == hashlib.sha256(body).digest()
                total += noisy
        moved = total.float().split([p.numel() for p in parameters])
        for p, change in zip(parameters, moved, strict=True):
            p -= plan.method.server.learning_rate / plan.divisor * change.view_as(p)

    return round_


def averaged(
    plan: Plan, parameters: Sequence[torch.nn.Parameter], train: Callable[[int], None]
) -> Round:
    """One round, by number: each client trains from the round's weights, and their mean change is
    taken.
    """

    def round_(number: int) -> None:
        start = [p.detach().clone() for p in parameters]
        total = [torch.zeros_like(p) for p in parameters]
        for client in UNIFORM.select(len(plan.parts), jobs.COHORT, round=number, seed=0):
            train(client)
            with torch.no_grad():
                for p, at, change in zip(parameters, start, total, strict=True):
                    change += p - at
                    p.copy_(at)
        with torch.no_grad():
            for p, change in zip(parameters, total, strict=True):
                p += change / jobs.COHORT

    return round_


def plain(plan: Plan) -> Round:
    """One round, by number."""
    model = plan.initial.model()
    parameters = list(trainable(model).values())
    optimizer = torch.optim.SGD(parameters, lr=plan.local.learning_rate)

    def train(client: int) -> None:
        part = plan.parts[client]
        for rows in part[torch.randperm(len(part))].split(jobs.BATCH):
            inputs, targets = plan.workload.train.batch(rows)
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return averaged(plan, parameters, train)


def opacus(plan: Plan) -> Round:
    """One private round, by number, with Opacus (1.5) for each client: hooks, clip, noise, FedSGD.

    The fastest form that was found: one GradSampleModule for all clients and rounds, an optimizer
    for each client, and noise from torch's own generator (``secure_mode`` needs a package of its
    own, and is slower).
    Raises ImportError if Opacus is not installed.
    """
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(plan.initial.model(), loss_reduction="sum")
    parameters = list(model.parameters())

    def train(client: int) -> None:
        part = plan.parts[client]
        optimizer = DPOptimizer(
            torch.optim.SGD(parameters, lr=plan.local.learning_rate),
            loss_reduction="sum",
            noise_multiplier=plan.terms[client].noise_multiplier,
            max_grad_norm=plan.method.mechanism.clip_norm,
            expected_batch_size=max(1, round(plan.local.expected_batch)),
        )
        for _ in range(plan.local.steps):
            inputs, targets = plan.workload.train.batch(
                part[torch.rand(len(part)) < plan.local.sample_rate]
            )
            F.cross_entropy(model(inputs), targets, reduction="sum").backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return averaged(plan, parameters, train)
