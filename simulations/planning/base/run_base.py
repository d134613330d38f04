"""What every process of a run derives from the settings.

``Base`` has the parts: data, partition, method, public schedule. Code that needs more of them asks
one object: ``clients`` are public numbers, ``rows`` the training rows of this process, ``initial``
makes models and states, ``uplink`` says how values travel. All of it is deterministic and calls no
accountant. Bad settings are refused before anything is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from jaxtyping import Int64
from torch import Tensor

from fedlsg import strategies, user_code
from fedlsg.config.units import Unit
from fedlsg.gradients import registered_layers
from fedlsg.method import LocalTraining, Method, Schedule
from fedlsg.payload import IndexMode
from fedlsg.secure_sum.discrete import SumTerms
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.charged_before import Before
from fedlsg.simulations.planning.base.clients import Clients
from fedlsg.simulations.planning.base.initial_state import InitialState
from fedlsg.simulations.planning.base.training_rows import OwnPart, TrainingRows
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.automatic import device_of
from fedlsg.simulations.settings.participation import unit_of
from fedlsg.simulations.settings.resolve import uplink_codec
from fedlsg.simulations.workloads import LoadedWorkload
from fedlsg.strategies.protocol.expectations import Uplink
from fedlsg.user_code.digest import digest_of, digest_of_all


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """The parts of a run. No field changes, so what is cached here is never stale.

    settings: with their gaps filled.
    stream: labels that separate batches and noise of reproducible runs with the same public seed.
    declared: N_k that the clients of a deployment declared; the server has none of their rows,
        ``parts`` is empty.
    before: what the clients were charged for before the rounds that come.
    person: the number of each training row's person, where the unit is one: N_k counts these. None
        elsewhere, and at the server of a deployment.
    """

    settings: Resolved
    workload: LoadedWorkload
    parts: Sequence[Tensor]
    method: Method
    schedule: Schedule
    local: LocalTraining
    stream: tuple[int | str, ...] = ()
    declared: tuple[int, ...] | None = None
    before: Before = field(default_factory=Before)
    person: Int64[Tensor, " rows"] | None = None

    @cached_property
    def device(self) -> str:
        """Where this process computes: "cpu" or "cuda"."""
        return device_of(self.settings.device)

    @cached_property
    def unit(self) -> Unit:
        """What the run's epsilon protects."""
        return unit_of(self.settings, self.method)

    @property
    def divisor(self) -> float:
        """Clients a round times the expected batch: public, fixed before the run. At client level
        updates are means.
        """
        batch = 1.0 if self.unit.whole else self.local.expected_batch
        return self.settings.clients_per_round * batch

    @cached_property
    def sums(self) -> SumTerms | None:
        """The secure sums of the run; None where the server reads every payload on its own."""
        s = self.settings
        if s.trust != "secure":
            return None
        return SumTerms(
            clients=s.clients_per_round,
            min_survivors=s.min_survivors,
            colluders=s.colluders or 0,
            expected_examples=self.divisor,
            releases=self.schedule.rounds,
            delta=s.delta,
        )

    @cached_property
    def clients(self) -> Clients:
        """All clients as public numbers. Raises LookupError at a deployed client, which knows its
        own data only.
        """
        return Clients(
            settings=self.settings,
            local=self.local,
            schedule=self.schedule,
            unit=self.unit,
            sizes=self.rows.sizes if self.declared is None else self.declared,
            names=None if self.unit.at_server else getattr(self.parts, "names", None),
            before=self.before,
        )

    @cached_property
    def rows(self) -> TrainingRows:
        """The training rows of this process."""
        return TrainingRows(
            settings=self.settings,
            train=self.workload.train,
            parts=self.parts,
            person=self.person,
            unit=self.unit,
            augment=None if self.settings.augment == "none" else self.workload.augment,
            device=self.device,
        )

    @cached_property
    def initial(self) -> InitialState:
        """What the run starts from."""
        return InitialState(
            settings=self.settings,
            workload=self.workload,
            method=self.method,
            schedule=self.schedule,
            divisor=self.divisor,
            device=self.device,
            deployed=isinstance(self.parts, OwnPart),
        )

    @cached_property
    def uplink(self) -> Uplink:
        """How the values of clients travel to the server."""
        s = self.settings
        mode: IndexMode = "chosen" if self.method.compression.chooses else s.indices
        return Uplink(method=self.method, codec=uplink_codec(s), seed=s.seed, index_mode=mode)

    @cached_property  # code that has run counts, and its file may change while the run goes
    def own_code(self) -> dict[str, str]:
        """SHA-256 of the code of a user's own that the run uses, by setting; empty if all of it is
        fedlsg's.
        """
        digests = {}
        workload = workloads.own(self.settings.workload)
        if workload is not None:
            digests["workload"] = workload.digest
            if layers := registered_layers():
                digests["layers"] = digest_of_all(layers.values())
        if (method := strategies.given().get(self.settings.method)) is not None:
            digests["method"] = digest_of(method)
        if (source := self.method.carrier.source) is not None and user_code.is_code(source):
            digests["source"] = digest_of(user_code.load(source, "source"))
        return digests


SomeBase = TypeVar("SomeBase", bound=Base)
