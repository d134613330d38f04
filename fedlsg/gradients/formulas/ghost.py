"""Ghost clipping: norms and the clipped sum of weight gradients without one for each example.

Symbols: x (B, T, n) input, g (B, T, m) gradient at the output, f (B,) factors of the clip; u
rounding unit of W's type. The gradient of example b is G_b = g_b^T x_b. Its squared norm is a sum
over pairs of positions (ghost norm, Goodfellow 2015; Li et al. 2022), and sum_b f_b G_b is one
product (book-keeping, Bu et al. 2023):
    |G_b|^2 = sum_st <g_s, g_t> <x_s, x_t>        sum_b f_b G_b = (f g)^T x
For a convolution x_t is the patch under output t. For patches s and t, <x_s, x_t> is the sum over
taps of <x_p, x_q>, with p and q the pixels under the tap in both patches. So nothing is unfolded.

Why the clip bounds each contribution by C: norms are computed in float64 from the very g and x that
are summed. The largest loss that rounding can cause in their squares, (m + n + T^2) 2^-52 |g_b|^2
|x_b|^2, is added. Rounding f g in the type of g would move the contribution of b by at most u f_b
sum_t |g_t| |x_t| <= u f_b |g_b| |x_b|. This is added, too. (Patches overlap: there |x_b|^2 is
multiplied by the number of taps.)

Why the sum is safe: if G_b were formed first, no summand would be longer than C. Here the sum runs
over positions. If those of one example cancel, its summands are as long as C |g_b| |x_b| / |G_b|
and would round away what others have added: one example could move the sum by many C. ``norms``
therefore never falls below CANCELLED |g_b| |x_b|, so that no summand is longer than C / CANCELLED.
And the sum is in float64, which rounds such summands by far less than 1e-4 C.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedlsg.gradients.formulas.conv import convolution_gradient, padding_before
from fedlsg.tensors import keeps_digits

PerExample = Float[Tensor, " batch"]

SMALLEST_WEIGHT = 2**14
"""Size of a weight from which ghost clipping is considered."""
PAIRS = 32
"""Cost of a number in ``sum_over_taps``, in multiplications: the numbers are strided in memory."""
MEMORY = 64
"""Cost of writing a number of G_b once and reading it twice, in multiplications."""
CANCELLED = 1e-3
"""Lower bound on |G_b| that ``norms`` assumes, relative to |g_b| |x_b|. For comparison: orthogonal
positions of equal length give T^(-1/2).
"""


@dataclass(frozen=True, eq=False)
class GhostGradients:
    """The factors g and x of a batch's gradients of one weight, in place of the gradients.

    Not private. g and x may have fewer bits than the weight: they are widened, which is exact,
    before anything is computed.
    layer: has the weight.
    version: in-place version of g, which belongs to autograd.
    """

    layer: nn.Linear | nn.Conv2d
    g: Tensor
    x: Tensor
    version: int

    @property
    def dtype(self) -> torch.dtype:
        """The type of the gradients."""
        return self.layer.weight.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """(B, size of the weight)."""
        return len(self.g), self.layer.weight.numel()

    def norms(self) -> PerExample:
        """An upper bound on the length that each example adds to ``weighted_sum`` with factor 1.

        In float64. If positions cancel to a thousandth, it is above the length: such an example is
        clipped to less than C.
        """
        layer = self.layer
        is_conv = isinstance(layer, nn.Conv2d)
        taps = math.prod(layer.kernel_size) if isinstance(layer, nn.Conv2d) else 1
        product = lengths(self.g) * lengths(self.x) * math.sqrt(taps)  # |g_b| |x_b|
        pairs = (self.g[0].numel() // len(layer.weight)) ** 2  # T^2
        one_position = pairs == 1 and not is_conv  # G_b is a product of two vectors
        squares = product.square() if one_position else squared_norms(layer, self.g, self.x)
        terms = sum(layer.weight.flatten(1).shape) + pairs  # m + n + T^2
        lost = terms * torch.finfo(torch.float64).eps * product.square()
        rounding = torch.finfo(self.dtype).eps * product
        bound = (squares.clamp(min=0) + lost).sqrt() + rounding
        return torch.maximum(bound, CANCELLED * product)

    def weighted_sums(
        self, factors: Float[Tensor, "slots each"], finite: Bool[Tensor, " batch"] | None
    ) -> Float[Tensor, "slots size"]:
        """``weighted_sum`` for each slot: the examples of a row of ``factors``, in their order.

        One product for all slots if the layer is linear.
        """
        if type(self) is not GhostGradients or isinstance(self.layer, nn.Conv2d):
            count = factors.shape[1]
            sums = []
            for slot, of_slot in enumerate(factors):
                start, stop = slot * count, (slot + 1) * count
                finite_of_slot = None if finite is None else finite[start:stop]
                sums.append(self.part(start, stop).weighted_sum(of_slot, finite_of_slot))
            return torch.stack(sums)
        assert self.g._version == self.version
        g, x = self.g.double(), self.x.double()
        if finite is not None:
            g, x = (t.masked_fill(~finite.view(-1, *[1] * (t.ndim - 1)), 0.0) for t in (g, x))
        fg = g * factors.double().view(-1, *[1] * (g.ndim - 1))
        fg, x = (t.reshape(len(factors), -1, t.shape[-1]) for t in (fg, x))
        return torch.bmm(fg.mT, x).flatten(1)

    def part(self, start: int, stop: int) -> "GhostGradients":
        """The ghost gradients of the examples from ``start`` to ``stop``."""
        return replace(self, g=self.g[start:stop], x=self.x[start:stop])

    def first(self, count: int) -> "GhostGradients":
        """The ghost gradients of the first ``count`` examples."""
        return self.part(0, count)

    def weighted_sum(
        self, factors: PerExample, finite: Bool[Tensor, " batch"] | None
    ) -> Float[Tensor, " size"]:
        """sum_b f_b G_b over the examples that are ``finite`` (all if it is None), in float64.

        Flattened in the order of the weight. In float32, 32 examples whose positions cancel to a
        thousandth moved the sum of the others by 3e-4 C.
        """
        assert self.g._version == self.version  # autograd's tensor was not written to since
        g, x, factors = self.g.double(), self.x.double(), factors.double()
        if finite is not None:
            g, x, factors = g[finite], x[finite], factors[finite]
        fg = g * factors.view(-1, *[1] * (g.ndim - 1))
        if not isinstance(self.layer, nn.Conv2d):
            product: Tensor = fg.flatten(0, -2).mT @ x.flatten(0, -2)
            return product.flatten()
        weight = self.layer.weight.detach().double()
        return convolution_gradient(fg, x, weight, self.layer).flatten()


def ghost_is_cheaper(layer: nn.Module, g: Tensor) -> bool:
    """Whether norms over pairs of positions cost less than one gradient for each example.

    They must also be as exact. Costs are in multiplications; those in float64 count twice.
    """
    weight = layer._parameters["weight"] if type(layer) in (nn.Linear, nn.Conv2d) else None
    if weight is None or not worth_it(weight):
        return False
    if not isinstance(layer, nn.Conv2d):
        return product_is_cheaper(weight, g)
    if g.device.type != "cpu":  # a GPU has no fast convolutions in float64
        return False
    if layer.stride != (1, 1) or layer.dilation != (1, 1) or layer.padding in ("same", "valid"):
        return False
    m, c, taps = weight.shape[0], weight.shape[1], weight[0, 0].numel()
    positions = g[0, 0].numel()
    return 2 * positions**2 * (m + c + PAIRS * taps) < weight.numel() * (positions + MEMORY)


def worth_it(weight: Tensor) -> bool:
    """Whether a weight has a type for ghost clipping, and is large enough to consider it.

    Norms and sums are in float64, which neither TF32 nor bfloat16 reaches.
    """
    return weight.dtype in (torch.float32, torch.float64) and weight.numel() >= SMALLEST_WEIGHT


def product_is_cheaper(weight: Float[Tensor, "m c"], g: Float[Tensor, "batch *t m"]) -> bool:
    """Whether norms over pairs of positions cost less than a matrix g_b^T x_b for each example."""
    positions = g[0].numel() // weight.shape[0]
    return 2 * positions**2 * sum(weight.shape) < weight.numel() * (positions + MEMORY)


def keeps_float32_digits(device_type: str) -> bool:
    """Whether products of float32 keep its digits.

    TF32 or bfloat16 would round g and x more than ``norms`` covers. With matmul precision "high" or
    "medium", CPUs that have bfloat16 units use them, too.
    """
    if not keeps_digits(device_type):
        return False
    conv = getattr(
        torch.backends.mkldnn if device_type == "cpu" else torch.backends.cudnn, "conv", None
    )
    if conv is not None:  # from torch 2.9 on
        return getattr(conv, "fp32_precision", "none") in ("none", "ieee")
    return device_type == "cpu" or not torch.backends.cudnn.allow_tf32


def lengths(factor: Float[Tensor, "batch *any"]) -> PerExample:
    """|t_b| of every example, in float64."""
    norms: Tensor = torch.linalg.vector_norm(factor.flatten(1), dim=1, dtype=torch.float64)
    return norms


def squared_norms(layer: nn.Module, g: Tensor, x: Tensor) -> PerExample:
    """|G_b|^2 of every example, in float64; NaN or infinite for an example that is not finite."""
    if isinstance(layer, nn.Conv2d):
        G, X = g.double().flatten(2), padded(x.double(), padding_before(layer))
        patches = sum_over_taps(pixel_products(X), g.shape[2:], layer.kernel_size)
        return row_products(G.mT @ G, patches)
    G, X = (t.double().flatten(1, -2) if t.ndim > 2 else t.double().unsqueeze(1) for t in (g, x))
    return row_products(G @ G.mT, X @ X.mT)


def row_products(A: Float[Tensor, "batch *any"], B: Float[Tensor, "batch *other"]) -> PerExample:
    """Inner product of A and B for each example."""
    products: Tensor = torch.linalg.vecdot(A.flatten(1), B.flatten(1))
    return products


def padded(
    x: Float[Tensor, "batch c h w"], padding: Sequence[int]
) -> Float[Tensor, "batch c h2 w2"]:
    """x with the zeros of a convolution's padding around it."""
    return nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))


def pixel_products(x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch h w h w"]:
    """<x_p, x_q> over channels, for every pair of pixels."""
    flat = x.flatten(2)
    products: Tensor = (flat.mT @ flat).unflatten(2, x.shape[2:]).unflatten(1, x.shape[2:])
    return products


def sum_over_taps(
    products: Float[Tensor, "batch h w h w"], out: torch.Size, kernel: tuple[int, ...]
) -> Float[Tensor, "batch oh ow oh ow"]:
    """<x_s, x_t> for every pair of patches, of a convolution of stride 1.

    It is the sum over taps of the products of the two pixels under the tap.
    """
    height, width = out
    total = None
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            part = products[:, i : i + height, j : j + width, i : i + height, j : j + width]
            total = part.clone() if total is None else total.add_(part)
    assert total is not None
    return total
