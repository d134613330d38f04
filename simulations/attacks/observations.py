"""Observations of a recorded run: the payloads as sent, with frames rebuilt from public weights.

Reads config.toml, summary.json, rounds.csv, ledger/ and updates/ of a run directory, never
updates-truth/. A payload has a checksum and names the digest of its frame; the files of weights and
kept positions have checksums as well.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from fedlsg.attacks.observation import Observation, ThreatModel
from fedlsg.carriers.powersgd import decode
from fedlsg.frame import Frame
from fedlsg.method import LocalTraining, aggregate
from fedlsg.payload import Expected, PayloadError, unpack
from fedlsg.privacy import Entry, RunLedger
from fedlsg.simulations.attacks.replayable import check_replayed, refuse_client_unit, refuse_unseen
from fedlsg.simulations.planning.base.clients import poisson_rate
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.earlier_runs.continuity import check_own_code
from fedlsg.simulations.settings.any_run import Device, Settings
from fedlsg.simulations.storage.atomic_files import load_array
from fedlsg.simulations.storage.results import refuse_own_noise
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import payload_files, read_frame, round_folder, sum_file
from fedlsg.simulations.workloads import LoadedWorkload, Progress, silent
from fedlsg.state import ClientTerms, PublicState, RoundPlan, load_weights, plan_round

ROUNDING = 1e-9
"""Relative rounding error of a noise multiplier that was written to the ledger and read again."""
RECORD = (
    "record one with: fedlsg run ... --record-updates; or add --record, which records a short run "
    "with the same settings and attacks that"
)
"""How to get recorded updates, for messages."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """The recorded payloads of a run, and the public state that is needed to read them.

    run: its directory.
    base: settings, data, model and mechanism of the run.
    payloads: files by round and client.
    whole_epsilon: as ``recording.Recorded.epsilon``.
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
        plan = self.plan(round, clients[0], model)  # in a sum all clients have the same noise
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
        """The model as a function of ``workload``: a head on public features gets the encoder.

        This changes ``model``.
        """
        encode = self.base.workload.encode
        if encode is not None:
            model.register_forward_pre_hook(lambda _, args: (encode(args[0]),))
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
        what = f"the weights of round {round}"
        weights = read_array(path, what)
        try:
            load_weights(model, weights)
        except (ValueError, TypeError) as error:
            raise damaged(path, what, error) from None
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


def read_array(path: Path, what: str) -> Tensor:
    """An array of a record. Raises ValueError with the file name for a damaged file."""
    try:
        return torch.from_numpy(load_array(path))
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise damaged(path, what, error) from None


def damaged(path: Path, what: str, error: Exception) -> ValueError:
    """The error for a file that cannot be read."""
    return ValueError(f"{path}: cannot read {what}: {error}")


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

    Else "auto": without the GPU of the run, frames may differ, which ``observation`` reports. An
    unfinished run has no summary that names the device: its setting counts.
    """
    used = run.read_summary()["device"] if run.summary.exists() else settings.device
    return "cpu" if used == "cpu" else "auto"
