"""What every process of a run derives from the settings: data, partition, model, method, public
schedule.

It is deterministic and calls no accountant. Bad settings are refused before anything is written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from fedlsg import strategies, user_code
from fedlsg.carriers import prepare_model
from fedlsg.carriers.probe import ProbeSource
from fedlsg.config.isolation import CHECKED, Isolation, Wanted
from fedlsg.config.selection import Selection, selection_of
from fedlsg.config.units import Unit
from fedlsg.gradients import registered_layers, trainable
from fedlsg.gradients.isolation.levels import resolve
from fedlsg.gradients.isolation.trial import level_of_own_code
from fedlsg.method import LocalTraining, Method, Schedule
from fedlsg.participation import Participation
from fedlsg.payload import Codec, Dither, IndexMode
from fedlsg.privacy.sampling import batches_of_epoch, epochs_begun
from fedlsg.randomness import own_draws
from fedlsg.secure_sum.discrete import SumTerms
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.before import Before, Kind
from fedlsg.simulations.planning.start_weights import found_source, late_source
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.automatic import device_of
from fedlsg.simulations.settings.own_epsilons import budget_of
from fedlsg.simulations.settings.participation import participation_of, unit_of
from fedlsg.simulations.settings.resolve import uplink_codec
from fedlsg.simulations.storage.declared import EVERYTHING, RELEASED, Released
from fedlsg.simulations.workloads import (
    Fetch,
    LoadedWorkload,
    Split,
    build_model,
    fetcher,
    to_device,
)
from fedlsg.simulations.workloads.base.made_ahead import MadeAhead, workers_of
from fedlsg.simulations.workloads.base.parts import Parts
from fedlsg.simulations.workloads.base.split import Augment
from fedlsg.state import PublicState, RoundPlan, ServerState
from fedlsg.tensors import spaced
from fedlsg.training import Persons
from fedlsg.user_code.digest import digest_of, digest_of_all
from fedlsg.user_code.objects import restored

TRIED = 4
"""Public rows on which the level of isolation is tried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Own:
    """The data of a deployed client, which does not know the other clients' data.

    client: its number in the federation. read: its training rows, in the form of the run's
    workload.
    expected_batch: that of the federation, once the server has announced it; None assumes clients
    of equal size.
    """

    client: int
    read: Callable[[LoadedWorkload], Split]
    expected_batch: float | None = None


