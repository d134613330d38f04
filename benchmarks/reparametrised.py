"""A port of RGP's reparametrised forward pass (Yu et al. 2021): carriers as extra layers inside the model.

    linear        y = x (W - L R)^T + (x R^T) L^T + b
    convolution   y = conv(x; W - L R) + conv(conv(x; R); L, 1x1) + b
Autograd goes through both branches; tensor hooks on u = x R^T and on y give per-example dR and dL. The product W - L R
is formed once a step. Other parameters get their gradients by the same hooks as in fedlsg.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.subjects import losses
from fedlsg.carriers import LowRank, carried_parameters
from fedlsg.gradients import LAYERS, NormGradients

Pairs = Mapping[str, tuple[Tensor, Tensor]]


@dataclass(eq=False)
class Reparametrised:
    """A model whose carried layers compute in two branches."""

    model: nn.Module
    carried: tuple[str, ...]
    pairs: Pairs = field(default_factory=dict)
    found: dict[str, Tensor] = field(default_factory=dict)

    def gradients(self, inputs: Tensor, targets: Tensor, pairs: Pairs) -> dict[str, Tensor]:
        """Per-example gradients by parameter; ``NAME/L`` and ``NAME/R`` where it is carried."""
        self.pairs, self.found = pairs, {}
        losses(self.model(inputs), targets).sum().backward()
        return self.found


def reparametrise(model: nn.Module, classifier: str, rank: int) -> Reparametrised:
    """Replace the forward passes of the carried layers, hook the others, freeze every parameter."""
    carrier = LowRank(rank=rank)
    out = Reparametrised(model, carried_parameters(model, carrier, classifier=classifier))
    for path, module in model.named_modules():
        if f"{path}.weight" in out.carried:
            module.forward = _two_branches(out, path, module)  # type: ignore[method-assign]
        elif type(module) in LAYERS and any(p.requires_grad for p in module.parameters(recurse=False)):
            module.register_forward_hook(_dense(out, path))
    model.requires_grad_(False)
    return out


def _two_branches(out: Reparametrised, path: str, module: nn.Module):  # type: ignore[no-untyped-def]
    formulas = LAYERS[type(module)](module)
    name, has_bias = f"{path}.weight", module.bias is not None

    def forward(x: Tensor) -> Tensor:
        L, R = out.pairs[name]
        residual = (module.weight.flatten(1) - L @ R).view_as(module.weight)
        if isinstance(module, nn.Conv2d):
            R4, L4 = R.view(R.shape[0], *module.weight.shape[1:]), L.view(*L.shape, 1, 1)
            u = F.conv2d(x, R4, None, module.stride, module.padding, module.dilation)
            u = u if u.requires_grad else u.requires_grad_()
            y = F.conv2d(x, residual, module.bias, module.stride, module.padding, module.dilation) + F.conv2d(u, L4)
        else:
            u = F.linear(x, R)
            u = u if u.requires_grad else u.requires_grad_()
            y = F.linear(x, residual, module.bias) + F.linear(u, L)
        kept_x, kept_u = x.detach(), u.detach()

        def on_u(v: Tensor) -> None:
            out.found[f"{name}/R"] = formulas.right(v, kept_x)

        def on_y(g: Tensor) -> None:
            out.found[f"{name}/L"] = formulas.left(g, kept_u)
            if has_bias:
                out.found[f"{path}.bias"] = formulas.bias(g)

        u.register_hook(on_u)
        y.register_hook(on_y)
        return y

    return forward


def _dense(out: Reparametrised, path: str):  # type: ignore[no-untyped-def]
    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x, formulas = args[0].detach(), LAYERS[type(module)](module)
        output = output if output.requires_grad else output.detach().requires_grad_().clone()
        norm = isinstance(formulas, NormGradients)
        statistics = formulas.statistics(x, output.grad_fn) if norm else None

        def on_y(g: Tensor) -> None:
            if norm:
                out.found[f"{path}.weight"], out.found[f"{path}.bias"] = formulas.scale_and_shift(g, x, statistics)
                return
            out.found[f"{path}.weight"] = formulas.weight(g, x)
            if module.bias is not None:
                out.found[f"{path}.bias"] = formulas.bias(g)

        output.register_hook(on_y)
        return output

    return hook
