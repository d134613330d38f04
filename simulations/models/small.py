"""Small models: the digits models, and a CNN for images of any shape.

Bounded activations keep per-example gradients short, so that less is clipped (Papernot et al. 2021, "Tempered Sigmoid
Activations"). GroupNorm has one group: it normalises over the whole image and is the fastest on channels-last memory.
"""

from collections import OrderedDict

from torch import nn

POOLED_SIDE = 4
"""The side that the last feature map of ``small_cnn`` has at most, so that its hidden layer stays small."""


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


def small_cnn(channels: int, side: int, num_classes: int, *, width: int = 16) -> nn.Module:
    """(B, channels, side, side) -> conv w, 2w, 4w, 4w, three of them halving the image -> 4w -> num_classes; w: width.

    For (3, 32, 32) and 10 classes: 127,114 parameters; at width 32: 505,098 parameters. A last feature map of more than
    4x4 is averaged down to that. Raises ValueError for a side below 8 or a width below 1.
    """
    if side < 8:
        raise ValueError(f"expected {side=} >= 8: three poolings halve the image")
    if width < 1:
        raise ValueError(f"expected {width=} >= 1")
    last = min(side // 8, POOLED_SIDE)
    pool = [nn.AdaptiveAvgPool2d(POOLED_SIDE)] if last < side // 8 else []
    return nn.Sequential(
        OrderedDict(
            conv1=_conv_block(channels, width, nn.MaxPool2d(2)),
            conv2=_conv_block(width, 2 * width, nn.MaxPool2d(2)),
            conv3=_conv_block(2 * width, 4 * width, nn.MaxPool2d(2)),
            conv4=_conv_block(4 * width, 4 * width, *pool),
            flatten=nn.Flatten(),
            hidden=nn.Linear(4 * width * last * last, 4 * width),
            tanh=nn.Tanh(),
            classifier=nn.Linear(4 * width, num_classes),
        )
    )