class OwnPart(Sequence[Tensor]):
    """The partition of a federation as one client sees it: all rows here are its own, other clients
    are unknown.
    """

    def __init__(self, client: int, size: int) -> None:
        self.client, self.rows = client, torch.arange(size)

    def __getitem__(self, client: object) -> Any:
        if client != self.client:
            raise LookupError(
                f"client {self.client} knows its own data only, not those of client {client}"
            )
        return self.rows

    def __len__(self) -> int:
        raise LookupError("a deployed client does not know the data of the others")


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """What every process derives from the settings. ``settings`` have their gaps filled.

    stream: labels that separate batches and noise of reproducible runs with the same public seed.
    declared: N_k that the clients of a deployment declared; the server has none of their rows,
    ``parts`` is empty. before: what the clients were charged for before the rounds that come.
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

    @cached_property  # its fields never change
    def device(self) -> str:
        """Where this process computes: "cpu" or "cuda"."""
        return device_of(self.settings.device)

    @cached_property  # its fields never change
    def fetch(self) -> Fetch:
        """Training examples by their rows, on this process's device."""
        train = self.workload.train
        return fetcher(train if self.ahead is None else self.ahead.of(train), self.device)

    @cached_property  # its fields never change
    def ahead(self) -> MadeAhead | None:
        """Workers that make the training rows which ``fetch`` will be asked for; None where this
        process makes them.
        """
        train = self.workload.train
        workers = workers_of(self.settings, train.inputs)
        return MadeAhead(train, workers) if workers else None

    @cached_property  # its fields never change
    def own_code(self) -> dict[str, str]:
        """SHA-256 of the code of a user's own that the run uses, by setting; empty if all of it is
        fedlsg's.
        """
        workload = workloads.own(self.settings.workload)
        found = {} if workload is None else {"workload": workload.digest}
        if workload is not None and (layers := registered_layers()):
            found["layers"] = digest_of_all(layers.values())
        method = strategies.given().get(self.settings.method)
        if method is not None:
            found["method"] = digest_of(method)
        if (source := self.method.carrier.source) is not None and user_code.is_code(source):
            found["source"] = digest_of(user_code.load(source, "source"))
        return found

    @cached_property  # its fields never change
    def sizes(self) -> Sequence[int]:
        """Declared number of examples, or of persons, N_k of every client."""
        if self.declared is not None:
            return self.declared
        if self.person is not None:
            return [self.size_of(client) for client in range(len(self.parts))]
        return (
            self.parts.sizes
            if isinstance(self.parts, Parts)
            else [len(part) for part in self.parts]
        )

    def size_of(self, client: int) -> int:
        """N_k of a client whose rows are here."""
        persons = self.persons_of(client)
        return len(self.parts[client]) if persons is None else persons.count

    def persons_of(self, client: int) -> Persons | None:
        """The persons of a client's rows, None where the unit is none; made once a client."""
        if not self.unit.persons:
            return None
        assert self.person is not None, "rows of a unit of persons have their numbers"
        if client not in self._persons:
            s = self.settings
            self._persons[client] = Persons(
                self.person[self.parts[client]].unique(return_inverse=True)[1],
                most_rows=s.person_rows,
                gradient=s.person_gradient,
            )
        return self._persons[client]

    @cached_property  # its fields never change
    def _persons(self) -> dict[int, Persons]:
        return {}

    @cached_property  # its fields never change
    def budgets(self) -> Sequence[tuple[float | None, float | None]]:
        """What every client may spend in the run, (epsilon, delta); None without a target."""
        s, clients = self.settings, len(self.sizes)
        if not self.own_budgets:
            return [(s.epsilon, s.delta)] * clients
        return [budget_of(s, client) for client in range(clients)]

    @property
    def own_budgets(self) -> bool:
        """Whether clients have an epsilon or a delta of their own, and noise and weight for it."""
        s = self.settings
        return s.client_epsilons is not None or s.client_deltas is not None

    @cached_property  # its fields never change
    def kinds(self) -> Sequence[Kind]:
        """What the noise of every client follows from."""
        return [(size, *own) for size, own in zip(self.sizes, self.budgets, strict=True)]

    @cached_property  # its fields never change
    def rates(self) -> list[float]:
        """Poisson rate of every client."""
        of = {size: self.rate_of(size) for size in dict.fromkeys(self.sizes)}
        return list(map(of.__getitem__, self.sizes))

    def rate_of(self, num_examples: int) -> float:
        """Poisson rate of a client with so many examples."""
        size = self.settings.batch_size
        return self.local.sample_rate if size is None else min(size / num_examples, 1.0)

    def build_model(self) -> nn.Module:
        """The initial model as the method trains it: public, equal in every process, on this
        process's device.
        """
        s = self.settings
        model = build_model(self.workload, s.model, s.seed)
        prepare_model(model, self.method.carrier, classifier=self.workload.classifier, seed=s.seed)
        return model.to(self.device)

    def public_state(self) -> PublicState:
        """The public state before the first round, on a model of its own."""
        seed, classifier = self.settings.seed, self.workload.classifier
        source, deployed = None, isinstance(self.parts, OwnPart)
        if (spec := self.method.carrier.source) is not None:
            source = late_source(spec, self.workload, lambda: self.probe_source, deployed=deployed)
        return PublicState.start(
            self.build_model(),
            self.method,
            self.schedule,
            seed=seed,
            classifier=classifier,
            source=source,
        )

    @cached_property  # its fields never change
    def probe_source(self) -> ProbeSource:
        """What carriers of kind ``probe`` are made from. Raises ValueError as ``found_source``."""
        assert self.method.carrier.source is not None
        return found_source(self.method.carrier.source, self.workload, self.settings)

    def server_state(self, public: PublicState | None = None) -> ServerState:
        """The server's state before the first round; ``public``: that of the initial model, if it
        is known.
        """
        probe = self.workload.test.batch(torch.zeros(1, dtype=torch.int64))[0]
        return ServerState(
            self.public_state() if public is None else public, divisor=self.divisor, probe=probe
        )

    @cached_property  # its fields never change
    def codec(self) -> Codec:
        """The codec of a client's values."""
        return uplink_codec(self.settings)

    def with_level(self) -> "Base":
        """The same at the level of isolation that the rule chooses, where the settings leave it
        "auto".

        Where no gradient of an example is clipped, one example needs no protection from another.
        """
        level: Wanted = self.settings.isolation
        if level == "auto":
            clips = self.method.mechanism.clips and not self.unit.whole
            level = self._level_of_rule() if clips else CHECKED
        return self.at_level(level)

    def at_level(self, level: Isolation) -> "Base":
        """The same with passes at a level, which settings and ledgers name."""
        local = replace(self.local, isolation=level)
        return replace(self, settings=replace(self.settings, isolation=level), local=local)

    def _level_of_rule(self) -> Isolation:
        """The level of the initial model and the loss, tried on public rows."""
        model, loss = self.build_model(), self.workload.loss

        def trial() -> Isolation:
            try:
                with own_draws(self.device), restored(loss):
                    return level_of_own_code(model, loss, *self.tried_rows())
            except Exception:  # the check of the model says why
                return "rows"

        return resolve(model, loss, "auto", trial)

    def tried_rows(self) -> tuple[Any, Any]:
        """A few public rows, on the model's device."""
        test = self.workload.test
        inputs, targets = test.batch(spaced(len(test), TRIED))
        return to_device(inputs, self.device), targets.to(self.device)

    @property
    def index_mode(self) -> IndexMode:
        """How payloads say which coordinates they hold."""
        return "chosen" if self.method.compression.chooses else self.settings.indices

    @property
    def personal_rate(self) -> float:
        """Learning rate of personal parameters."""
        given = self.settings.personal_learning_rate
        return self.local.learning_rate if given is None else given

    @property
    def divisor(self) -> float:
        """Clients a round times the expected batch: public, fixed before the run. At client level
        updates are means.
        """
        return self.settings.clients_per_round * (
            1.0 if self.unit.whole else self.local.expected_batch
        )

    @cached_property  # its fields never change
    def unit(self) -> Unit:
        """What the run's epsilon protects."""
        return unit_of(self.settings, self.method)

    @property
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

    @property
    def augment(self) -> Augment | None:
        """The random changes of training inputs, or None."""
        return None if self.settings.augment == "none" else self.workload.augment

    def dither(self, client: int, plan: RoundPlan) -> Dither:
        """The rounding of a client's values: public, so that server, client and readers of a record
        agree.
        """
        return Dither(seed=self.settings.seed, client=client, noise_std=plan.noise_std)

    @cached_property  # its fields never change
    def dense_parameters(self) -> int:
        """Parameters that ``dpsgd`` would train on this model: the baseline of communication."""
        model = build_model(self.workload, self.settings.model, self.settings.seed)
        return sum(p.numel() for p in trainable(model).values())

    @cached_property  # its fields never change
    def participation(self) -> Participation:
        """Who is selected, who leaves and how long replies take. Raises ValueError as
        ``participation_of``.

        A server that draws in secret draws among all who are there, and uses every reply that is in
        time: with a limit on their number, one client would decide whether another one counts.
        """
        most = len(self.sizes) if self.draws_in_secret else self.settings.clients_per_round
        return participation_of(
            self.settings,
            self.local,
            sizes=self.sizes,
            rates=self.rates,
            per_round=most,
            selection=self.selection,
        )

    @property
    def selection(self) -> Selection:
        """The rule that draws the clients of a round."""
        return selection_of(self.settings.selection, secret=self.draws_in_secret)

    @cached_property  # its fields never change
    def steps(self) -> list[int]:
        """Noisy steps of every client in the public schedule: K times the rounds in which it is
        selected.

        At client level a round is one step; every round counts where the server draws the clients
        in secret.
        """
        if self.draws_in_secret:
            return [self.schedule.rounds] * len(self.sizes)
        counts = self.participation.selections(self.schedule.rounds)
        return [self.steps_a_round * counts[client] for client in range(len(self.sizes))]

    @cached_property  # its fields never change
    def most_steps(self) -> int:
        """The largest number of noisy steps of a client in the rounds of the public schedule that
        come, which noise is calibrated to.
        """
        rounds, after = self.schedule.rounds, self.before.rounds
        return (
            rounds - after
            if self.draws_in_secret
            else self.steps_a_round * self.participation.most_selections(rounds, after=after)
        )

    @property
    def names(self) -> tuple[str, ...] | None:
        """What the data call the clients; None where they have numbers alone, and at a server whose
        secret is who takes part.
        """
        return None if self.draws_in_secret else getattr(self.parts, "names", None)

    @property
    def draws_in_secret(self) -> bool:
        """Whether the server draws the clients of a round one by one, in secret, and adds the noise
        itself.
        """
        return self.unit.at_server

    @property
    def released(self) -> Released:
        """What of the run may be seen outside the server: where no clients are drawn in secret,
        everything.
        """
        return RELEASED[self.settings.trust] if self.draws_in_secret else EVERYTHING

    @property
    def covered(self) -> bool:
        """Whether an epsilon covers all that the run computes from training rows: secret noise, no
        held-out rows.
        """
        s = self.settings
        noisy = self.method.mechanism.private and not s.reproducible and s.holdout is None
        return noisy or s.public_rows is not None

    @property
    def closed(self) -> tuple[str, ...]:
        """Folders of the run directory with numbers that no epsilon covers as they are; "." is all
        of it.

        Under trust=aggregate a payload has a share of the noise. Under trust=server the bytes that
        an interrupted round sent down tell how many clients were drawn.
        """
        whole = () if self.covered else (".",)
        if self.draws_in_secret:
            return (*whole, "checkpoint")
        return (
            (*whole, "checkpoint/outbox", "updates")
            if self.settings.trust == "aggregate"
            else whole
        )

    @property
    def steps_a_round(self) -> int:
        """Noisy steps of a client in a round, which its ledger is charged with."""
        return self.unit.steps(self.local.steps)

    def accounted_rate(self, sample_rate: float) -> float:
        """The sampling rate that the ledger is charged with, for a client whose batches have
        ``sample_rate``.

        Shuffled batches have none: an example is in one batch of an epoch, and ``accounted_steps``
        counts epochs.
        """
        if self.local.shuffled:
            return 1.0
        return self.unit.rate(sample_rate)

    def accounted_steps(self, num_examples: int, steps: int | None = None) -> int:
        """How often one of a client's examples may take part in ``steps`` noisy steps; by default,
        in all that come.

        That is every step for Poisson batches, at the rate that is accounted; with shuffled ones,
        once in each epoch that is begun, and once in one that earlier rounds may have begun.
        """
        count = self.most_steps if steps is None else steps
        if not self.local.shuffled:
            return count
        begun = 1 if self.before.rounds else 0
        return begun + epochs_begun(count, batches_of_epoch(num_examples, self.local.shuffled))
