"""H-CNN: a small CNN on scattering features (Tramer and Boneh 2021; RS of Zhu and Blaschko 2023, Table 2).

The features of each example are normalised by themselves, in groups of channels and without parameters: the variant of
Tramer and Boneh that costs no privacy. They search 9, 27 and 81 groups; here are 27, of 9 or 3 channels.
"""

from collections import OrderedDict

from torch import nn

from simulations.models.scattering import COEFFICIENTS, Scattering2d

GROUPS = 27


def h_cnn(channels: int, side: int, num_classes: int) -> nn.Module:
    """(B, channels, side, side) -> scattering -> conv 64, pool, conv 64 -> num_classes.

    187,210 trained parameters for CIFAR-10 ("187K" in RS). Raises ValueError for a side that is no multiple of 8.
    """
    if side < 8 or side % 8:
        raise ValueError(f"expected {side=} to be a multiple of 8: scattering divides it by 4, pooling by 2")
    features = channels * COEFFICIENTS
    return nn.Sequential(
        OrderedDict(
            scattering=Scattering2d(side),
            norm=nn.GroupNorm(GROUPS, features, affine=False),
            conv1=nn.Conv2d(features, 64, 3, padding=1),
            tanh1=nn.Tanh(),
            pool=nn.MaxPool2d(2),
            conv2=nn.Conv2d(64, 64, 3, padding=1),
            tanh2=nn.Tanh(),
            flatten=nn.Flatten(),
            classifier=nn.Linear(64 * (side // 8) ** 2, num_classes),
        )
    )


def h_cnn_small(channels: int, num_classes: int) -> nn.Module:
    """(B, channels, 28, 28) -> scattering -> conv 16 by stride 2, conv 32 -> 32 -> num_classes.

    33,066 trained parameters for Fashion-MNIST ("33K" in RS).
    """
    features = channels * COEFFICIENTS
    return nn.Sequential(
        OrderedDict(
            scattering=Scattering2d(28),
            norm=nn.GroupNorm(GROUPS, features, affine=False),
            conv1=nn.Conv2d(features, 16, 3, stride=2, padding=1),
            tanh1=nn.Tanh(),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            tanh2=nn.Tanh(),
            flatten=nn.Flatten(),
            hidden=nn.Linear(32 * 4 * 4, 32),
            tanh3=nn.Tanh(),
            classifier=nn.Linear(32, num_classes),
        )
    )
