"""Gradients of the scale and shift of GroupNorm and LayerNorm for each example.

Symbols: g gradient at the output, x input; mean and rstd = 1 / sqrt(variance + eps) of each group,
from the forward pass; sums over the positions of one example
    d scale = sum g (x - mean) rstd        d shift = sum g
Mean and rstd are read from the node of the forward pass: computing them again would cost a pass.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import Node

Examples = Float[Tensor, "batch *t"]
Channels = Float[Tensor, "batch c *t"]
Statistics = tuple[Tensor, Tensor]
"""mean and rstd."""
Affine = tuple[Tensor, Tensor]
"""d scale and d shift."""


@dataclass(frozen=True)
class GroupNormGradients:
    """GroupNorm on (B, c, *); attributes and methods as in ``layers.LayerGradients``."""

    layer: nn.GroupNorm
    axis: ClassVar[int] = 1
    selects_late: ClassVar[bool] = False

    def batch_first(self, x: Tensor) -> bool:
        return x.ndim >= 2

    def statistics(self, x: Channels, node: Node | None) -> Statistics:
        """Mean and rstd, (B, groups) each, from the node of the output if it has them."""
        if node is not None and node.name() == "NativeGroupNormBackward0":
            return node._saved_result1.detach(), node._saved_result2.detach()  # type: ignore[attr-defined]
        layer, positions = self.layer, x[0, 0].numel()
        batch, channels, groups = x.shape[0], x.shape[1], layer.num_groups
        _, mean, rstd = torch.native_group_norm(
            x, None, None, batch, channels, positions, groups, layer.eps
        )
        return mean, rstd

    def bias(self, g: Channels) -> Float[Tensor, "batch c"]:
        return g.reshape(*g.shape[:2], -1).sum(2)

    def scale_and_shift(self, g: Channels, x: Channels, statistics: Statistics) -> Affine:
        """Both gradients, (B, c) each."""
        mean, rstd = (s.to(x.dtype) for s in statistics)
        batch, channels = x.shape[:2]
        if g.is_contiguous() and x.is_contiguous():
            # One call of autograd's own kernel, which reads contiguous memory only. It sums over
            # the batch, so the channels of all examples are passed as channels of one.
            rows = batch * channels
            positions = x.numel() // rows
            _, scale, shift = torch.ops.aten.native_group_norm_backward(
                g.view(1, rows, -1),
                x.view(1, rows, -1),
                mean.reshape(1, -1),
                rstd.reshape(1, -1),
                x.new_ones(rows),
                1,
                rows,
                positions,
                mean.numel(),
                [False, True, True],
            )
            return scale.view(batch, channels), shift.view(batch, channels)
        mean, rstd = (s.repeat_interleave(channels // s.shape[1], 1) for s in (mean, rstd))
        shift, products = g.flatten(2).sum(2), (g * x).flatten(2).sum(2)
        return (products - mean * shift) * rstd, shift


@dataclass(frozen=True)
class LayerNormGradients:
    """LayerNorm on (B, *, *normalized_shape); the rest as in ``layers.LayerGradients``."""

    layer: nn.LayerNorm
    axis: ClassVar[int] = -1
    selects_late: ClassVar[bool] = False

    def batch_first(self, x: Tensor) -> bool:
        return x.ndim > len(self.layer.normalized_shape)

    def statistics(self, x: Examples, node: Node | None) -> Statistics:
        """Mean and rstd of every position, from the node of the output if it has them."""
        if node is not None and node.name() == "NativeLayerNormBackward0":
            return node._saved_result1.detach(), node._saved_result2.detach()  # type: ignore[attr-defined]
        _, mean, rstd = torch.native_layer_norm(
            x, self.layer.normalized_shape, None, None, self.layer.eps
        )
        return mean, rstd

    def bias(self, g: Examples) -> Float[Tensor, "batch *normalized"]:
        return g.reshape(g.shape[0], -1, *self.layer.normalized_shape).sum(1)

    def scale_and_shift(self, g: Examples, x: Examples, statistics: Statistics) -> Affine:
        """Both gradients, (B, *normalized_shape) each."""
        batch, shape = x.shape[0], self.layer.normalized_shape
        mean, rstd = (s.to(x.dtype).reshape(batch, -1, 1) for s in statistics)
        g, x = (t.reshape(batch, mean.shape[1], -1) for t in (g, x))
        scale = rstd.mT @ (x - mean).mul_(g)
        shift = torch.ones_like(rstd).mT @ g
        return scale.reshape(batch, *shape), shift.reshape(batch, *shape)


NormGradients = GroupNormGradients | LayerNormGradients
