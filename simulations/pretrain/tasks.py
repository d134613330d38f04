"""What a feature extractor learns without labels, from two views of each image.

contrastive   which of the other views in a batch is of the same image (SimCLR: Chen et al. 2020, Eq. 1)
instance      which of all images a view is of (Dosovitskiy et al. 2014, exemplar networks)

Turned images as targets (rotation) are left out: leaves and noise look alike from every side.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

TEMPERATURE = 0.2
PROJECTION = 64
"""Width of the space in which views are compared."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """``head(features, images)`` builds what is trained on top and thrown away; ``loss`` its value for two views."""

    head: Callable[[int, int], nn.Module]
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]


def contrastive_loss(
    first: Float[Tensor, "b k"], second: Float[Tensor, "b k"], rows: Int64[Tensor, " b"]
) -> Float[Tensor, ""]:
    """Mean over views of -log softmax of the cosine with the other view of the image, over all other views.

    Rows i of both are views of one image; ``rows`` is not read.
    """
    views = functional.normalize(torch.cat([first, second]), dim=1)
    likeness = (views @ views.T / TEMPERATURE).fill_diagonal_(float("-inf"))
    other = torch.arange(len(views), device=views.device).roll(len(first))
    return functional.cross_entropy(likeness, other)


def instance_loss(
    first: Float[Tensor, "b n"], second: Float[Tensor, "b n"], rows: Int64[Tensor, " b"]
) -> Float[Tensor, ""]:
    """Cross-entropy of the image's number, one class an image, over both views."""
    return functional.cross_entropy(torch.cat([first, second]), torch.cat([rows, rows]))


def _projection(features: int, images: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 2 * PROJECTION), nn.ReLU(), nn.Linear(2 * PROJECTION, PROJECTION))


def _classes(features: int, images: int) -> nn.Module:
    return nn.Linear(features, images)


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "contrastive": Task(head=_projection, loss=contrastive_loss),
        "instance": Task(head=_classes, loss=instance_loss),
    }
)
"""By name, the default first."""
