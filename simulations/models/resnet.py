"""ResNets (He et al. 2016) with GroupNorm instead of BatchNorm, which mixes examples."""

from collections import OrderedDict
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Stem = Literal["cifar", "imagenet"]
GROUPS, EXPANSION = 32, 4


def resnet34(*, channels: int, num_classes: int, stem: Stem = "imagenet") -> nn.Module:
    """ResNet-34 for images (B, channels, s, s): stages of 3, 4, 6, 3 blocks with 64 to 512 channels.

    The ``imagenet`` stem, a 7x7 convolution and a max pooling, divides the side by 4; the ``cifar`` stem, a 3x3
    convolution, keeps it. With the imagenet stem and 1,000 classes it has the published 21,797,672 parameters.
    Differs from the paper: GroupNorm of 32 groups (Wu and He 2018).
    """
    return _with_stages(_stem(channels, stem), blocks=(3, 4, 6, 3), width=64, num_classes=num_classes)


def resnet50(*, channels: int, num_classes: int, stem: Stem = "imagenet") -> nn.Module:
    """ResNet-50 for images (B, channels, s, s): stages of 3, 4, 6, 3 bottlenecks with 256 to 2,048 channels.

    With the imagenet stem and 1,000 classes it has the published 25,557,032 parameters. The 3x3 convolution has the
    stride, as in torchvision and timm. It takes timm's weights with group norm after examples/convert_weights.py,
    which changes their names. Differs from the paper: GroupNorm of 32 groups.
    """
    layers = _stem(channels, stem)
    return _with_stages(layers, blocks=(3, 4, 6, 3), width=64, num_classes=num_classes, bottleneck=True)


def _stem(channels: int, stem: Stem) -> "OrderedDict[str, nn.Module]":
    if stem == "imagenet":
        conv, pool = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False), [nn.MaxPool2d(3, stride=2, padding=1)]
    else:
        conv, pool = nn.Conv2d(channels, 64, 3, padding=1, bias=False), []
    return OrderedDict(stem=nn.Sequential(conv, nn.GroupNorm(GROUPS, 64), nn.ReLU(), *pool))


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
    layers: "OrderedDict[str, nn.Module]",
    *,
    blocks: tuple[int, ...],
    width: int,
    num_classes: int,
    bottleneck: bool = False,
) -> nn.Module:
    """The stem ``layers``, stages of ``blocks`` blocks whose channels double from ``width``, the classifier."""
    before, block = width, Bottleneck if bottleneck else Block
    for stage, count in enumerate(blocks):
        after = width * 2**stage * (EXPANSION if bottleneck else 1)
        rest = [block(after, after, 1) for _ in range(count - 1)]
        layers[f"stage{stage + 1}"] = nn.Sequential(block(before, after, 1 if stage == 0 else 2), *rest)
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
        self.shortcut = _shortcut(before, after, stride)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Bottleneck(nn.Module):
    """ReLU(x + ...) around convolutions 1x1, 3x3 and 1x1, each with a norm, a quarter of the channels in the middle."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        inner = after // EXPANSION
        self.conv1 = nn.Conv2d(before, inner, 1, bias=False)
        self.norm1 = nn.GroupNorm(min(GROUPS, inner), inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(min(GROUPS, inner), inner)
        self.conv3 = nn.Conv2d(inner, after, 1, bias=False)
        self.norm3 = nn.GroupNorm(min(GROUPS, after), after)
        self.shortcut = _shortcut(before, after, stride)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        y = F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))
        return F.relu(self.norm3(self.conv3(y)) + (x if self.shortcut is None else self.shortcut(x)))


def _shortcut(before: int, after: int, stride: int) -> nn.Module | None:
    if stride == 1 and before == after:
        return None
    conv = nn.Conv2d(before, after, 1, stride=stride, bias=False)
    return nn.Sequential(conv, nn.GroupNorm(min(GROUPS, after), after))
