"""The names of torchvision and timm for ResNets, as those of ``resnet-34`` and ``resnet-50``.

    conv1, bn1               stem.0, stem.1
    layer1.0.conv2, bn2      stage1.0.conv2, norm2          layer1.0.downsample.0, .1       stage1.0.shortcut.0, .1
    fc                       classifier
Weights with group norm alone fit (timm: ``resnet50_gn``), since batch norm mixes examples.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

from simulations.convert.arrays import Arrays

RULES = (
    (r"conv1\.", "stem.0."),
    (r"bn1\.", "stem.1."),
    (r"layer(\d+)\.(\d+)\.bn(\d+)\.", r"stage\1.\2.norm\3."),
    (r"layer(\d+)\.(\d+)\.downsample\.", r"stage\1.\2.shortcut."),
    (r"layer(\d+)\.", r"stage\1."),
    (r"fc\.", "classifier."),
)
BLOCKS: Mapping[tuple[int | bool, ...], str] = {(3, 4, 6, 3, False): "resnet-34", (3, 4, 6, 3, True): "resnet-50"}
"""Models by the blocks of their stages, and whether these are bottlenecks."""


def is_layout(names: Iterable[str]) -> bool:
    """Whether these are names of such a state dict."""
    return {"conv1.weight", "layer1.0.conv1.weight"} <= set(names)


def renamed(arrays: Arrays) -> dict[str, np.ndarray]:
    """Weights under our names. Raises ValueError for weights with batch norm."""
    if any(name.endswith("running_mean") for name in arrays):
        raise ValueError(
            "these weights have batch norm, which mixes the examples of a batch: take weights with group norm, such as "
            "timm's resnet50_gn"
        )
    return {_our_name(name): array for name, array in arrays.items()}


def model_name(weights: Arrays) -> str:
    """``resnet-34`` or ``resnet-50``. Raises ValueError for another depth."""
    blocks = [len({name.split(".")[1] for name in weights if name.startswith(f"stage{k}.")}) for k in range(1, 5)]
    name = BLOCKS.get((*blocks, "stage1.0.conv3.weight" in weights))
    if name is None:
        raise ValueError(f"a ResNet with stages of {blocks} blocks is none of {', '.join(BLOCKS.values())}")
    return name


def _our_name(name: str) -> str:
    for pattern, ours in RULES:
        found, count = re.subn(f"^{pattern}", ours, name)
        if count:
            return found
    return name
