"""Formulas of one layer: the gradients of each example from its input and its output gradient.

Symbols: B examples; T positions of one example (tokens or pixels), over which all sums run
    x (B, T, n) input, g (B, T, m) gradient at the output
    W (m, n) weight; a kernel (m, c, kh, kw) has n = c * kh * kw
    L (m, r), R (r, n) its carriers
    u = x R^T (B, T, r)      dL = g^T u       (Ito et al. 2023, Eq. 8; Yu et al. 2021, Eq. 2)
    v = g L   (B, T, r)      dR = v^T x
    S = L^T dW R^T = v^T u, (r, s) where R has s rows
The (m, n) gradient of a carried weight is never formed: one side of every product has r columns. A
new layer type is one more class here and one more entry in LAYERS.

``Factors`` are for callers that need products of one weight's gradients and not each of them. X (T,
n) are an example's inputs (patches, for a convolution), G (T, m) the gradients at its outputs: dW =
G^T X, a kernel flattened.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedlsg.frame import Keep
from fedlsg.gradients.formulas.conv import kernel_gradient, output_patches
from fedlsg.gradients.formulas.norm import GroupNormGradients, LayerNormGradients, NormGradients
from fedlsg.gradients.formulas.standardized import (
    StandardizedConv2d,
    pull_back,
    scales,
    standardize,
)

Positions = Float[Tensor, "batch *t m"]
Projected = Float[Tensor, "batch r oh ow"]
Outputs = Float[Tensor, "batch m oh ow"]


@runtime_checkable
class LayerGradients(Protocol):
    """Gradients of a layer's two parameters; for norm layers see ``NormGradients``.

    A layer whose weight can be carried (CARRIED) adds ``inner(x, R)`` and ``outer(g, L)``, which
    give u and v in the layout of activations; ``left(g, u)``, which gives dL for the out units in
    g; and ``right(v, x)``, which gives dR for the in units in x.
    """

    @property
    def axis(self) -> int:
        """The axis of the units in x and g."""

    @property
    def selects_late(self) -> bool:
        """Whether kept in units are selected in backward, and not in forward.

        This saves a copy where autograd keeps x in any case.
        """

    def batch_first(self, x: Tensor) -> bool:
        """Whether x has a batch dimension before the dimensions that the layer needs."""

    def weight(self, g: Tensor, x: Tensor) -> Tensor:
        """Dense gradient of the weight, (B, *weight shape); a kernel's taps are one axis."""

    def bias(self, g: Tensor) -> Tensor:
        """Gradient of the bias, (B, *bias shape)."""


@dataclass(frozen=True)
class LinearGradients:
    """Linear on (B, n), (B, T, n) or (B, *, n)."""

    layer: nn.Linear
    axis: ClassVar[int] = -1
    selects_late: ClassVar[bool] = False

    def batch_first(self, x: Tensor) -> bool:
        return x.ndim >= 2

    def inner(
        self, x: Float[Tensor, "batch *t n"], R: Float[Tensor, "r n"]
    ) -> Float[Tensor, "batch *t r"]:
        return times_rows(x, R)

    def outer(self, g: Positions, L: Float[Tensor, "m r"]) -> Float[Tensor, "batch *t r"]:
        return times_rows(g, L.mT)

    def left(self, g: Positions, u: Float[Tensor, "batch *t r"]) -> Float[Tensor, "batch m r"]:
        return torch.bmm(sequence(u).mT, sequence(g)).transpose(1, 2)  # 3 times as fast as g^T u

    def right(
        self, v: Float[Tensor, "batch *t r"], x: Float[Tensor, "batch *t n"]
    ) -> Float[Tensor, "batch r n"]:
        return self.weight(v, x)

    def weight(self, g: Positions, x: Float[Tensor, "batch *t n"]) -> Float[Tensor, "batch m n"]:
        return torch.bmm(sequence(g).mT, sequence(x))

    def bias(self, g: Positions) -> Float[Tensor, "batch m"]:
        return sequence(g).sum(1)


