"""Observations of a recorded run: the payloads as sent, with frames rebuilt from public weights.

Reads config.toml, summary.json, rounds.csv, ledger/ and updates/ of a run directory, never
updates-truth/. A payload has a checksum and names the digest of its frame; the files of weights and
kept positions have checksums as well.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedlsg import bounded
from fedlsg.attacks.observation import Observation, ThreatModel
from fedlsg.carriers.powersgd import decode
from fedlsg.config.units import unit_named
from fedlsg.frame import Frame
from fedlsg.method import LocalTraining, aggregate
from fedlsg.payload import Expected, PayloadError, unpack
from fedlsg.privacy import Entry, RunLedger
from fedlsg.simulations.planning.base.clients import poisson_rate
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.earlier_runs.continuity import check_own_code
from fedlsg.simulations.report.words import REPRODUCIBLE
from fedlsg.simulations.settings.any_run import Device, Settings
from fedlsg.simulations.storage.atomic_files import load_array
from fedlsg.simulations.storage.results import refuse_own_noise
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import payload_files, read_frame, round_folder, sum_file
from fedlsg.simulations.workloads import LoadedWorkload, Progress, silent
from fedlsg.state import ClientTerms, PublicState, RoundPlan, load_weights, plan_round

FPR = 0.01
"""Rate of false alarms at which the rate of recognised members of one batch is reported."""
ROUNDING = 1e-9
"""Relative rounding error of a noise multiplier that was written to the ledger and read again."""
TWO_QUESTIONS = (
    "Two questions about membership have two numbers. One batch: who has an example, and knows "
    "that it was in this one batch or nowhere, is right at the rate that is reported for one "
    "update. "
    "The whole run: nobody knows which batch an example may be in, because batches are drawn in "
    "secret; epsilon bounds this, and fedlsg attack --membership measures it. The first is the "
    "larger one where batches are small."
)
"""The note on the pages of both questions."""
RECORD = (
    "record one with: fedlsg run ... --record-updates; or add --record, which records a short run "
    "with the same settings and attacks that"
)
"""How to get recorded updates, for messages."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run whose updates were recorded.

    path: its directory.
    epsilon: of the whole run whose noise a short run has; its own rounds cost less. None if there
        is no such run, or if its epsilon is not known.
    """

    path: str
    epsilon: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """The recorded payloads of a run, and the public state that is needed to read them.

    run: its directory.
    base: settings, data, model and mechanism of the run.
    payloads: files by round and client.
    whole_epsilon: as ``Recorded.epsilon``.
    """

    run: RunDir
    base: Base
    payloads: Mapping[int, Mapping[int, Path]]
    whole_epsilon: float | None = None

    def pick(self, round: int, threat: ThreatModel) -> list[Observation]:
        """Observations of a round under the threat model: one for each client, or that of the sum.

        A run with a secure sum has only the sum, under any threat model.
        """
        if self.base.sums is not None:
            return [self.observed_sum(round)]
        each = [self.observation(round, client) for client in sorted(self.payloads[round])]
        return each if threat.view == "client" else [summed(each)]

    def observation(self, round: int, client: int) -> Observation:
        """The observation of one client's payload, on the CPU.

        Raises ValueError with the file name for a payload that is damaged or of another frame. On
        another device than the server's, carriers have other last digits, which is another frame.
        """
        model, path = self.model_of(round), self.payloads[round][client]
        plan = self.plan(round, client, model)
        frame = plan.frame
        try:
            values = decode(
                unpack(path.read_bytes(), self.expected(plan, client)).to(self.base.device), frame
            )
        except PayloadError as error:
            raise ValueError(
                f"{path}: {error}; the record is damaged, or other weights, settings or "
                f"another device than {self.base.device} made it"
            ) from None
        noise_std = self.base.uplink.codec.received_noise(plan.noise_std)
        return self._observed(plan, model, values, noise_std=noise_std, clients=(client,))

    def observed_sum(self, round: int) -> Observation:
        """The observation of a secure sum, which is all that the server can read of a round.

        Raises ValueError for a round that was given up.
        """
        clients = self._answered(round)
        if not clients:
            raise ValueError(f"round {round} of {self.run.path} revealed no sum: it was given up")
        model = self.model_of(round)
        plan = self.plan(round, clients[0], model)
        assert plan.release is not None
        values = read_array(sum_file(self.run.path, round), f"the sum of round {round}").float()
        return self._observed(
            plan, model, values, noise_std=plan.release.noise_std(len(clients)), clients=clients
        )

    def _observed(
        self,
        plan: RoundPlan,
        model: nn.Module,
        values: Tensor,
        *,
        noise_std: float,
        clients: tuple[int, ...],
    ) -> Observation:
        return Observation(
            model=self.reading_inputs(model),
            loss_fn=self.base.workload.loss,
            frame=plan.frame,
            values=values,
            mechanism=plan.mechanism,
            local=plan.local,
            noise_std=noise_std,
            round=plan.round,
            clients=clients,
            class_targets=self.base.workload.num_classes is not None,
            encoded=self.base.workload.encode is not None,
        ).to("cpu")

    @cached_property  # a record is written once
    def workload(self) -> LoadedWorkload:
        """The attacked data: those of the run before public features were made of them."""
        return self.base.workload.before_features

    def reading_inputs(self, model: nn.Module) -> nn.Module:
        """The model as a function of ``workload``: a head on public features gets the encoder."""
        encode = self.base.workload.encode
        if encode is not None:
            model.register_forward_pre_hook(lambda _, images: (encode(images[0]),))
        return model

    def _answered(self, round: int) -> tuple[int, ...]:
        """The clients whose values were used in a round; empty without such a round."""
        rows = [row for row in self.run.read_rounds() if int(row["round"]) == round]
        return tuple(int(client) for client in rows[0]["answered"].split()) if rows else ()

    def plan(self, round: int, client: int, model: nn.Module) -> RoundPlan:
        """The plan that the client made of a round.

        It follows from the public model of the round and the terms in the client's ledger. Raises
        ValueError for a damaged file, for a ledger without an entry of the round, and for an entry
        with another charge than this plan's: then the client had another plan.
        """
        state = replace(self._start, model=model)
        plan = plan_round(
            state.method,
            round,
            self._frame(state, round),
            self._local(state, round),
            self.base.sums,
            self.base.unit,
        )
        plan = plan.for_client(self._terms(round, client, len(plan.frame.blocks)))
        entry = self.entry(round, client)
        difference = entry.difference(plan.charge(entry.num_examples), rounding=ROUNDING)
        if difference:
            raise ValueError(
                f"{self.run.path}: client {client} was charged {difference}, which this replay of "
                f"round {round} computes: it would attack another step than the client's"
            )
        return plan

    def expected(self, plan: RoundPlan, client: int) -> Expected:
        """The payload that the server expected of the client, without a bound on its norm."""
        uplink = self.base.uplink
        return uplink.expected(plan.frame, round=plan.round, dither=uplink.dither(client, plan))

    def model_of(self, round: int) -> nn.Module:
        """The public model at the start of ``round``. Raises ValueError for a damaged file."""
        path = round_folder(self.run.path, round) / "weights.npy"
        model = self.base.initial.model()
        read_array(path, f"the weights of round {round}", partial(load_weights, model))
        return model

    @cached_property  # a record is written once
    def _charges(self) -> RunLedger:
        return self.run.charges

    @cached_property  # a record is written once
    def _start(self) -> PublicState:
        return self.base.initial.public()

    def _frame(self, state: PublicState, round: int) -> Frame:
        folder = round_folder(self.run.path, round)
        # stored, not rebuilt: a frame that was probed in an earlier round, or one of the own loop
        # of a Flower app, whose run has no rounds.csv
        if state.source is not None or not self.run.rounds.exists():
            return read_frame(folder)[0]
        path = folder / "kept.npy"
        kept = read_array(path, "the kept positions of a round") if path.exists() else None
        return state.frame(round, updates=self._updates_before(round), kept=kept)

    def _local(self, state: PublicState, round: int) -> LocalTraining:
        local = self.base.local
        if local.steps == 1:
            return local  # the step size is unused, and the loop of a Flower app has no rounds.csv
        return state.local_training(local, self._updates_before(round))

    def _updates_before(self, round: int) -> int:
        """How many earlier rounds changed the model: those with enough survivors."""
        survivors = self.base.settings.min_survivors
        rows = [row for row in self.run.read_rounds() if int(row["round"]) < round]
        return sum(len(row["answered"].split()) >= survivors for row in rows)

    def entry(self, round: int, client: int) -> Entry:
        """The client's last ledger entry of a round. Raises ValueError if there is none."""
        ledger = self._charges.of(client)
        entries = [entry for entry in ledger.entries if entry.round == round]
        if not entries:
            raise ValueError(
                f"{ledger.path} holds no entry of round {round}: the record is not whole"
            )
        return entries[-1]

    def _terms(self, round: int, client: int, blocks: int) -> ClientTerms:
        """The client's own terms, from its ledger.

        The ledger has the noise over the move of a sum by one unit. That move is the sensitivity
        times the examples of a unit. The terms have the noise over the clip norm.
        """
        entry, local, unit = self.entry(round, client), self.base.local, self.base.unit
        mechanism = self.base.method.mechanism
        sigma = mechanism.noise_multiplier
        if mechanism.private:
            sigma = (
                entry.noise_multiplier
                * mechanism.sensitivity(blocks)
                / mechanism.clip_norm
                * unit.examples
            )
        size, rate = entry.num_examples, entry.sample_rate
        if entry.batches:
            rate = min(local.shuffled / size, 1.0)
        elif not unit.single:
            rate = poisson_rate(self.base.settings, local, size)
        return ClientTerms(num_examples=size, sample_rate=rate, noise_multiplier=sigma)


