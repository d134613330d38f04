"""SynFlow: pruning by synaptic flow, without data (Tanaka et al. 2020; Adamczewski et al. 2023, Eq.
2).

    R = 1^T (prod_l abs(W_l)) 1        score of a weight: W * dR/dW, on abs(W)

R is the output of a linear network for an input of ones. It is the model with magnitudes for
weights, without biases, with the identity for every pointwise activation, and with the scale alone
for every norm. Only shapes of inputs are read; everything is public.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedlsg.gradients import StandardizedConv2d, trainable
from fedlsg.masks.pruning import Masks, Prune, keep_random, keep_top, prunable

ITERATIONS = 100
"""Iterations of pruning, as in the paper."""
IDENTITIES: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.tanh,
        torch.sigmoid,
        torch.relu,
        torch.Tensor.tanh,
        torch.Tensor.sigmoid,
        torch.Tensor.relu,
        torch.Tensor.relu_,
        torch.Tensor.tanh_,
        torch.Tensor.sigmoid_,
        torch.relu_,
        torch.tanh_,
        torch.sigmoid_,
        F.relu,
        F.relu_,
        F.gelu,
        F.silu,
        F.elu,
        F.selu,
        F.leaky_relu,
        F.mish,
        F.softplus,
        F.hardswish,
        F.hardtanh,
        F.relu6,
        F.tanh,
        F.sigmoid,
        F.dropout,
    }
)
SCALE_POSITIONS: dict[Callable[..., Any], int] = {
    F.group_norm: 2,
    F.layer_norm: 2,
    F.batch_norm: 3,
}
"""Norms, with the position of the scale among their arguments."""


class Linearised(TorchFunctionMode):
    """A mode in which pointwise activations return their input, and norms multiply by their scale.

    The paper's code keeps the statistics of batch norms: at the start they are mean 0 and variance
    1, which is the scale alone. A norm over the example itself would not depend on the size of
    weights, and every score would be 0.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        position = SCALE_POSITIONS.get(func)
        if position is None and func not in IDENTITIES:
            return func(*args, **named)
        x = args[0] if args else named["input"]
        if position is None:
            return x
        scale = args[position] if len(args) > position else named.get("weight")
        if scale is None:
            return x
        # channels are the second axis of x; a layer norm has its units last
        return x * (scale if func is F.layer_norm else scale.reshape(-1, *[1] * (x.ndim - 2)))


def keep_public(model: nn.Module, prune: Prune, probe: object, *, seed: int) -> Masks:
    """Kept weights by random or SynFlow pruning, which read no data."""
    if prune.kind == "synflow":
        return keep_synflow(model, probe, prune.rate)
    assert prune.kind == "random"
    return keep_random(trainable(model), prune.rate, seed=seed)


def keep_synflow(
    model: nn.Module, probe: object, rate: float, *, iterations: int = ITERATIONS
) -> Masks:
    """Kept weights of the trainable weight tensors after iterative SynFlow pruning at ``rate``.

    ``probe`` is any batch of the model's inputs: its shape is read, its values are not. In
    iteration k of n the share (1 - p)^(k / n) of the weights is left, those of highest score among
    all layers; the scores are then computed again on the weights that are left, in double
    precision. At least one weight of every tensor stays.
    Raises ValueError for inputs that are not one real-valued tensor: there is no "input of ones"
    for words.
    """
    if not isinstance(probe, Tensor) or not probe.is_floating_point():
        raise ValueError(
            "SynFlow feeds an input of ones: it needs real-valued inputs; choose prune='random' "
            "for words"
        )
    may = prunable({name: p.detach() for name, p in trainable(model).items()})
    kept = {name: torch.ones(mask.shape, dtype=torch.bool) for name, mask in may.items()}
    linear = linear_model(model)
    ones = torch.ones(
        1, *probe.shape[1:], dtype=torch.float64, device=next(model.parameters()).device
    )
    for k in range(1, iterations + 1):
        scores = flow(linear, ones, kept)
        left = {name: mask.cpu() & kept[name] for name, mask in may.items()}
        target = 1 - (1 - rate) ** (k / iterations)
        lowest = {name: score.masked_fill(~left[name], -1.0) for name, score in scores.items()}
        kept = keep_top(lowest, may, target)
    return kept


def linear_model(model: nn.Module) -> nn.Module:
    """A copy in double precision with magnitudes for weights and scales, and 0 for every bias.

    Standardised convolutions become plain ones: a filter whose mean is taken off would carry a flow
    of 0. Fixed features, such as scattering, give ones.
    """
    linear = copy.deepcopy(model).double().eval()
    for module in linear.modules():
        if isinstance(module, StandardizedConv2d):
            module.__class__ = nn.Conv2d  # type: ignore[assignment]
    with torch.no_grad():
        for name, parameter in linear.named_parameters():
            parameter.copy_(
                torch.zeros_like(parameter) if name.endswith("bias") else parameter.abs()
            )
    for module in linear.modules():
        if any(p.ndim >= 2 for p in module.parameters(recurse=False)):
            module.register_forward_pre_hook(ones_before_all_weights)
    return linear


def ones_before_all_weights(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A hook that gives a layer an input of ones, if no weight has been applied to its input yet.

    Fixed features before the first weights are skipped so: the band-pass filters of a scattering
    transform give 0 for an image of ones, and every later weight would score 0.
    """
    untouched = bool(args) and isinstance(args[0], Tensor) and not args[0].requires_grad
    return (torch.ones_like(args[0]), *args[1:]) if untouched else None


def flow(linear: nn.Module, ones: Tensor, kept: Masks) -> dict[str, Float[Tensor, "*shape"]]:
    """Scores W * dR/dW of the kept weights, on the CPU; 0 for the others."""
    tensors = {name: p.detach().clone().requires_grad_() for name, p in linear.named_parameters()}
    for name, keep in kept.items():
        tensors[name] = (tensors[name] * keep.to(tensors[name])).requires_grad_()
    with Linearised(), torch.enable_grad():
        R = torch.func.functional_call(linear, tensors, (ones,)).sum()
    gradients = torch.autograd.grad(R, [tensors[name] for name in kept], allow_unused=True)
    scores = {}
    for name, gradient in zip(kept, gradients, strict=True):
        W = tensors[name].detach()
        scores[name] = (torch.zeros_like(W) if gradient is None else gradient * W).cpu()
    return scores
