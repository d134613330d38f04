"""Small networks on the features of frozen ones: linear, mlp, and cnn for features that are maps.

``cnn`` is the network of Tramer and Boneh 2021 on scattering features ("H-CNN" in Zhu and Blaschko 2023): that of
CIFAR-10 on maps with an even side, that of Fashion-MNIST (7x7) on maps with an odd one.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from types import MappingProxyType

from torch import nn

WIDTH = 64
"""Hidden units of ``mlp``, channels of ``cnn`` (on maps with an odd side a quarter and half as many)."""

Shape = tuple[int, ...]


def heads(shape: Shape, num_classes: int, *, width: int = WIDTH) -> Mapping[str, Callable[[], nn.Module]]:
    """Builders of the heads that fit features of a shape, (D,) or (C, h, w), by name; the first is the default.

    ``cnn`` needs maps.
    """
    found = {"linear": partial(linear_head, shape, num_classes), "mlp": partial(mlp_head, shape, num_classes, width)}
    if len(shape) == 3:
        odd = shape[1] % 2 or shape[2] % 2
        found["cnn"] = partial(odd_cnn_head if odd else cnn_head, shape, num_classes, width)
    return MappingProxyType(found)


def linear_head(shape: Shape, num_classes: int) -> nn.Module:
    """(B, *shape) -> num_classes: logistic regression. It starts at zero: every class is equally likely."""
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
