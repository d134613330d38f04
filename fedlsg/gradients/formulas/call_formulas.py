"""Gradients of layers that are a function of one call, in the form that ``register_layer`` takes.

Symbols: x the layer's input, g the gradient at its output; sums are over the positions of one
example.
    Embedding     G[v] = sum of g where the row v was read          (``RowGradients``)
    EmbeddingBag  as Embedding, with g / T for a mean over T rows, and g at the largest row for max
    convolutions  of 1 to 3 dimensions, with groups: the examples as groups of one call
    RMSNorm       d scale = sum g x rstd,  rstd = (mean(x^2) + eps)^(-1/2)
    InstanceNorm  as GroupNorm with one channel a group
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.rnn import pad_sequence

from fedlsg.gradients.formulas.embedding_rows import RowGradients

Gradients = dict[str, Any]
"""Gradients by the module's own parameter names: (B, *shape) tensors, or ``RowGradients``."""


def embedding(module: nn.Embedding, inputs: tuple[Tensor, ...], g: Tensor) -> Gradients:
    """The rows that occur, of row numbers (B, *)."""
    return {"weight": RowGradients(module, g, inputs[0], g._version, module.padding_idx)}  # type: ignore[arg-type]


def convolution(module: _ConvNd, inputs: tuple[Tensor, ...], g: Tensor) -> Gradients:
    """Convolutions of 1 to 3 dimensions, transposed ones too, by one call of autograd's kernel.

    Any groups and padding. With B times the groups, the channels of example b are groups of their
    own, so that its kernel has its own gradient.
    """
    x, padding, batch = inputs[0], module.padding, len(g)
    if module.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x, padding = F.pad(x, module._reversed_padding_repeated_twice, mode), (0,) * (g.ndim - 2)
    output_padding = [0] * len(padding)
    if module.transposed:  # the call in forward may have asked for another output size
        stride, dilation, kernel = module.stride, module.dilation, module.kernel_size
        sizes = zip(g.shape[2:], x.shape[2:], stride, padding, dilation, kernel, strict=True)
        output_padding = [
            out - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for out, n, s, p, d, k in sizes
        ]
    _, weight, _ = torch.ops.aten.convolution_backward(
        g.reshape(1, -1, *g.shape[2:]),
        x.reshape(1, -1, *x.shape[2:]),
        g.new_empty(batch * len(module.weight), *module.weight.shape[1:]),
        None,
        module.stride,
        padding,
        module.dilation,
        module.transposed,
        output_padding,
        batch * module.groups,
        [False, True, False],  # of input, weight and bias: the gradient of the weight alone
    )
    return {"weight": weight.view(batch, *module.weight.shape), "bias": g.flatten(2).sum(2)}


def embedding_bag(module: nn.EmbeddingBag, inputs: tuple[Any, ...], g: Tensor) -> Gradients:
    """The rows that occur in each bag.

    inputs: row numbers (B, T), or those of all bags with the place where each bag starts; weights
        of the rows.
    """
    ids = inputs[0]
    weights = inputs[2] if len(inputs) > 2 else None
    outside = torch.zeros_like(ids, dtype=torch.bool)  # places that are no rows of the bag
    if ids.ndim == 1:
        ends = inputs[1].tolist()
        if not module.include_last_offset:
            ends.append(len(ids))
        sizes = [stop - start for start, stop in pairwise(ends)]
        outside = pad_sequence(outside.split(sizes), batch_first=True, padding_value=True)
        if weights is not None:
            weights = pad_sequence(weights.split(sizes), batch_first=True)
        ids = pad_sequence(ids.split(sizes), batch_first=True)
    if module.padding_idx is not None:
        outside = outside | (ids == module.padding_idx)
    g_rows = g.unsqueeze(1).expand(-1, ids.shape[1], -1)  # gradient at each row that was read
    if module.mode == "mean":
        g_rows = g_rows / (~outside).sum(1).clamp_min(1).view(-1, 1, 1)
    elif module.mode == "max":
        rows = module.weight.detach()[ids].masked_fill(outside.unsqueeze(2), -torch.inf)
        g_rows = g_rows * torch.zeros_like(rows).scatter(1, rows.argmax(1, keepdim=True), 1)
    elif weights is not None:
        g_rows = g_rows * weights.unsqueeze(2)
    ids = ids.masked_fill(outside, -1)
    return {"weight": RowGradients(module, g_rows, ids, g_rows._version, -1)}  # type: ignore[arg-type]


def rms_norm(module: nn.RMSNorm, inputs: tuple[Tensor, ...], g: Tensor) -> Gradients:
    """RMSNorm on (B, *, *normalized_shape)."""
    x, shape = inputs[0], module.normalized_shape
    eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps
    axes = tuple(range(-len(shape), 0))
    scale = g * x * (x.square().mean(axes, keepdim=True) + eps).rsqrt()
    return {"weight": scale.reshape(len(g), -1, *shape).sum(1)}


def instance_norm(module: _InstanceNorm, inputs: tuple[Tensor, ...], g: Tensor) -> Gradients:
    """InstanceNorm1d, 2d and 3d on (B, c, *), without running statistics."""
    x, g = inputs[0].flatten(2), g.flatten(2)
    variance, mean = torch.var_mean(x, 2, correction=0, keepdim=True)
    return {"weight": (g * (x - mean) * (variance + module.eps).rsqrt()).sum(2), "bias": g.sum(2)}
