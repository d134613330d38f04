"""Models by image shape, and the helpers that fill them with pre-trained weights.

``vision`` lists the models for images of one shape. Every model is made of layers with per-example
gradients, has no in-place operation and no layer that mixes examples, and names its output layer
``classifier``. Build them through ``fedlsg.simulations.workloads.build_model``, which makes their
initial weights public and repeatable.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from torch import nn

from fedlsg.simulations.models.pretrained import load_pretrained, with_pretrained
from fedlsg.simulations.models.resnet import (
    Form,
    Stem,
    cifar_resnet,
    resnet34,
    resnet50,
    wide_resnet,
)
from fedlsg.simulations.models.small import digits_conv, digits_mlp, dp_cnn, dp_cnn_small, small_cnn

__all__ = ["digits_conv", "digits_mlp", "load_pretrained", "vision", "with_pretrained"]

Builder = Callable[[], nn.Module]

WIDE: Mapping[str, tuple[int, int, Form]] = MappingProxyType(
    {
        "wrn-16-4": (16, 4, "standard"),
        "wrn-16-4-ws": (16, 4, "standardized"),
        "wrn-16-4-gain": (16, 4, "gain"),
        "wrn-28-4": (28, 4, "rgp"),
        "wrn-28-4-standard": (28, 4, "standard"),
        "wrn-28-10": (28, 10, "standard"),
        "wrn-28-10-ws": (28, 10, "standardized"),
        "wrn-28-10-gain": (28, 10, "gain"),
        "wrn-40-4-ws": (40, 4, "standardized"),
        "wrn-40-4-gain": (40, 4, "gain"),
    }
)
"""Depth, width and form of the wide ResNets.

LSG and RGP train wrn-28-4, De et al. 2022 and DP-SSGD those that end on -ws. Those that end on
-gain take De et al.'s own weights (examples/convert_weights.py).
"""

SMALLEST, WIDEST = 16, 64
"""The smallest and the largest side, in pixels, of images for CIFAR networks."""
IMAGENET = 64
"""The side from which on resnet-34 and resnet-50 have their ImageNet stem."""


def vision(channels: int, side: int, num_classes: int) -> Mapping[str, Builder]:
    """Builders of the models for images (B, channels, side, side), by name; the first is the
    default.

    ``cnn`` and ``cnn-wide``, with twice its channels, fit from 8 pixels on, and so does
    ``cnn-wide-ws``, with the convolutions of De et al. 2022. 28x28 images get the small DP-CNN of
    Fashion-MNIST under the name ``dp-cnn``, as in Zhu and Blaschko 2023.
    Raises ValueError for a shape that no model fits.
    """
    if channels < 1 or side < 8 or num_classes < 2:
        raise ValueError(
            f"no model fits {channels=}, {side=}, {num_classes=}: expected at least one channel, 8 "
            "pixels, 2 classes"
        )
    models: dict[str, Builder] = {
        "cnn": partial(small_cnn, channels, side, num_classes),
        "cnn-wide": partial(small_cnn, channels, side, num_classes, width=32),
        "cnn-wide-ws": partial(small_cnn, channels, side, num_classes, width=32, standardized=True),
    }
    if SMALLEST <= side <= WIDEST:
        if side == 28:
            models["dp-cnn"] = partial(dp_cnn_small, channels, num_classes)
        else:
            models["dp-cnn"] = partial(dp_cnn, channels, side, num_classes)
        for name, (depth, width, form) in WIDE.items():
            models[name] = partial(
                wide_resnet, depth, width, channels=channels, num_classes=num_classes, form=form
            )
        for depth in (8, 20):
            models[f"resnet-{depth}"] = partial(
                cifar_resnet, depth, channels=channels, num_classes=num_classes
            )
    if side >= SMALLEST:
        stem: Stem = "imagenet" if side >= IMAGENET else "cifar"
        for name, build in (("resnet-34", resnet34), ("resnet-50", resnet50)):
            models[name] = partial(build, channels=channels, num_classes=num_classes, stem=stem)
    return MappingProxyType(models)
