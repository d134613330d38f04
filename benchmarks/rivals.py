"""The same step in other libraries: Opacus with hooks and with ghost norms, torch.func, RGP's reparametrised forward.

Each clips per example and adds noise as its users do: Opacus by its own optimizers, the other two by a plain generator.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim import SGD

from benchmarks.arms import LEARNING_RATE, Step
from benchmarks.reparametrised import reparametrise
from benchmarks.subjects import Subject, losses
from fedlsg.lowrank import add_reconstruction, decompose

CLIP_NORM = NOISE = 1.0


def opacus_hooks(subject: Subject) -> Step:
    """Opacus' GradSampleModule and DPOptimizer: every per-example gradient in full."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(subject.build(), loss_reduction="sum")
    optimizer = DPOptimizer(
        _sgd(model), noise_multiplier=NOISE, max_grad_norm=CLIP_NORM, expected_batch_size=len(subject.targets),
        loss_reduction="sum",
    )  # fmt: skip

    def step() -> None:
        losses(model(subject.inputs), subject.targets).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def opacus_ghost(subject: Subject) -> Step:
    """Opacus' fast gradient clipping with ghost norms: two backward passes, no per-example gradient."""
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        subject.build(), max_grad_norm=CLIP_NORM, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = DPOptimizerFastGradientClipping(
        _sgd(model), noise_multiplier=NOISE, max_grad_norm=CLIP_NORM, expected_batch_size=len(subject.targets),
        loss_reduction="mean",
    )  # fmt: skip
    criterion = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss(reduction="mean"), "mean")

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
        return losses(functional_call(model, weights, (example.unsqueeze(0),)), target.unsqueeze(0)).sum()

    per_example = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        gradients = per_example({n: p.detach() for n, p in trained.items()}, subject.inputs, subject.targets)
        _descend(trained, _clipped_and_noisy(list(gradients.values())), len(subject.targets))

    return step


def rgp_reparametrised(subject: Subject, rank: int = 8) -> Step:
    """RGP as published: W is replaced by (W - L R) + L R in the forward pass, and L and R get per-example gradients.

    Decomposes and takes one Eq. 3 step each time, like fedlsg; uses kernels of fedlsg where they fit, so that the
    reparametrisation is measured, and not another unfold.
    """
    model = subject.build()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    generator = torch.Generator().manual_seed(0)
    step_of = reparametrise(model, subject.classifier, rank)

    def step() -> None:
        carriers = {
            name: decompose(trained[name], rank, generator=generator, power_steps=1) for name in step_of.carried
        }
        gradients = step_of.gradients(subject.inputs, subject.targets, carriers)
        noisy = dict(zip(gradients, _clipped_and_noisy(list(gradients.values())), strict=True))
        scale = -LEARNING_RATE / len(subject.targets)
        with torch.no_grad():
            for name, W in trained.items():
                if name in carriers:
                    L, R = carriers[name]
                    dL, dR = noisy[f"{name}/L"], noisy[f"{name}/R"].flatten(1)
                    add_reconstruction(W, dL, dR, L, R, scale)
                else:
                    W.add_(noisy[name].reshape(W.shape), alpha=scale)

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
    "rgp reparametrised": rgp_reparametrised,
}
