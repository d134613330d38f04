"""A run starts from the initial model, the public state and the server's state on it.

All of it follows from public settings and public data, and is equal in every process.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from fedlsg.carriers import prepare_model
from fedlsg.carriers.probe import ProbeSource
from fedlsg.gradients import trainable
from fedlsg.method import Method, Schedule
from fedlsg.simulations.planning.base.start_weights import find_source, late_source
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.workloads import LoadedWorkload, build_model
from fedlsg.state import PublicState, ServerState


@dataclass(frozen=True, kw_only=True, eq=False)
class InitialState:
    """Makes models and states. No field changes, so what is cached here is never stale.

    settings, workload, method, schedule: of the run.
    divisor: what the server divides a sum by.
    device: where this process computes.
    deployed: whether this process is a client with data of its own, which runs no function that a
        setting names.
    """

    settings: Resolved
    workload: LoadedWorkload
    method: Method
    schedule: Schedule
    divisor: float
    device: str
    deployed: bool

    def model(self) -> nn.Module:
        """A new initial model as the method trains it, on this process's device."""
        s = self.settings
        model = build_model(self.workload, s.model, s.seed)
        prepare_model(model, self.method.carrier, classifier=self.workload.classifier, seed=s.seed)
        return model.to(self.device)

    def public(self) -> PublicState:
        """The public state before the first round, on a model of its own."""
        source, spec = None, self.method.carrier.source
        if spec is not None:
            source = late_source(
                spec, self.workload, lambda: self.probe_source, deployed=self.deployed
            )
        return PublicState.start(
            self.model(),
            self.method,
            self.schedule,
            seed=self.settings.seed,
            classifier=self.workload.classifier,
            source=source,
        )

    def server(self, public: PublicState | None = None) -> ServerState:
        """The server's state before the first round; ``public``: None: it is made here."""
        probe = self.workload.test.batch(torch.zeros(1, dtype=torch.int64))[0]
        return ServerState(
            self.public() if public is None else public, divisor=self.divisor, pruning_inputs=probe
        )

    @cached_property
    def probe_source(self) -> ProbeSource:
        """The source of carriers of kind ``probe``. Raises ValueError as ``find_source``."""
        assert self.method.carrier.source is not None
        return find_source(self.method.carrier.source, self.workload, self.settings)

    @cached_property
    def dense_parameters(self) -> int:
        """Parameters that ``dpsgd`` would train on this model: the baseline of communication."""
        model = build_model(self.workload, self.settings.model, self.settings.seed)
        return sum(p.numel() for p in trainable(model).values())
