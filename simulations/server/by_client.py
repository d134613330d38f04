"""The accuracy that each client sees: the public test split, in parts like the clients' own.

Each part has the class mix of its client, by the scheme that made the clients (``parts_of_test``). Nothing is measured
on private rows: the accuracy of a client on its own training rows would be a release that no epsilon covers.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import nn

from simulations.plan.base import Base
from simulations.plan.public_parts import parts_of_test
from simulations.server.evaluate import evaluate


@dataclass(frozen=True, kw_only=True)
class ByClient:
    """Accuracies in 0..1 of each client, None for one whose part of the test split is empty, and their spread."""

    accuracies: Sequence[float | None]
    mean: float
    worst: float
    percentile_10: float

    @classmethod
    def of(cls, accuracies: Sequence[float | None]) -> "ByClient":
        """The spread over the clients with a part; each client counts the same."""
        known = np.array([accuracy for accuracy in accuracies if accuracy is not None])
        return cls(
            accuracies=list(accuracies),
            mean=float(known.mean()),
            worst=float(known.min()),
            percentile_10=float(np.percentile(known, 10)),
        )

    @property
    def facts(self) -> dict[str, Any]:
        """As in summary.json."""
        return asdict(self)


def by_client(base: Base, model_of: Callable[[int], nn.Module]) -> ByClient:
    """The accuracy of each client's model on its part of the test split."""
    found = [
        evaluate(model_of(client), base.workload.test.pick(rows), loss=base.workload.loss, device=base.device).accuracy
        if len(rows)
        else None
        for client, rows in enumerate(parts_of_test(base))
    ]
    return ByClient.of(found)
