"""ResNets (He et al. 2016) with GroupNorm instead of BatchNorm, which mixes examples.

Wide residual networks with GroupNorm, WRN-d-k (Zagoruyko and Komodakis 2016), in four forms.

d = 6 n + 4 layers: a 3x3 stem, three groups of n blocks with 16 k, 32 k and 64 k channels, the last
two at half the side, mean pooling, a linear classifier. A block is norm, activation, 3x3
convolution, twice, plus its input.
The forms differ where the papers leave a choice:

    rgp           the stem is as wide as the first group; a shortcut that changes shape takes every
                  second pixel, normalises, and pads with zero channels, without parameters; norms
                  without parameters in groups of at most 32; a classifier without bias (Yu et al.
                  2021, their code): 25 convolutions in WRN-28-4
    standard      the stem has 16 channels; a shortcut that changes shape is a 1x1 convolution of
                  the block's activated input: 28 convolutions in WRN-28-4
    standardized  De et al. 2022, the base of DP-SSGD: standard, with weight-standardised
                  convolutions that have a bias, activation before the norm, 16 groups, and a norm
                  of its own in front of a 1x1 shortcut
    gain          De et al. 2022 to the letter, for weights that they trained: standardized, with a
                  gain of each filter, and 3x3 convolutions by stride 2 that pad an even side at its
                  end alone ("SAME" in JAX)

Every operation is out of place.
"""

import math
from collections import OrderedDict
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.gradients import StandardizedConv2d

Stem = Literal["cifar", "imagenet"]
GROUPS = 32
"""The most groups of a norm in ResNets."""
EXPANSION = 4
"""Channels of a bottleneck over those in its middle."""


def resnet34(*, channels: int, num_classes: int, stem: Stem = "imagenet") -> nn.Module:
    """ResNet-34 for images (B, channels, s, s): stages of 3, 4, 6, 3 blocks with 64 to 512
    channels.

    The ``imagenet`` stem, a 7x7 convolution and a max pooling, divides the side by 4; the ``cifar``
    stem, a 3x3 convolution, keeps it. With the imagenet stem and 1,000 classes it has the published
    21,797,672 parameters.
    Differs from the paper: GroupNorm of 32 groups (Wu and He 2018).
    """
    return _with_stages(
        _stem(channels, stem), blocks=(3, 4, 6, 3), width=64, num_classes=num_classes
    )


def resnet50(*, channels: int, num_classes: int, stem: Stem = "imagenet") -> nn.Module:
    """ResNet-50 for images (B, channels, s, s): stages of 3, 4, 6, 3 bottlenecks with 256 to 2,048
    channels.

    With the imagenet stem and 1,000 classes it has the published 25,557,032 parameters. The 3x3
    convolution has the stride, as in torchvision and timm. It takes timm's weights with group norm
    after examples/convert_weights.py, which changes their names. Differs from the paper: GroupNorm
    of 32 groups.
    """
    layers = _stem(channels, stem)
    return _with_stages(
        layers, blocks=(3, 4, 6, 3), width=64, num_classes=num_classes, bottleneck=True
    )


def _stem(channels: int, stem: Stem) -> "OrderedDict[str, nn.Module]":
    """The first layers of ResNet-34 and ResNet-50."""
    if stem == "imagenet":
        conv = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        pool = [nn.MaxPool2d(3, stride=2, padding=1)]
    else:
        conv, pool = nn.Conv2d(channels, 64, 3, padding=1, bias=False), []
    return OrderedDict(stem=nn.Sequential(conv, nn.GroupNorm(GROUPS, 64), nn.ReLU(), *pool))


