"""Formulas of layers in the form that ``register_layer`` takes: gradients from one call's inputs and output gradient.

Symbols: B examples, x the input, g the gradient at the output; sums over the positions of one example.
    Embedding    G[v] = sum of g where the row v was read          (``RowGradients``)
    Conv1d       as Conv2d with one row
    RMSNorm      d scale = sum g x rstd,  rstd = (mean(x^2) + eps)^(-1/2)
    InstanceNorm as GroupNorm with one channel a group
    Conv1D of transformers: y = x W + b with W (n, m), dW = x^T g, db = sum g
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from fedlsg.gradients.formulas.conv import kernel_gradient
from fedlsg.gradients.formulas.rows import RowGradients, product

Found = dict[str, Any]
"""Gradients by the module's own parameter names: (B, *shape) tensors or ``Lazy`` ones."""


def embedding(module: nn.Embedding, inputs: tuple[Tensor, ...], g: Tensor) -> Found:
    """The rows that occur, of row numbers (B, *)."""
    return {"weight": RowGradients(module, g, inputs[0], g._version, module.padding_idx)}  # type: ignore[arg-type]


def transposed_linear(module: Any, inputs: tuple[Tensor, ...], g: Tensor) -> Found:
    """Hugging Face's Conv1D on (B, *, n)."""
    bias = g.reshape(len(g), -1, g.shape[-1]).sum(1)
    return {"weight": product(module, inputs[0], g), "bias": bias}


@dataclass(frozen=True)
class OneRow:
    """A 1-d convolution in the attributes of a 2-d one whose images have one row."""

    layer: nn.Conv1d

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.layer, name)
        return value if isinstance(value, str) else ({"padding": 0}.get(name, 1), *value)


def conv1d(module: nn.Conv1d, inputs: tuple[Tensor, ...], g: Tensor) -> Found:
    """Conv1d on (B, c, t), any stride, padding and dilation, one group."""
    conv: Any = OneRow(module)
    weight = kernel_gradient(g.unsqueeze(2), inputs[0].unsqueeze(2), conv)
    return {"weight": weight.reshape(len(g), *module.weight.shape), "bias": g.sum(2)}


def rms_norm(module: nn.RMSNorm, inputs: tuple[Tensor, ...], g: Tensor) -> Found:
    """RMSNorm on (B, *, *normalized_shape)."""
    x, shape = inputs[0], module.normalized_shape
    eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps
    axes = tuple(range(-len(shape), 0))
    scale = g * x * (x.square().mean(axes, keepdim=True) + eps).rsqrt()
    return {"weight": scale.reshape(len(g), -1, *shape).sum(1)}


def instance_norm(module: _InstanceNorm, inputs: tuple[Tensor, ...], g: Tensor) -> Found:
    """InstanceNorm1d, 2d and 3d on (B, c, *), without running statistics."""
    x, g = inputs[0].flatten(2), g.flatten(2)
    variance, mean = torch.var_mean(x, 2, correction=0, keepdim=True)
    return {"weight": (g * (x - mean) * (variance + module.eps).rsqrt()).sum(2), "bias": g.sum(2)}
