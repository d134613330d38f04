"""Small models: for digits, a CNN for images of any shape, the DP-CNN of RS (Table 2), and heads.

RS is Zhu and Blaschko 2023. Its DP-CNN are the end-to-end networks of Papernot et al. 2021, as
Tramer and Boneh 2021 train them.

Bounded activations keep per-example gradients short, so that less is clipped (Papernot et al. 2021,
"Tempered Sigmoid Activations"). They recommend the tempered sigmoid s / (1 + exp(-T x)) - o with s
= T = 2 and o = 1, which is tanh.
GroupNorm of ``small_cnn`` has one group: it normalises over the whole image and is the fastest on
channels-last memory.

Small networks on the features of frozen ones: linear, mlp, and cnn for features that are maps.

``cnn`` is the network of Tramer and Boneh 2021 on scattering features ("H-CNN" in Zhu and Blaschko
2023): that of CIFAR-10 on maps with an even side, that of Fashion-MNIST (7x7) on maps with an odd
one.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from types import MappingProxyType

from torch import nn

from fedlsg.gradients import StandardizedConv2d

POOLED_SIDE = 4
"""The largest side of the last feature map of ``small_cnn``, so that its hidden layer is small."""

GROUPS = 27
"""Groups of channels of scattering features (9 or 3 in each).

Each group of an example is normalised by itself, without parameters. It is the variant of Tramer
and Boneh that costs no privacy; they search 9, 27 and 81 groups.
"""


def _conv_block(
    in_channels: int, out_channels: int, *pool: nn.Module, standardized: bool = False
) -> nn.Sequential:
    """3x3 convolution, norm of one group, tanh, and a pooling layer if one is given.

    standardized: filters are standardised, and start as those of ``wide_resnet``; the norm has up
        to 16 groups.
    """
    groups = 1
    kind = StandardizedConv2d if standardized else nn.Conv2d
    conv = kind(in_channels, out_channels, 3, padding=1)
    if standardized:
        nn.init.normal_(conv.weight, std=(9 * in_channels) ** -0.5)
        groups = math.gcd(16, out_channels)
    return nn.Sequential(conv, nn.GroupNorm(groups, out_channels), nn.Tanh(), *pool)


def digits_mlp() -> nn.Module:
    """(B, 1, 8, 8) -> 64 -> 64 -> 10 with tanh: 4,810 parameters."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(64, 64),
            tanh=nn.Tanh(),
            classifier=nn.Linear(64, 10),
        )
    )


def digits_conv() -> nn.Module:
    """(B, 1, 8, 8) -> conv 16, 32, each halving the image -> 10: 6,186 parameters."""
    return nn.Sequential(
        OrderedDict(
            conv1=_conv_block(1, 16, nn.AvgPool2d(2)),
            conv2=_conv_block(16, 32, nn.AvgPool2d(2)),
            flatten=nn.Flatten(),
            classifier=nn.Linear(32 * 2 * 2, 10),
        )
    )


