"""Public probe inputs of a workload, with which a plan checks that its model treats examples independently.

Probes come from the split that accuracy is reported on, never from the rows that are trained on.
"""

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg.gradients.independence import check_independent
from simulations.workloads import Split, to_device

PROBES = 7
TOKENS = 16
"""Texts of at most so many tokens are taken where there are enough: a check of long ones takes long."""


def check_model(model: nn.Module, test: Split, *, device: str) -> None:
    """Raise ``UnsupportedLayerError``, naming the layer, if the model mixes the examples of a batch.

    The texts of a batch have one padded length here, alone and in company: what padding does is not checked.
    """
    inputs, targets = test.batch(probes(test))
    check_independent(model, _losses, to_device(inputs, device), targets.to(device))


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def probes(test: Split) -> Int64[Tensor, " rows"]:
    """Rows from all over the split; of texts, of all lengths up to ``TOKENS``, or the shortest there are.

    The longest comes first: a batch of any of them is as long as that one alone.
    """
    rows = test.order(torch.arange(len(test)))
    if test.lengths is not None:
        short = int((test.lengths <= TOKENS).sum())
        rows = rows[: max(short, PROBES)]
    places = torch.linspace(len(rows) - 1, 0, PROBES).long()
    return rows[places]