def read_array(
    path: Path, what: str, use: Callable[[Tensor], object] = lambda array: None
) -> Tensor:
    """An array of a record, after ``use`` has accepted it.

    Raises ValueError with the file name for a damaged file.
    """
    try:
        array = torch.from_numpy(load_array(path))
        use(array)
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise ValueError(f"{path}: cannot read {what}: {error}") from None
    return array


def summed(observations: list[Observation]) -> Observation:
    """The observation of a sum: the sum of the clients' values, whose noise variances add up."""
    first = observations[0]
    return replace(
        first,
        values=aggregate([observation.values for observation in observations]).to(first.values),
        noise_std=math.hypot(*(observation.noise_std for observation in observations)),
        clients=tuple(client for observation in observations for client in observation.clients),
    )


def open_record(
    path: str,
    threat: ThreatModel,
    *,
    whole_epsilon: float | None = None,
    progress: Progress = silent,
) -> Record:
    """The record of a run directory.

    Raises ValueError for a directory without recorded updates, for one that the attacks cannot
    replay (augmentation, error feedback), and for a threat model that sees more than a server of
    this run sees.
    """
    run = RunDir.open(path)
    settings = run.read_config()
    refuse_client_unit(settings)
    if not payload_files(run.path):
        raise ValueError(f"{path} holds no recorded updates; {RECORD}")
    refuse_unseen(settings.trust, threat)
    record = replace(load_record(run, progress=progress), whole_epsilon=whole_epsilon)
    check_replayed(record.base)
    return record


