"""Small models for the image workloads.

Every model is made of layers with per-example gradients (Linear, Conv2d, GroupNorm), tanh and pooling, without
in-place operations and without BatchNorm, and names its output layer ``classifier``. Bounded activations keep
per-example gradients short, so that less is clipped (Papernot et al. 2021, "Tempered Sigmoid Activations").
GroupNorm has one group: it normalises over the whole image and is the fastest on channels-last memory.
Build them through ``simulations.workloads.build_model``, which makes their initial weights public and repeatable.
"""

from collections import OrderedDict

from torch import nn


def _conv_block(in_channels: int, out_channels: int, *pool: nn.Module) -> nn.Sequential:
    """3x3 convolution, one-group norm, tanh, and a pooling layer where one is given."""
    layers = [nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.GroupNorm(1, out_channels), nn.Tanh()]
    return nn.Sequential(*layers, *pool)


def digits_mlp() -> nn.Module:
    """(B, 1, 8, 8) -> 64 -> 64 -> 10 with tanh: 4,810 parameters."""
    return nn.Sequential(
        OrderedDict(flatten=nn.Flatten(), hidden=nn.Linear(64, 64), tanh=nn.Tanh(), classifier=nn.Linear(64, 10))
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


def cifar10_cnn() -> nn.Module:
    """(B, 3, 32, 32) -> conv 16, 32, 64, 64 -> 64 -> 10: 127,114 parameters."""
    return nn.Sequential(
        OrderedDict(
            conv1=_conv_block(3, 16, nn.MaxPool2d(2)),
            conv2=_conv_block(16, 32, nn.MaxPool2d(2)),
            conv3=_conv_block(32, 64, nn.MaxPool2d(2)),
            conv4=_conv_block(64, 64),
            flatten=nn.Flatten(),
            hidden=nn.Linear(64 * 4 * 4, 64),
            tanh=nn.Tanh(),
            classifier=nn.Linear(64, 10),
        )
    )