@dataclass(frozen=True)
class ConvGradients:
    """Conv2d on (B, c, h, w), any stride, padding and dilation, one group."""

    layer: nn.Conv2d
    axis: ClassVar[int] = 1
    selects_late: ClassVar[bool] = True

    def batch_first(self, x: Tensor) -> bool:
        return x.ndim == 4

    def inner(self, x: Float[Tensor, "batch c h w"], R: Float[Tensor, "r n"]) -> Projected:
        conv = self.layer
        kernels = R.reshape(R.shape[0], conv.in_channels, *conv.kernel_size)
        return F.conv2d(x, kernels, None, conv.stride, conv.padding, conv.dilation)

    def outer(self, g: Outputs, L: Float[Tensor, "m r"]) -> Projected:
        return torch.bmm(L.mT.expand(g.shape[0], -1, -1), g.flatten(2)).view(
            g.shape[0], -1, *g.shape[2:]
        )

    def left(self, g: Outputs, u: Projected) -> Float[Tensor, "batch m r"]:
        return torch.bmm(u.flatten(2), g.flatten(2).mT).transpose(1, 2)

    def right(
        self, v: Projected, x: Float[Tensor, "batch c h w"]
    ) -> Float[Tensor, "batch r c taps"]:
        return kernel_gradient(v, x, self.layer)

    def weight(
        self, g: Outputs, x: Float[Tensor, "batch c h w"]
    ) -> Float[Tensor, "batch m c taps"]:
        return kernel_gradient(g, x, self.layer)

    def bias(self, g: Outputs) -> Float[Tensor, "batch m"]:
        return g.sum((2, 3))


@dataclass(frozen=True)
class StandardizedConvGradients(ConvGradients):
    """StandardizedConv2d. dL and dR are completed by ``finish_left`` and ``finish_right``."""

    layer: StandardizedConv2d

    def outer(self, g: Outputs, L: Float[Tensor, "m r"]) -> Projected:
        return super().outer(g, scales(self.layer.weight.detach().flatten(1)).unsqueeze(1) * L)

    def weight(
        self, g: Outputs, x: Float[Tensor, "batch c h w"]
    ) -> Float[Tensor, "batch m c taps"]:
        G = super().weight(g, x)
        return pull_back(G.flatten(2), standardize(self.layer.weight.detach().flatten(1))).reshape(
            G.shape
        )


class TransposedLinear(nn.Module):
    """y = x W with W (n, m): what Conv1D of transformers computes, without its bias."""

    def __init__(self, inputs: int, outputs: int, device: str | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs, device=device))

    def forward(self, x: Float[Tensor, "batch *t n"]) -> Positions:
        return x @ self.weight


LAYERS: dict[type[nn.Module], Callable[[Any], LayerGradients | NormGradients]] = {
    nn.Linear: LinearGradients,
    nn.Conv2d: ConvGradients,
    nn.GroupNorm: GroupNormGradients,
    nn.LayerNorm: LayerNormGradients,
    StandardizedConv2d: StandardizedConvGradients,
    TransposedLinear: LinearGradients,
}
"""The formulas of each type of layer."""
CarriedGradients = LinearGradients | ConvGradients
CARRIED = (nn.Linear, nn.Conv2d, StandardizedConv2d)
"""Layers whose weight may be carried."""


def is_turned(module: nn.Module) -> bool:
    """Whether a module stores the weight of a linear layer as (n, m), as transformers' Conv1D does.

    transformers is not imported for this: its type is looked up if somebody else imported it.
    """
    home = sys.modules.get("transformers.pytorch_utils")
    kind = type(module)
    return kind is TransposedLinear or (home is not None and kind is getattr(home, "Conv1D", None))


def has_formulas(module: nn.Module) -> bool:
    """Whether a module's gradients come from the formulas here.

    Convolutions need one group, and padding with zeros.
    A module whose own ``forward`` was replaced may compute anything.
    """
    if "forward" in vars(module):
        return False
    if type(module) not in LAYERS:
        return is_turned(module)
    return not isinstance(module, nn.Conv2d) or (
        module.groups == 1 and module.padding_mode == "zeros"
    )


