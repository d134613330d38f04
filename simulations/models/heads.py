"""Small networks on the features of frozen ones: linear, mlp, and cnn for features that are maps.

``cnn`` is the network of Tramer and Boneh 2021 on scattering features ("H-CNN" in Zhu and Blaschko 2023).
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from types import MappingProxyType

from torch import nn

WIDTH = 64
"""Hidden units of ``mlp``, channels of ``cnn``."""

Shape = tuple[int, ...]


def heads(shape: Shape, num_classes: int, *, width: int = WIDTH) -> Mapping[str, Callable[[], nn.Module]]:
    """Builders of the heads that fit features of a shape, (D,) or (C, h, w), by name; the first is the default.

    ``cnn`` needs maps with an even side.
    """
    found = {"linear": partial(linear_head, shape, num_classes), "mlp": partial(mlp_head, shape, num_classes, width)}
    if len(shape) == 3 and not (shape[1] % 2 or shape[2] % 2):
        found["cnn"] = partial(cnn_head, shape, num_classes, width)
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
