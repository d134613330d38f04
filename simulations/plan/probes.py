"""Public probe inputs of a workload: a plan checks with them that its model treats examples independently.

Probes come from the test split, never from training rows.
"""

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg.gradients.independence import check_independent
from simulations.workloads import Split, to_device

PROBES = 7
TOKENS = 16
"""Most tokens of a probe text, if enough texts are that short: the check of long texts is slow."""


def check_model(model: nn.Module, test: Split, *, device: str) -> None:
    """Raise ``UnsupportedLayerError``, naming the layer, if the model mixes the examples of a batch.

    The texts of a batch have the same padded length here, alone and together: effects of padding are not checked.
    """
    inputs, targets = test.batch(probes(test))
    check_independent(model, _losses, to_device(inputs, device), targets.to(device))


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def probes(test: Split) -> Int64[Tensor, " rows"]:
    """Rows from all over the split; of texts, of all lengths up to ``TOKENS``, or the shortest.

    The longest is first: a batch with it is as long as that one alone.
    """
    rows = test.order(torch.arange(len(test)))
    if test.lengths is not None:
        short = int((test.lengths <= TOKENS).sum())
        rows = rows[: max(short, PROBES)]
    places = torch.linspace(len(rows) - 1, 0, PROBES).long()
    return rows[places]