def cifar_resnet(depth: int, *, channels: int, num_classes: int) -> nn.Module:
    """ResNet-20, or another of depth 6n + 2, for images (B, channels, s, s): n blocks of 16, 32 and
    64 channels each.

    Differs from the paper (section 4.2): GroupNorm of 32 groups at most, and a 1x1 convolution
    where the shape changes, instead of padding with zeros. Raises ValueError for another depth.
    """
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"expected {depth=} of 8, 14, 20, ...: 6n + 2")
    conv = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
    layers = OrderedDict[str, nn.Module](stem=nn.Sequential(conv, nn.GroupNorm(16, 16), nn.ReLU()))
    return _with_stages(layers, blocks=3 * (depth // 6,), width=16, num_classes=num_classes)


def _with_stages(
    layers: "OrderedDict[str, nn.Module]",
    *,
    blocks: tuple[int, ...],
    width: int,
    num_classes: int,
    bottleneck: bool = False,
) -> nn.Module:
    """The stem ``layers``, stages of ``blocks`` blocks whose channels double from ``width``, the
    classifier.
    """
    before, block = width, Bottleneck if bottleneck else BasicBlock
    for stage, count in enumerate(blocks):
        after = width * 2**stage * (EXPANSION if bottleneck else 1)
        rest = [block(after, after, 1) for _ in range(count - 1)]
        layers[f"stage{stage + 1}"] = nn.Sequential(
            block(before, after, 1 if stage == 0 else 2), *rest
        )
        before = after
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["classifier"] = nn.Linear(before, num_classes)
    model = nn.Sequential(layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


class BasicBlock(nn.Module):
    """ReLU(x + norm(conv(ReLU(norm(conv(x)))))).

    If the shape changes, the added x goes through a 1x1 convolution and a norm.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        groups = min(GROUPS, after)
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.shortcut = _projection(before, after, stride)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Bottleneck(nn.Module):
    """ReLU(x + f(x)) with f convolutions 1x1, 3x3 and 1x1, each with a norm.

    The middle one has a quarter of the channels. If the shape changes, the added x goes through a
    1x1 convolution and a norm.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        inner = after // EXPANSION
        self.conv1 = nn.Conv2d(before, inner, 1, bias=False)
        self.norm1 = nn.GroupNorm(min(GROUPS, inner), inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(min(GROUPS, inner), inner)
        self.conv3 = nn.Conv2d(inner, after, 1, bias=False)
        self.norm3 = nn.GroupNorm(min(GROUPS, after), after)
        self.shortcut = _projection(before, after, stride)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        y = F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))
        return F.relu(
            self.norm3(self.conv3(y)) + (x if self.shortcut is None else self.shortcut(x))
        )


def _projection(before: int, after: int, stride: int) -> nn.Module | None:
    """The shortcut of a block that changes shape; None for other blocks."""
    if stride == 1 and before == after:
        return None
    conv = nn.Conv2d(before, after, 1, stride=stride, bias=False)
    return nn.Sequential(conv, nn.GroupNorm(min(GROUPS, after), after))


Form = Literal["rgp", "standard", "standardized", "gain"]
DE_ET_AL = ("standardized", "gain")
"""The forms of De et al. 2022."""
STEM = 16
"""Channels of the stem of a wide ResNet of width 1."""


def wide_resnet(
    depth: int, width: int, *, channels: int, num_classes: int, form: Form = "rgp"
) -> nn.Module:
    """WRN-depth-width for images (B, channels, s, s) of any side from 4.

    Differs from De et al. in ``standardized``, not in ``gain``: without the gain of each filter
    (2,256 parameters of WRN-16-4), and convolutions by stride 2 pad both ends of a side.
    Raises ValueError for a depth other than 6 n + 4, a width below 1, or an unknown form.
    """
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(
            f"expected depth = 6 n + 4 with n >= 1 (10, 16, 22, 28, ...), got {depth=}"
        )
    if width < 1:
        raise ValueError(f"expected {width=} >= 1")
    if form not in get_args(Form):
        raise ValueError(f"expected form in {get_args(Form)}, got {form!r}")
    stem = STEM * width if form == "rgp" else STEM
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=_conv(channels, stem, 3, 1, form))
    before = stem
    for group, stride in enumerate((1, 2, 2)):
        after = STEM * width * 2**group
        blocks = [Block(before, after, stride, form, first=True)]
        blocks += [Block(after, after, 1, form) for _ in range((depth - 4) // 6 - 1)]
        layers[f"group{group + 1}"] = nn.Sequential(*blocks)
        before = after
    layers["activate"] = _activate(before, form)
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["classifier"] = nn.Linear(before, num_classes, bias=form != "rgp")
    return nn.Sequential(layers)


class Block(nn.Module):
    """x + conv(activate(conv(activate(x)))); a shortcut replaces x if the shape changes."""

    def __init__(
        self, before: int, after: int, stride: int, form: Form, *, first: bool = False
    ) -> None:
        super().__init__()
        self.activate1 = _activate(before, form)
        self.conv1 = _conv(before, after, 3, stride, form)
        self.activate2 = _activate(after, form)
        self.conv2 = _conv(after, after, 3, 1, form)
        # De et al. have a shortcut in the first block of WRN-d-1, too, which keeps the shape
        changes = before != after or stride > 1 or (first and form == "gain")
        self.shortcut = _shortcut(before, after, stride, form) if changes else None
        self.shares_activation = form == "standard"

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        y = self.activate1(x)
        if self.shortcut is not None:
            x = self.shortcut(y if self.shares_activation else x)
        z: Tensor = self.conv2(self.activate2(self.conv1(y)))
        return x + z


class GainedConv2d(nn.Module):
    """gain * standardized convolution + bias, for each filter (Brock et al. 2021; De et al. 2022).

    y_i = gain_i (K_i * x) + bias_i with K as in ``StandardizedConv2d``: a product after the
    convolution, so that the gradients of each example need no formula of their own. A 3x3 kernel by
    stride 2 reads the pixels that "SAME" of JAX gives it: of an even side 0, 1, 2 first, not -1, 0,
    1.
    """

    def __init__(self, before: int, after: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.pads = kernel == 3 and stride == 2
        padding = 0 if self.pads else kernel // 2
        self.conv = StandardizedConv2d(
            before, after, kernel, stride=stride, padding=padding, bias=False
        )
        self.gain = nn.Parameter(torch.ones(after))
        self.bias = nn.Parameter(torch.zeros(after))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        if self.pads:
            height, width = x.shape[2:]
            x = F.pad(x, (width % 2, 1, height % 2, 1))
        y: Tensor = self.conv(x) * self.gain.view(-1, 1, 1) + self.bias.view(-1, 1, 1)
        return y


class PaddedShortcut(nn.Module):
    """Every second pixel, normalised, with as many zero channels behind its channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels, "rgp")

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        half = self.norm(x[:, :, ::2, ::2])
        return F.pad(half, (0, 0, 0, 0, 0, half.shape[1]))


def _norm(channels: int, form: Form) -> nn.GroupNorm:
    """The norm of a form, with at most 16 or 32 groups."""
    groups = math.gcd(16 if form in DE_ET_AL else 32, channels)
    return nn.GroupNorm(groups, channels, affine=form != "rgp")


def _activate(channels: int, form: Form) -> nn.Sequential:
    """Norm, then ReLU; the other way round in the forms of De et al."""
    layers = [_norm(channels, form), nn.ReLU()]
    return nn.Sequential(*(reversed(layers) if form in DE_ET_AL else layers))


def _conv(before: int, after: int, kernel: int, stride: int, form: Form) -> nn.Module:
    """A convolution with the initial weights of its form: He's normal by fan-out.

    A standardised one has weights of the variance 1 / fan-in: n weights of variance 1 / n are about
    equal to their standardised values.
    """
    if form == "gain":
        gained = GainedConv2d(before, after, kernel, stride)
        nn.init.normal_(gained.conv.weight, std=(before * kernel * kernel) ** -0.5)
        return gained
    if form == "standardized":
        conv: nn.Conv2d = StandardizedConv2d(
            before, after, kernel, stride=stride, padding=kernel // 2
        )
        nn.init.normal_(conv.weight, std=(before * kernel * kernel) ** -0.5)
        assert conv.bias is not None
        nn.init.zeros_(conv.bias)
        return conv
    conv = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def _shortcut(before: int, after: int, stride: int, form: Form) -> nn.Module:
    """The shortcut of a block of a wide ResNet, by its form."""
    if form == "rgp":
        assert after == 2 * before
        return PaddedShortcut(before)
    conv = _conv(before, after, 1, stride, form)
    return conv if form == "standard" else nn.Sequential(_activate(before, form), conv)