def formulas_of(module: nn.Module) -> LayerGradients | NormGradients:
    """The formulas of a module that has some."""
    return LAYERS.get(type(module), LinearGradients)(module)


def can_be_carried(module: nn.Module) -> bool:
    """Whether the weight of a module may travel as carriers."""
    return (type(module) in CARRIED and has_formulas(module)) or is_turned(module)


def times_rows(x: Float[Tensor, "*t n"], A: Float[Tensor, "r n"]) -> Float[Tensor, "*t r"]:
    """x A^T, computed as the transpose of A x^T.

    The other order, with a result r columns wide, takes up to 3 times as long.
    """
    wide: Tensor = A @ x.reshape(-1, x.shape[-1]).mT
    tall: Tensor = wide.mT.unflatten(0, x.shape[:-1])
    return tall


def sequence(t: Float[Tensor, "batch *t units"]) -> Float[Tensor, "batch positions units"]:
    """Activations with units last, all positions of an example on one axis."""
    return t.reshape(t.shape[0], -1, t.shape[-1])


def units(t: Tensor, axis: int, index: Int[Tensor, " kept"] | None) -> Tensor:
    """The units ``index`` of t along ``axis``; all of t if ``index`` is None.

    Units that are contiguous in memory are selected from a matrix: with more dimensions torch takes
    3 to 16 times as long.
    """
    if index is None:
        return t
    index, rows = index.to(t.device), t.movedim(axis, -1)
    if t.ndim == 2 or not rows.is_contiguous():
        return t.index_select(axis, index)
    kept: Tensor = rows.flatten(0, -2).index_select(1, index).unflatten(0, rows.shape[:-1])
    return kept.movedim(-1, axis)


def kept_values(
    gradient: Float[Tensor, "batch *shape"], keep: Keep
) -> Float[Tensor, "batch *kept"]:
    """Kept coordinates of each example's gradient, in ascending order after flattening."""
    if keep.index is None:
        return gradient
    if keep.axis is None:
        return units(gradient.flatten(1), 1, keep.index)
    return units(gradient, keep.axis + 1, keep.index)


@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """Input and output gradient of one layer in one pass over a batch. Not private.

    formulas: of the layer.
    g: (B, *, m), or (B, m, oh, ow), the gradient at the output.
    x: (B, *, n), or (B, c, h, w), the input.
    version: in-place version of g, which belongs to autograd.
    """

    formulas: CarriedGradients
    g: Tensor
    x: Tensor
    version: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(T, m, n)."""
        m, n = self.formulas.layer.weight.flatten(1).shape
        return self.g[0].numel() // m, m, n

    @property
    def is_product(self) -> bool:
        """Whether dW is G^T X. A standardized convolution pulls that back to its stored weight."""
        return not isinstance(self.formulas, StandardizedConvGradients)

    def dense(self) -> Float[Tensor, "batch m n"]:
        """dW of every example."""
        assert self.g._version == self.version  # autograd's tensor was not written to since
        return self.formulas.weight(self.g, self.x).flatten(2)

    def __add__(self, other: "Factors") -> "Factors":
        """The factors of the sum of both gradients: the positions of both. For linear layers."""
        g = torch.cat([sequence(self.g), sequence(other.g)], 1)
        x = torch.cat([sequence(self.x), sequence(other.x)], 1)
        return Factors(formulas=self.formulas, g=g, x=x, version=g._version)

    def rows(self) -> tuple[Float[Tensor, "batch t m"], Float[Tensor, "batch t n"]]:
        """G and X of every example; dW is their product only where ``is_product``."""
        assert self.g._version == self.version
        if isinstance(self.formulas, LinearGradients):
            return sequence(self.g), sequence(self.x)
        patches = output_patches(self.x, self.formulas.layer, self.g.shape[2:])
        return self.g.flatten(2).mT, patches.movedim((4, 5), (1, 2)).flatten(1, 2).flatten(2)
