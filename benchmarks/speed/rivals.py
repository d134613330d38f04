"""The same step in other libraries: Opacus with hooks and with ghost norms, and torch.func.

Each clips per example and adds noise as its users do: Opacus by its own optimizers, torch.func by a
plain generator.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim import SGD

from benchmarks.speed.arms import LEARNING_RATE, Step
from benchmarks.speed.subjects import Subject, losses

CLIP_NORM = NOISE = 1.0


def opacus_hooks(subject: Subject) -> Step:
    """Opacus' GradSampleModule and DPOptimizer: every per-example gradient in full."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(subject.build(), loss_reduction="sum")
    optimizer = DPOptimizer(
        _sgd(model),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(subject.targets),
        loss_reduction="sum",
    )

    def step() -> None:
        losses(model(subject.inputs), subject.targets).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def opacus_ghost(subject: Subject) -> Step:
    """Opacus' fast gradient clipping with ghost norms: two backward passes, no per-example
    gradient.
    """
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        subject.build(), max_grad_norm=CLIP_NORM, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = DPOptimizerFastGradientClipping(
        _sgd(model),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(subject.targets),
        loss_reduction="mean",
    )
    criterion = DPLossFastGradientClipping(
        model, optimizer, nn.CrossEntropyLoss(reduction="mean"), "mean"
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        criterion(model(subject.inputs), subject.targets).backward()
        optimizer.step()

    return step


def func_vmap(subject: Subject) -> Step:
    """torch.func: vmap of grad, clip, sum, noise, SGD."""
    model = subject.build()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def loss(weights: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        return losses(
            functional_call(model, weights, (example.unsqueeze(0),)), target.unsqueeze(0)
        ).sum()

    per_example = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        gradients = per_example(
            {n: p.detach() for n, p in trained.items()}, subject.inputs, subject.targets
        )
        _descend(trained, _clipped_and_noisy(list(gradients.values())), len(subject.targets))

    return step


def _sgd(model: nn.Module) -> SGD:
    return SGD([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)


def _clipped_and_noisy(gradients: list[Tensor]) -> list[Tensor]:
    squares = torch.stack([g.flatten(1).norm(dim=1).square() for g in gradients])
    factors = (CLIP_NORM / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1)
    sums = [(factors @ g.flatten(1)).view(g.shape[1:]) for g in gradients]
    return [total + NOISE * CLIP_NORM * torch.randn_like(total) for total in sums]


def _descend(trained: dict[str, nn.Parameter], noisy: list[Tensor], batch: int) -> None:
    with torch.no_grad():
        for p, gradient in zip(trained.values(), noisy, strict=True):
            p.add_(gradient, alpha=-LEARNING_RATE / batch)


RIVALS: dict[str, Callable[[Subject], Step]] = {
    "opacus hooks": opacus_hooks,
    "opacus ghost": opacus_ghost,
    "vmap": func_vmap,
}
