"""ResNets (He et al. 2016) with GroupNorm instead of BatchNorm, which mixes examples."""

from collections import OrderedDict
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Stem = Literal["cifar", "imagenet"]
GROUPS = 32


def resnet34(*, channels: int, num_classes: int, stem: Stem = "imagenet") -> nn.Module:
    """ResNet-34 for images (B, channels, s, s): stages of 3, 4, 6, 3 blocks with 64 to 512 channels.

    The ``imagenet`` stem, a 7x7 convolution and a max pooling, divides the side by 4; the ``cifar`` stem, a 3x3
    convolution, keeps it. With the imagenet stem and 1,000 classes it has the published 21,797,672 parameters.
    Differs from the paper: GroupNorm of 32 groups (Wu and He 2018).
    """
    if stem == "imagenet":
        conv, pool = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False), [nn.MaxPool2d(3, stride=2, padding=1)]
    else:
        conv, pool = nn.Conv2d(channels, 64, 3, padding=1, bias=False), []
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=nn.Sequential(conv, nn.GroupNorm(GROUPS, 64), nn.ReLU(), *pool)
    )
    return _with_stages(layers, blocks=(3, 4, 6, 3), width=64, num_classes=num_classes)


def cifar_resnet(depth: int, *, channels: int, num_classes: int) -> nn.Module:
    """ResNet-20, or another of depth 6n + 2, for images (B, channels, s, s): n blocks of 16, 32 and 64 channels each.

    Differs from the paper (section 4.2): GroupNorm of 32 groups at most, and a 1x1 convolution where the shape changes,
    instead of padding with zeros. Raises ValueError for another depth.
    """
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"expected {depth=} of 8, 14, 20, ...: 6n + 2")
    conv = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
    layers = OrderedDict[str, nn.Module](stem=nn.Sequential(conv, nn.GroupNorm(16, 16), nn.ReLU()))
    return _with_stages(layers, blocks=3 * (depth // 6,), width=16, num_classes=num_classes)


def _with_stages(
    layers: "OrderedDict[str, nn.Module]", *, blocks: tuple[int, ...], width: int, num_classes: int
) -> nn.Module:
    """The stem ``layers``, stages of ``blocks`` blocks whose channels double from ``width``, the classifier."""
    before = width
    for stage, count in enumerate(blocks):
        after = width * 2**stage
        rest = [Block(after, after, 1) for _ in range(count - 1)]
        layers[f"stage{stage + 1}"] = nn.Sequential(Block(before, after, 1 if stage == 0 else 2), *rest)
        before = after
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["classifier"] = nn.Linear(before, num_classes)
    model = nn.Sequential(layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


class Block(nn.Module):
    """ReLU(x + norm(conv(ReLU(norm(conv(x)))))), x through a 1x1 convolution and a norm where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        groups = min(GROUPS, after)
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.shortcut: nn.Module | None = None
        if stride != 1 or before != after:
            conv = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.GroupNorm(groups, after))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))
