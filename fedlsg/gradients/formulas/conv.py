"""The gradient of a convolution's kernel for each example, as one batched product.

Symbols: x (batch, c, h, w) input, g (batch, k, oh, ow) gradient at the output or its projection v =
    L^T g,
    gradient[k, c, i, j] = sum over outputs (y, z) of
        g[k, y, z] * x[c, y * stride + i * dilation - padding, z * stride + j * dilation - padding]
Either side can be unfolded into patches: those of x have c * taps * oh * ow values, those of g have
k * taps * h * w. The cheaper side is unfolded. A carried kernel has k = r, so this is mostly g: 7
times cheaper if c is 8 r.
"""

import math
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedlsg.tensors import batch_times_transposed

Images = Float[Tensor, "batch c h w"]
Outputs = Float[Tensor, "batch k oh ow"]

CACHED, UNCACHED = 2**18, 2**28
"""Values unfolded at once. On a CPU they fit in its cache: 4 times as fast as all at once for B =
1000.
"""


def kernel_gradient(g: Outputs, x: Images, conv: nn.Conv2d) -> Float[Tensor, "batch k c taps"]:
    """Gradient of each example's loss with respect to the kernel between the channels of x and
    those of g.

    ``conv`` gives kernel size, stride, padding and dilation; x and g may have any channels.
    Examples are processed in tiles, which bounds the memory. The result keeps the memory order of
    the product, which need not be its own.
    """
    if by_example(g, x, conv):
        pairs = zip(g.split(1), x.split(1), strict=True)
        return torch.stack([own_gradient(one_g, one_x, conv) for one_g, one_x in pairs])
    output_patch = g.shape[1] * math.prod(x.shape[2:])
    input_patch = x.shape[1] * math.prod(g.shape[2:])
    unfolding = unfolding_output if output_patch <= input_patch else unfolding_input
    patch = min(output_patch, input_patch) * math.prod(conv.kernel_size)
    at_once = CACHED if x.device.type == "cpu" else UNCACHED
    return unfolding(g, x, conv, max(1, at_once // max(1, patch)))


def by_example(g: Outputs, x: Images, conv: nn.Conv2d) -> bool:
    """Whether calling the convolution's own backward kernel for each example is faster: both sides
    wide, on a CPU.

    It unfolds nothing: for k >= 64 it takes 0.4 to 0.9 of the time. A GPU would idle between the
    calls.
    """
    return (
        x.device.type == "cpu"
        and not isinstance(conv.padding, str)
        and min(g.shape[1], x.shape[1]) >= 32
        and math.prod(conv.kernel_size) > 1
    )


def own_gradient(
    g: Float[Tensor, "1 k oh ow"], x: Float[Tensor, "1 c h w"], conv: nn.Conv2d
) -> Float[Tensor, "k c taps"]:
    """Kernel gradient of one example, by the kernel that autograd calls."""
    like = g.new_empty(g.shape[1], x.shape[1], *conv.kernel_size)
    return convolution_gradient(g, x, like, conv).flatten(2)


def convolution_gradient(
    g: Outputs, x: Images, weight: Float[Tensor, "k c kh kw"], conv: nn.Conv2d
) -> Float[Tensor, "k c kh kw"]:
    """The sum of the examples' kernel gradients, by autograd's own kernel; ``weight`` gives shape
    and type.
    """
    gradient: Tensor
    _, gradient, _ = torch.ops.aten.convolution_backward(
        g,
        x,
        weight,
        None,
        conv.stride,
        padding_before(conv),
        conv.dilation,
        False,
        [0, 0],
        1,
        [False, True, False],
    )
    return gradient


def unfolding_input(
    g: Outputs, x: Images, conv: nn.Conv2d, tile: int
) -> Float[Tensor, "batch k c taps"]:
    """Kernel gradient as g times the patches of x, ``tile`` examples at a time."""
    if len(x) > tile:
        pairs = zip(g.split(tile), x.split(tile), strict=True)
        return torch.cat([unfolding_input(*pair, conv, tile) for pair in pairs])
    patches = output_patches(x, conv, g.shape[2:])
    product = g.flatten(2) @ patches.flatten(4).flatten(1, 3).mT
    return product.reshape(*g.shape[:2], x.shape[1], -1)


def output_patches(
    x: Images, conv: nn.Conv2d, size: Sequence[int]
) -> Float[Tensor, "batch c kh kw oh ow"]:
    """View of x, padded: [..., i, j, y, z] is the pixel that tap (i, j) reads for output (y, z) of
    ``size``.
    """
    axes = zip(size, conv.stride, conv.dilation, conv.kernel_size, strict=True)
    spans = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in axes]
    return windows(pad_to(x, padding_before(conv), spans), conv, conv.stride, size)


def unfolding_output(
    g: Outputs, x: Images, conv: nn.Conv2d, tile: int
) -> Float[Tensor, "batch k c taps"]:
    """Kernel gradient as the patches of g, spread by the stride, times x, ``tile`` examples at a
    time.

    Tap i sends x[y] to output y + padding - i * dilation, so patches run opposite to the taps: the
    rows of the product are in order from the last tap to the first.
    """
    reach = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    before = [d - p for d, p in zip(reach, padding_before(conv), strict=True)]
    spans = [n + d for n, d in zip(x.shape[2:], reach, strict=True)]
    patches = windows(pad_to(spread(g, conv.stride), before, spans), conv, (1, 1), x.shape[2:])
    batch, k, taps = x.shape[0], g.shape[1], math.prod(conv.kernel_size)
    rows = last_tap_first(k, taps, g.device)
    out = x.new_empty(batch, k * taps, x.shape[1])
    tiles = (t.split(tile) for t in (patches, x.flatten(2), out))
    for part, images, into in zip(*tiles, strict=True):
        batch_times_transposed(part.reshape(len(part), k * taps, -1), images, rows, out=into)
    return out.view(batch, k, taps, -1).transpose(2, 3)


@cache  # by its arguments alone: never stale
def last_tap_first(k: int, taps: int, device: torch.device) -> Int[Tensor, " k_taps"]:
    """Rows (k, taps) with the taps from the last to the first."""
    return torch.arange(k * taps, device=device).view(k, taps).flip(1).flatten()


def padding_before(conv: nn.Conv2d) -> tuple[int, ...]:
    """Zeros before the first row and column. "same" puts an odd one after the last."""
    if conv.padding == "same":
        return tuple(d * (k - 1) // 2 for d, k in zip(conv.dilation, conv.kernel_size, strict=True))
    return (0, 0) if isinstance(conv.padding, str) else conv.padding


def spread(g: Outputs, stride: Sequence[int]) -> Float[Tensor, "batch k h w"]:
    """g with stride - 1 zeros between neighbouring outputs."""
    if max(stride) == 1:
        return g
    height, width = [(o - 1) * s + 1 for o, s in zip(g.shape[2:], stride, strict=True)]
    out = g.new_zeros(*g.shape[:2], height, width)
    out[:, :, :: stride[0], :: stride[1]] = g
    return out


def pad_to(
    t: Float[Tensor, "batch k h w"], before: Sequence[int], spans: Sequence[int]
) -> Float[Tensor, "batch k h2 w2"]:
    """t after ``before`` zeros, then cut or padded with zeros to ``spans``; a negative ``before``
    cuts.
    """
    (top, left), (height, width) = before, spans
    return F.pad(t, (left, width - left - t.shape[3], top, height - top - t.shape[2]))


def windows(
    t: Float[Tensor, "batch k h w"], conv: nn.Conv2d, step: Sequence[int], size: Sequence[int]
) -> Float[Tensor, "batch k kh kw oh ow"]:
    """View of t whose entry [..., i, j, y, z] is t[..., y * step + i * dilation, z * step + j *
    dilation].
    """
    *outer, down, right = t.stride()
    (dilation_y, dilation_x), (step_y, step_x) = conv.dilation, step
    taps = down * dilation_y, right * dilation_x
    outputs = down * step_y, right * step_x
    strides = (*outer, *taps, *outputs)
    return t.as_strided((*t.shape[:2], *conv.kernel_size, *size), strides)
