"""The gradient of a convolution's kernel for each example, as one batched product.

Symbols: x (batch, c, h, w) input    g (batch, k, oh, ow) gradient at the output, or its projection
                                     v = L^T g for a carried kernel, where k is the rank r
         (i, j) tap of the kernel    (y, z) place of an output

    gradient[k, c, i, j] = sum over outputs (y, z) of
        g[k, y, z] * x[c, y * stride + i * dilation - padding, z * stride + j * dilation - padding]

To make this one product, one side is unfolded into patches: each value is repeated once for each
tap that it meets. Patches of x have c * taps * oh * ow values, those of g have k * taps * h * w.
The cheaper side is unfolded. For a carried kernel this is mostly g: 7 times cheaper if c is 8 r.
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

CPU_VALUES = 2**18
"""Values that are unfolded at once on a CPU: they fit in its cache. 4 times as fast as all at once
for 1,000 examples."""
GPU_VALUES = 2**28
"""Values that are unfolded at once on a GPU: 1 GiB in float32."""
WIDE = 32
"""Channels on both sides from which a kernel call for each example is faster on a CPU."""


def kernel_gradient(g: Outputs, x: Images, conv: nn.Conv2d) -> Float[Tensor, "batch k c taps"]:
    """The kernel's gradient for each example, between the channels of x and those of g.

    ``conv`` gives kernel size, stride, padding and dilation; x and g may have any channels.
    Examples are processed in tiles, which bounds the memory. The result may be a view in another
    memory order.
    """
    if call_for_each_example(g, x, conv):
        weight = g.new_empty(g.shape[1], x.shape[1], *conv.kernel_size)
        gradients = [
            convolution_gradient(g_of_one, x_of_one, weight, conv).flatten(2)
            for g_of_one, x_of_one in zip(g.split(1), x.split(1), strict=True)
        ]
        return torch.stack(gradients)
    taps = math.prod(conv.kernel_size)
    output_patches_size = g.shape[1] * taps * math.prod(x.shape[2:])
    input_patches_size = x.shape[1] * taps * math.prod(g.shape[2:])
    at_once = CPU_VALUES if x.device.type == "cpu" else GPU_VALUES
    tile = max(1, at_once // max(1, min(output_patches_size, input_patches_size)))
    if output_patches_size <= input_patches_size:
        return unfold_output(g, x, conv, tile)
    return unfold_input(g, x, conv, tile)


def call_for_each_example(g: Outputs, x: Images, conv: nn.Conv2d) -> bool:
    """Whether it is faster to call autograd's own kernel for each example.

    It unfolds nothing: for k >= 64 it takes 0.4 to 0.9 of the time on a CPU. A GPU would idle
    between the calls.
    """
    return (
        x.device.type == "cpu"
        and not isinstance(conv.padding, str)
        and min(g.shape[1], x.shape[1]) >= WIDE
        and math.prod(conv.kernel_size) > 1
    )


def convolution_gradient(
    g: Outputs, x: Images, weight: Float[Tensor, "k c kh kw"], conv: nn.Conv2d
) -> Float[Tensor, "k c kh kw"]:
    """The sum of the examples' kernel gradients, by the kernel that autograd calls.

    Of ``weight`` only shape and type are used.
    """
    gradient: Tensor
    _, gradient, _ = torch.ops.aten.convolution_backward(
        g,
        x,
        weight,
        None,  # sizes of the bias: no gradient is computed for it
        conv.stride,
        padding_before(conv),
        conv.dilation,
        False,  # not transposed
        [0, 0],  # output padding
        1,  # groups
        [False, True, False],  # of input, weight and bias: the gradient of the weight alone
    )
    return gradient


def unfold_input(
    g: Outputs, x: Images, conv: nn.Conv2d, tile: int
) -> Float[Tensor, "batch k c taps"]:
    """Kernel gradient as g times the patches of x, ``tile`` examples at a time."""
    if len(x) > tile:
        pairs = zip(g.split(tile), x.split(tile), strict=True)
        return torch.cat([unfold_input(*pair, conv, tile) for pair in pairs])
    patches = output_patches(x, conv, g.shape[2:])
    product = g.flatten(2) @ patches.flatten(4).flatten(1, 3).mT
    return product.reshape(*g.shape[:2], x.shape[1], -1)


def output_patches(
    x: Images, conv: nn.Conv2d, size: Sequence[int]
) -> Float[Tensor, "batch c kh kw oh ow"]:
    """A view of the padded x, with the pixels that each output reads.

    Entry [..., i, j, y, z] is the pixel that tap (i, j) reads for output (y, z). size: (oh, ow).
    """
    axes = zip(size, conv.stride, conv.dilation, conv.kernel_size, strict=True)
    spans = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in axes]  # pixels that outputs reach
    return windows(pad_to(x, padding_before(conv), spans), conv, conv.stride, size)


def unfold_output(
    g: Outputs, x: Images, conv: nn.Conv2d, tile: int
) -> Float[Tensor, "batch k c taps"]:
    """Kernel gradient as the patches of g times x, ``tile`` examples at a time.

    First, zeros are put between outputs, so that g has stride 1 (``spread``). Tap i sends x[y] to
    output y + padding - i * dilation: a larger i is an earlier output. So the rows of the product
    are from the last tap to the first, and are put in order.
    """
    reach = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    before = [d - p for d, p in zip(reach, padding_before(conv), strict=True)]
    spans = [n + d for n, d in zip(x.shape[2:], reach, strict=True)]
    patches = windows(pad_to(spread(g, conv.stride), before, spans), conv, (1, 1), x.shape[2:])
    batch, k, taps = x.shape[0], g.shape[1], math.prod(conv.kernel_size)
    rows = last_tap_first(k, taps, g.device)
    out = x.new_empty(batch, k * taps, x.shape[1])
    tiles = (t.split(tile) for t in (patches, x.flatten(2), out))
    for some, images, into in zip(*tiles, strict=True):
        batch_times_transposed(some.reshape(len(some), k * taps, -1), images, rows, out=into)
    return out.view(batch, k, taps, -1).transpose(2, 3)


@cache  # by its arguments alone: never stale
def last_tap_first(k: int, taps: int, device: torch.device) -> Int[Tensor, " k_taps"]:
    """Numbers of the rows (k, taps), with the taps from the last to the first."""
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
    """t after ``before`` zeros, then cut or padded with zeros to the lengths ``spans``.

    A negative ``before`` cuts.
    """
    (top, left), (height, width) = before, spans
    return F.pad(t, (left, width - left - t.shape[3], top, height - top - t.shape[2]))


def windows(
    t: Float[Tensor, "batch k h w"], conv: nn.Conv2d, step: Sequence[int], size: Sequence[int]
) -> Float[Tensor, "batch k kh kw oh ow"]:
    """A view of t with the places that each tap reads for each output.

    Entry [..., i, j, y, z] is t[..., y * step + i * dilation, z * step + j * dilation].
    size: (oh, ow).
    """
    *outer, down, right = t.stride()
    (dilation_y, dilation_x), (step_y, step_x) = conv.dilation, step
    taps = down * dilation_y, right * dilation_x
    outputs = down * step_y, right * step_x
    strides = (*outer, *taps, *outputs)
    return t.as_strided((*t.shape[:2], *conv.kernel_size, *size), strides)
