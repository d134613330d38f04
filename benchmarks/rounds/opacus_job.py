"""The job's private round with Opacus (1.5) for each client, in plain PyTorch: hooks, clip, noise, FedSGD.

The fastest form that was found: one GradSampleModule for all clients and rounds, an optimizer for each client, and
noise from torch's own generator (``secure_mode`` needs a package of its own, and is slower).
"""

import torch
import torch.nn.functional as F

from benchmarks.rounds import jobs
from benchmarks.rounds.bare import Round
from fedlsg.setting.selection import UNIFORM
from simulations.plan.plan import Plan


def private(plan: Plan) -> Round:
    """One round, by number. Raises ImportError if Opacus is not installed."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    train, mechanism, rate = plan.workload.train, plan.method.mechanism, plan.local.learning_rate
    model = GradSampleModule(plan.build_model(), loss_reduction="sum")
    parameters = list(model.parameters())

    def round_(number: int) -> None:
        start = [p.detach().clone() for p in parameters]
        total = [torch.zeros_like(p) for p in parameters]
        for client in UNIFORM.select(len(plan.parts), jobs.COHORT, round=number, seed=0):
            part = plan.parts[client]
            optimizer = DPOptimizer(
                torch.optim.SGD(parameters, lr=rate), noise_multiplier=plan.terms[client].noise_multiplier,
                max_grad_norm=mechanism.clip_norm, expected_batch_size=max(1, round(plan.local.expected_batch)),
                loss_reduction="sum",
            )  # fmt: skip
            for _ in range(plan.local.steps):
                inputs, targets = train.batch(part[torch.rand(len(part)) < plan.local.sample_rate])
                F.cross_entropy(model(inputs), targets, reduction="sum").backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for p, at, change in zip(parameters, start, total, strict=True):
                    change += p - at
                    p.copy_(at)
        with torch.no_grad():
            for p, change in zip(parameters, total, strict=True):
                p += change / jobs.COHORT

    return round_
