"""The arms of the step benchmark: the plain step, its floor, and fedlsg's private steps.

A private step is everything that a client and the server do between two values of the weights, with
the library's own functions: decompose, mask, per-example gradients, clip, sum, noise, divide, Eq.
3, SGD.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.optim import SGD

from benchmarks.speed.subjects import Subject, losses
from fedlsg import strategies
from fedlsg.gradients import FLOAT32, Precision, trainable
from fedlsg.method import LocalTraining, Schedule, aggregate, client_step, server_step
from fedlsg.randomness import secret_stream
from fedlsg.state import PublicState
from fedlsg.training import make_optimizer

Step = Callable[[], object]
LEARNING_RATE = 1e-4
MIXED = Precision(precision="bfloat16")
STORED = Precision(activation_storage="bfloat16")
BOTH = Precision(precision="bfloat16", activation_storage="bfloat16")


def plain(subject: Subject, precision: Precision = FLOAT32) -> Step:
    """Forward, backward, SGD: the ordinary step without any privacy, in the precision of
    ``precision``.
    """
    model = subject.build()
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)

    def step() -> None:
        precision.losses(
            lambda: model(subject.inputs), losses, subject.targets, subject.targets
        ).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def floor(subject: Subject) -> Step:
    """Forward, and the gradients of all activations after the first trained layer, without
    gradients of weights.
    """
    model = subject.build()
    first = next(
        m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))
    )
    model.requires_grad_(False)
    first.register_forward_hook(lambda _module, _args, output: output.requires_grad_())

    def step() -> None:
        losses(model(subject.inputs), subject.targets).sum().backward()

    return step


def private(
    subject: Subject,
    recipe: str,
    *,
    rank: int = 8,
    sparsity: float = 0.0,
    precision: Precision = FLOAT32,
) -> Step:
    """A round of fedlsg with one client that has the whole batch."""
    model = subject.build()
    own = strategies.own_settings(recipe)
    method = strategies.recipe(
        recipe,
        **{key: value for key, value in {"rank": rank, "sparsity": sparsity}.items() if key in own},
        learning_rate=LEARNING_RATE,
    )
    batch = len(subject.targets)
    public = PublicState.start(
        model, method, Schedule(rounds=1000), seed=0, classifier=subject.classifier
    )
    optimizer, scheduler = make_optimizer(
        trainable(model),
        replace(method.server, momentum=0.0),
        updates=1000,
        classifier=subject.classifier,
    )
    local = LocalTraining(microbatch_size=batch, expected_batch=float(batch), precision=precision)
    noise, sampler = secret_stream(), secret_stream()
    rounds = iter(range(1, 1000))

    def step() -> None:
        now = next(rounds)
        frame = public.frame(now, updates=now)
        values = client_step(
            model,
            lambda rows: (subject.inputs[rows], subject.targets[rows]),
            losses,
            frame=frame,
            mechanism=method.mechanism,
            local=local,
            num_examples=batch,
            sampler=sampler,
            noise=noise,
            charge=lambda: None,
        )
        server_step(
            model,
            optimizer,
            scheduler,
            aggregate([values]),
            frame=frame,
            divisor=float(batch),
            server=method.server,
        )

    return step


OURS: dict[str, Callable[[Subject], Step]] = {
    "plain": plain,
    "floor": floor,
    "lsg p=0": lambda subject: private(subject, "lsg"),
    "lsg p=.5": lambda subject: private(subject, "lsg", sparsity=0.5),
    "rgp": lambda subject: private(subject, "rgp"),
    "dpsgd": lambda subject: private(subject, "dpsgd"),
    "plain, bfloat16": lambda subject: plain(subject, MIXED),
    "lsg p=0, bfloat16": lambda subject: private(subject, "lsg", precision=MIXED),
    "dpsgd, bfloat16": lambda subject: private(subject, "dpsgd", precision=MIXED),
    "lsg p=0, stored in bfloat16": lambda subject: private(subject, "lsg", precision=STORED),
    "lsg p=.5, stored in bfloat16": lambda subject: private(
        subject, "lsg", sparsity=0.5, precision=STORED
    ),
    "dpsgd, stored in bfloat16": lambda subject: private(subject, "dpsgd", precision=STORED),
    "lsg p=0, both": lambda subject: private(subject, "lsg", precision=BOTH),
}

ON_REQUEST: dict[str, Callable[[Subject], Step]] = {
    "plain, compiled": lambda subject: plain(compiled(subject))
}
"""Not measured unless they are asked for: compiling takes minutes."""


def compiled(subject: Subject) -> Subject:
    """The subject with a model that torch compiles in its first pass."""

    def build() -> nn.Module:
        model = subject.build()
        model.compile()
        return model

    return replace(subject, build=build)


def in_channels_last(subject: Subject) -> Subject:
    """The subject with images and kernels in channels-last memory; unchanged if it has none."""
    if subject.inputs.ndim != 4:
        return subject

    def build() -> nn.Module:
        return subject.build().to(memory_format=torch.channels_last)

    return replace(
        subject, build=build, inputs=subject.inputs.contiguous(memory_format=torch.channels_last)
    )
