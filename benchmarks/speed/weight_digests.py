"""What digests of all weights take of a step: ``python -m benchmarks.speed.weight_digests``.

A ``PrivateStep`` of two perceptrons on a processor, a batch of 200 rows. The share is that of the
digests alone, so what else runs on the machine matters little.
"""

import time
from collections.abc import Mapping
from unittest.mock import patch

import torch
from torch import Tensor, nn

from fedlsg import PrivateStep
from fedlsg.privacy import trained_weights

ROWS, WIDTH, CLASSES = 2000, 500, 10
FIRST, STEPS = 5, 60
"""Steps that are not counted, and those that are."""


def share_of(hidden: int) -> tuple[int, float, float]:
    """Parameters, seconds of a step, and the share of the digests."""
    torch.manual_seed(0)
    rows = torch.randn(ROWS, WIDTH), torch.randint(CLASSES, (ROWS,))
    layers = [nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(hidden, CLASSES))
    settings = {"num_examples": ROWS, "sample_rate": 0.1, "steps": FIRST + STEPS}
    step = PrivateStep(
        model, nn.CrossEntropyLoss(), method="dpsgd", epsilon=8, delta=1e-5, **settings
    )
    batches, spent, made = step.batches(rows), [0.0], trained_weights.digests_of

    def timed(tensors: Mapping[str, Tensor]) -> dict[str, tuple[bytes, ...]]:
        began = time.perf_counter()
        digests = made(tensors)
        spent[0] += time.perf_counter() - began
        return digests

    for _ in range(FIRST):
        step.step(batches)
    with patch.object(trained_weights, "digests_of", timed):
        began = time.perf_counter()
        for _ in range(STEPS):
            step.step(batches)
        seconds = time.perf_counter() - began
    return sum(p.numel() for p in model.parameters()), seconds / STEPS, spent[0] / seconds


if __name__ == "__main__":
    for hidden in (10, 500):
        parameters, seconds, share = share_of(hidden)
        print(f"{parameters:,} parameters: {1000 * seconds:.1f} ms a step, digests {share:.1%}")