def check_replayed(base: Base) -> None:
    """Raise ValueError for a run whose clients or data the attacks cannot replay.

    Public features are refused if no gradient leads from them back to pixels.
    """
    if base.workload.features is not None and base.workload.encode is None:
        normalised = "" if base.workload.normalised is None else " with normalise=public"
        raise ValueError(
            f"features={base.settings.features}{normalised}: the run trains a head on features, "
            "and no gradient leads from these back to pixels or words, which the attacks rebuild: "
            "attack a run on features=patches or without features, or use --membership"
        )
    if base.rows.augment is not None:
        raise ValueError(
            "attacks replay a client without augmentation: record a run with -c augment=none"
        )
    if base.uplink.keeps_memory:
        raise ValueError(
            f"attacks replay a client without memory, but {base.method.name!r} with codec "
            f"{base.settings.codec!r} sends what earlier rounds left out: attack method sgd with "
            "another codec, which hides nothing either"
        )


def refuse_unseen(trust: str, threat: ThreatModel) -> None:
    """Raise ValueError if the adversary would see single payloads that nobody sees."""
    if trust != "client" and threat.view == "client":
        unseen = "is assumed to see a single payload" if trust == "aggregate" else "can unmask one"
        raise ValueError(
            f"this run has trust={trust}: one payload has too small a share of the noise, "
            f"and nobody {unseen}; attack the sum with --view aggregate"
        )


