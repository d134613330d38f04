"""The accuracy that each client sees: the public test split, in parts like the clients' own.

Each part has the class mix of its client, by the scheme that made the clients (``parts_of_test``). Nothing is measured
on private rows: the accuracy of a client on its own training rows would be a release that no epsilon covers.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int64
from torch import Tensor, nn

from fedlsg.carriers.personal import personal_names
from fedlsg.gradients import trainable
from fedlsg.state import ServerState
from simulations.client.train import own_parameters
from simulations.plan.base import Base
from simulations.plan.clients import parts_of_test
from simulations.rundir.last_payload import FeedbackBox
from simulations.rundir.rundir import RunDir
from simulations.server.evaluate import Score, evaluate


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


class ClientScores:
    """Scores of each client's model on its part of the test split: the shared model, with its own personal parameters.

    Personal parameters are read from the clients' folders in the run directory, which a simulation has. With a private
    mechanism they are private themselves: they are made from noisy values.
    """

    def __init__(self, base: Base, state: ServerState, run: RunDir) -> None:
        self._base, self._state, self._run = base, state, run

    @cached_property
    def _parts(self) -> Sequence[Int64[Tensor, " n"]]:
        return parts_of_test(self._base)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        personal = self._base.method.personal
        return personal_names(trainable(self._state.model), personal, self._state.public.classifier) if personal else ()

    def measure(self) -> list[Score | None]:
        """By client; None for an empty part."""
        with self._state.evaluated() as model:
            return [self._score(model, client, rows) for client, rows in enumerate(self._parts)]

    def _score(self, model: nn.Module, client: int, rows: Int64[Tensor, " n"]) -> Score | None:
        if not len(rows):
            return None
        workload, parameters = self._base.workload, trainable(model)
        size = sum(parameters[name].numel() for name in self._names)
        own = FeedbackBox(self._run.own(client), client).newest(self._state.round, size) if self._names else None
        with nullcontext() if own is None else own_parameters(model, self._names, own):
            return evaluate(model, workload.test.pick(rows), loss=workload.loss, device=self._base.device)

    def overall(self) -> Score:
        """Accuracy and loss over all test rows, each under the model of the client in whose part it is."""
        found = [(len(rows), score) for rows, score in zip(self._parts, self.measure(), strict=True) if score]
        total = sum(count for count, _ in found)
        accuracy = sum(count * (score.accuracy or 0.0) for count, score in found) / total
        loss = sum(count * score.loss for count, score in found) / total
        return Score(accuracy=accuracy, loss=loss, by_split={name: accuracy for name in self._base.workload.tests})

    def spread(self) -> ByClient:
        """The accuracies and their spread."""
        return ByClient.of([None if score is None else score.accuracy for score in self.measure()])