def small_cnn(
    channels: int, side: int, num_classes: int, *, width: int = 16, standardized: bool = False
) -> nn.Module:
    """(B, channels, side, side) -> conv w, 2w, 4w, 4w, three of them halving the image -> 4w ->
    num_classes; w: width.

    For (3, 32, 32) and 10 classes: 127,114 parameters; at width 32: 505,098 parameters. A last
    feature map of more than 4x4 is averaged down to that. ``standardized``: with the convolutions
    of De et al. 2022.
    Raises ValueError for a side below 8 or a width below 1.
    """
    if side < 8:
        raise ValueError(f"expected {side=} >= 8: three poolings halve the image")
    if width < 1:
        raise ValueError(f"expected {width=} >= 1")
    last = min(side // 8, POOLED_SIDE)
    pool = [nn.AdaptiveAvgPool2d(POOLED_SIDE)] if last < side // 8 else []
    block = partial(_conv_block, standardized=standardized)
    return nn.Sequential(
        OrderedDict(
            conv1=block(channels, width, nn.MaxPool2d(2)),
            conv2=block(width, 2 * width, nn.MaxPool2d(2)),
            conv3=block(2 * width, 4 * width, nn.MaxPool2d(2)),
            conv4=block(4 * width, 4 * width, *pool),
            flatten=nn.Flatten(),
            hidden=nn.Linear(4 * width * last * last, 4 * width),
            tanh=nn.Tanh(),
            classifier=nn.Linear(4 * width, num_classes),
        )
    )


def dp_cnn(channels: int, side: int, num_classes: int) -> nn.Module:
    """(B, channels, side, side) -> conv 32, 32, 64, 64, 128, 128, each pair pooled -> 128 ->
    num_classes.

    There is no normalisation layer.
    550,570 parameters for CIFAR-10 ("550K" in RS). Raises ValueError for a side below 8.
    """
    if side < 8:
        raise ValueError(f"expected {side=} >= 8: three poolings halve the image")
    layers: list[nn.Module] = []
    width = channels
    for filters in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(width, filters, 3, padding=1), nn.Tanh()]
            width = filters
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        OrderedDict(
            features=nn.Sequential(*layers),
            flatten=nn.Flatten(),
            hidden=nn.Linear(width * (side // 8) ** 2, 128),
            tanh=nn.Tanh(),
            classifier=nn.Linear(128, num_classes),
        )
    )


def dp_cnn_small(channels: int, num_classes: int) -> nn.Module:
    """(B, channels, 28, 28) -> conv 16 of 8x8, conv 32 of 4x4, both by stride 2 -> 32 ->
    num_classes.

    26,010 parameters for Fashion-MNIST ("26K" in RS).
    """
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, 8, stride=2, padding=2),
            tanh1=nn.Tanh(),
            pool1=nn.MaxPool2d(2, stride=1),
            conv2=nn.Conv2d(16, 32, 4, stride=2),
            tanh2=nn.Tanh(),
            pool2=nn.MaxPool2d(2, stride=1),
            flatten=nn.Flatten(),
            hidden=nn.Linear(32 * 4 * 4, 32),
            tanh3=nn.Tanh(),
            classifier=nn.Linear(32, num_classes),
        )
    )


DEFAULT_WIDTH = 64
"""Hidden units of ``mlp``, channels of ``cnn`` (on maps with an odd side a quarter and half as
many).
"""

Shape = tuple[int, ...]


def heads(
    shape: Shape, num_classes: int, *, width: int = DEFAULT_WIDTH
) -> Mapping[str, Callable[[], nn.Module]]:
    """Builders of the heads that fit features of a shape, (D,) or (C, h, w), by name; the first is
    the default.

    ``cnn`` needs maps.
    """
    makers = {
        "linear": partial(linear_head, shape, num_classes),
        "mlp": partial(mlp_head, shape, num_classes, width),
    }
    if len(shape) == 3:
        odd = shape[1] % 2 or shape[2] % 2
        makers["cnn"] = partial(odd_cnn_head if odd else cnn_head, shape, num_classes, width)
    return MappingProxyType(makers)


def linear_head(shape: Shape, num_classes: int) -> nn.Module:
    """(B, *shape) -> num_classes: logistic regression. It starts at zero: every class is equally
    likely.
    """
    classifier = nn.Linear(prod(shape), num_classes)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), classifier=classifier))


def mlp_head(shape: Shape, num_classes: int, width: int) -> nn.Module:
    """(B, *shape) -> width, tanh -> num_classes."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(prod(shape), width),
            tanh=nn.Tanh(),
            classifier=nn.Linear(width, num_classes),
        )
    )


def cnn_head(shape: Shape, num_classes: int, width: int) -> nn.Module:
    """(B, C, h, w) -> conv width, pool, conv width -> num_classes."""
    channels, height, side = shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, width, 3, padding=1),
            tanh1=nn.Tanh(),
            pool=nn.MaxPool2d(2),
            conv2=nn.Conv2d(width, width, 3, padding=1),
            tanh2=nn.Tanh(),
            flatten=nn.Flatten(),
            classifier=nn.Linear(width * (height // 2) * (side // 2), num_classes),
        )
    )


def odd_cnn_head(shape: Shape, num_classes: int, width: int) -> nn.Module:
    """(B, C, h, w) -> conv width / 4 by stride 2, conv width / 2 -> width / 2 -> num_classes."""
    channels, height, side = shape
    first, second = max(width // 4, 1), max(width // 2, 1)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, first, 3, stride=2, padding=1),
            tanh1=nn.Tanh(),
            conv2=nn.Conv2d(first, second, 3, padding=1),
            tanh2=nn.Tanh(),
            flatten=nn.Flatten(),
            hidden=nn.Linear(second * -(-height // 2) * -(-side // 2), second),
            tanh3=nn.Tanh(),
            classifier=nn.Linear(second, num_classes),
        )
    )
