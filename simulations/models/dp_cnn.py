"""DP-CNN: the end-to-end networks of Papernot et al. 2021, as Tramer and Boneh 2021 train them (also RS, Table 2).

RS is Zhu and Blaschko 2023.
Papernot et al. recommend the tempered sigmoid s / (1 + exp(-T x)) - o with s = T = 2 and o = 1, which is tanh.
There is no normalisation layer.
"""

from collections import OrderedDict

from torch import nn


def dp_cnn(channels: int, side: int, num_classes: int) -> nn.Module:
    """(B, channels, side, side) -> conv 32, 32, 64, 64, 128, 128, each pair pooled -> 128 -> num_classes.

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
    """(B, channels, 28, 28) -> conv 16 of 8x8, conv 32 of 4x4, both by stride 2 -> 32 -> num_classes.

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