def refuse_client_unit(settings: Settings) -> None:
    """Raise ValueError for a run whose unit of privacy is a client, or a person."""
    unit = unit_named(settings.unit)
    if unit.persons:
        raise ValueError(
            f"this run has unit={unit.name}: each {unit.name} is clipped whole, and these attacks "
            "replay batches of examples; fedlsg attack --membership attacks persons"
        )
    if unit.whole:
        raise ValueError(
            "this run has unit=client: its payloads are whole updates, and these attacks replay "
            "batches of examples; fedlsg attack --membership attacks clients"
        )


def load_record(run: RunDir, *, progress: Progress = silent) -> Record:
    """The record of any run, with its data and its model; no payload is read yet."""
    refuse_own_noise(run)
    settings = run.read_config()
    base = prepare(replace(settings, device=device_for(run, settings)), progress=progress)
    check_own_code(base, run)
    files = payload_files(run.path)
    if base.sums is not None:  # payloads of a round that was given up stay masked
        files = {
            round: clients for round, clients in files.items() if sum_file(run.path, round).exists()
        }
    return Record(run=run, base=base, payloads=files)


def device_for(run: RunDir, settings: Settings) -> Device:
    """The device that rebuilds the frames of a run bit by bit: the CPU if its server used it.

    An unfinished run has no summary that names the device: its setting counts.
    """
    used = run.read_summary()["device"] if run.summary.exists() else settings.device
    return "cpu" if used == "cpu" else "auto"


def sigma_of(observation: Observation) -> float:
    """Noise over the sensitivity of an observed update; over the clip norm without a clip.

    0 without noise.
    """
    if not observation.mechanism.clips:
        return observation.noise_std / observation.mechanism.clip_norm
    return observation.noise_std / observation.mechanism.sensitivity(len(observation.frame.blocks))


def privacy_facts(
    record: Record, observation: Observation, membership: float | None
) -> dict[str, str]:
    """Facts for people, by name: run, model, sigma, epsilon, rate of membership in one batch."""
    settings, steps = record.base.settings, observation.local.steps
    features = "" if settings.features is None else f" by features={settings.features}"
    facts = {
        "run": record.run.path.name,
        "trains": f"{settings.model} on {settings.workload}{features}, {steps} local "
        f"step{'' if steps == 1 else 's'}",
    }
    if observation.mechanism.private:
        clients = len(observation.clients)
        where = "per payload" if clients == 1 else f"of the sum of {clients} payloads"
        facts["sigma"] = f"{sigma_of(observation):.3g} {where}"
        facts["epsilon"] = epsilon_words(record)
    else:
        facts["epsilon"] = f"none: mechanism {observation.mechanism.kind!r}"
    if settings.reproducible:
        facts["privacy"] = REPRODUCIBLE
    if membership is not None:
        facts["one batch"] = (
            f"an attacker recognises {100 * membership:.1f} % of examples that are known to be "
            f"either in this batch or nowhere, at {100 * FPR:g} % false alarms (closed form). "
            "Epsilon counts that nobody knows who is in which batch"
        )
    return facts


def epsilon_words(record: Record) -> str:
    """The epsilon of the recorded rounds in words, and that of the whole run with this noise.

    Rounds whose noise anybody can repeat have no epsilon.
    """
    settings, whole = record.base.settings, record.whole_epsilon
    at_delta = f"at delta {settings.delta:g}, of the"
    if settings.reproducible:
        of_rounds = "none of the recorded rounds, whose noise anybody can repeat"
    else:
        of_rounds = f"{epsilon_of(record)} {at_delta} recorded rounds"
    if whole is None:
        return of_rounds
    return f"{whole:.3g} {at_delta} whole run that has this noise; {of_rounds}"


def epsilon_of(record: Record) -> str:
    """The largest epsilon of a client, from the summary or, without one, from the ledger."""
    try:
        value = bounded.read_json(record.run.summary)["epsilon_max"]
        return value if isinstance(value, str) else f"{value:.3f}"
    except FileNotFoundError:
        charges, delta = record.run.charges, record.base.settings.delta
        epsilons = [charges.of(client).epsilon(delta) for client in charges.clients()]
        largest = max(value if isinstance(value, float) else value.upper for value in epsilons)
        return f"{largest:.3f}"
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown (the run has no summary that can be read)"
