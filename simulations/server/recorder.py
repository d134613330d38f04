"""The recorder of a run: after each round it writes the server's files, in a fixed order."""

import math
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

from fedlsg.carriers.probe import Basis
from fedlsg.gradients import trainable
from fedlsg.simulations.client.replica import basis_bytes
from fedlsg.simulations.client.train import keeps_one_round
from fedlsg.simulations.planning.advice.remarks import rho_of, sum_bits
from fedlsg.simulations.planning.base.disclosure import closed_folders, released_of
from fedlsg.simulations.planning.earlier_runs.continuity import (
    check_unchanged,
    fingerprint,
    fingerprint_of_begun,
    keep_data_digest,
)
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.server.client_rows import client_rows
from fedlsg.simulations.server.evaluate import ByClient, ClientScores, Evaluation, Score
from fedlsg.simulations.server.restore import restore
from fedlsg.simulations.server.spent import RunTotals, Spent
from fedlsg.simulations.server.summary import Outcome
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.resolve import GRID, downlink_codec
from fedlsg.simulations.storage.manifest import Manifest, accept
from fedlsg.simulations.storage.messages.byte_lines import read_lines, rounds_by_client
from fedlsg.simulations.storage.messages.links import run_seconds
from fedlsg.simulations.storage.round_tables import Row, Tables, Times
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import StepFiles, round_folder, write_frame
from fedlsg.state import RoundPlan, ServerState, different_terms
from fedlsg.strategies.protocol.downlink import Downlink
from fedlsg.strategies.protocol.round_report import RoundReport, SimulatedClock
from fedlsg.strategies.protocol.sparse_downlink import SparseDownlink

OnRound = Callable[[Row], object]
"""Shows a finished round."""
MOST_LISTED = 100
"""Clients at most of whom a summary lists the rounds."""


class Recorder:
    """Writes the server's state into one run directory, as callbacks of the strategy.

    Order of one round: lines of bytes.csv, row, events, then checkpoint, with the digests of both
    tables. A crash in between leaves a row too many, which ``resume`` cuts off; it never leaves a
    checkpoint without its row.
    """

    def __init__(
        self,
        run: RunDir,
        plan: Plan,
        state: ServerState,
        downlink: Downlink,
        clock: SimulatedClock,
        *,
        deployed: bool = False,
        show: OnRound | None = None,
    ) -> None:
        """The recorder of a new run, or of one that ``resume`` continues.

        deployed: whether it is a run of a deployment, which has a random name in ledgers.
        show: called last in each round.
        """
        s = plan.settings
        self.run = run
        self.plan = plan
        self.state = state
        self.downlink = downlink
        self.clock = clock
        self._show = show
        self.name = secrets.token_hex(8) if deployed else ""
        self.spent = Spent(
            run,
            len(plan.terms),
            delta=s.delta,
            deltas=[delta or s.delta for _, delta in plan.clients.budgets],
            at_server=plan.unit.at_server,
        )
        self._clients = ClientScores(plan, state, run)
        self.evaluation = Evaluation(
            state,
            plan.workload,
            device=plan.device,
            overall=self._clients.overall if plan.method.personal else None,
        )
        self.tables = Tables(
            run,
            plan.workload.metrics,
            simulated_clock=clock.participation.timed,
            released=released_of(plan),
        )
        self.manifest = Manifest(run, closed_folders(plan), one_round=keeps_one_round(plan))
        self.totals = RunTotals()
        self._fingerprint = fingerprint(plan)
        self._seconds_before = 0.0
        self._started = plan.began
        # the row of the last round of this process
        self.last: Row | None = None

    def begin(self) -> None:
        """Save the checkpoint of a new run, from which an interrupted first round continues."""
        keep_data_digest(self.plan, self.run)
        self.checkpoint()

    def resume(self) -> None:
        """Load the checkpoint and cut the tables to it.

        Raises ValueError if settings, data or a ledger differ from those of the checkpoint.
        """
        saved = restore(self.run).state
        check_unchanged(saved["plan"], self.plan, self.run)
        accept(self.run, ["config.toml"], closed=False)  # its changes were checked a line above
        self.manifest.load()
        self._seconds_before = saved["seconds"]
        self._fingerprint = fingerprint_of_begun(self.plan, saved["plan"], self.run)
        self._load(saved)
        self.tables.cut_events()

    def go_back(self) -> None:
        """Go back to the last finished round, which is in the checkpoint."""
        self._load(self.run.load_checkpoint())

    def on_round(self, report: RoundReport) -> None:
        """Evaluate, append the row, save the checkpoint, show the row.

        Before anything of the round is kept, it raises RuntimeError if a client's payload, late or
        not, has no entry in the client's ledger, and DivergedError if the loss is not finite.
        """
        began = time.monotonic()
        self.totals.note_start(began - report.seconds - self._started)
        self._receive(report)
        last = report.round == self.plan.schedule.rounds
        due = last or report.round % self.plan.settings.evaluate_every == 0
        spent = self.spent.certified() if last else self.spent.displayed()
        accounted = time.monotonic()
        score = self.evaluation.after_round(report.round, due=due)
        times = Times(
            training_seconds=round(report.waiting, 4),
            communication_seconds=round(max(report.seconds - report.waiting, 0.0), 4),
            accounting_seconds=round(accounted - began, 4),
            evaluation_seconds=round(time.monotonic() - accounted, 4),
        )
        row = Row.of(
            report,
            accuracy=None if score is None else score.accuracy,
            loss=None if score is None else score.loss,
            spent=spent,
            metrics=dict.fromkeys(self.plan.workload.metrics) if score is None else score.metrics,
            released=released_of(self.plan),
            times=times,
        )
        self.last = row
        self.tables.append(report, row)
        self.totals.add(report, times)
        self.checkpoint(report.asked)
        if self._show is not None:  # last: a callback may end the run here
            self._show(row)

    @property
    def measured(self) -> dict[str, float]:
        """The numbers of the last round of this process; before its first, the model's scores."""
        if self.last is not None:
            return self.last.numbers
        score = self.evaluation.measure()
        accuracy = {} if score.accuracy is None else {"accuracy": score.accuracy}
        return {**accuracy, "loss": score.loss, **score.metrics}

    def on_pruned(self, report: RoundReport) -> None:
        """Count the bytes of the pruning round, and save the checkpoint: it is not run again.

        It has no row in rounds.csv. If it failed, ``resume`` runs it again, and its bytes are those
        of all attempts. Raises RuntimeError as ``on_round`` does.
        """
        self._receive(report)
        largest = max(terms.prune_noise_multiplier for terms in different_terms(self.plan.terms))
        self.totals.add_pruning(report, noise_multiplier=largest)
        self.tables.append_messages(report)
        self.checkpoint(report.asked)

    def record_public(self) -> None:
        """Save the public weights and positions of the next round, with ``record_updates``."""
        if not self.plan.settings.record_updates:
            return
        round = self.state.next_round
        self.run.save_weights(round, self.state.weights)
        # there is no frame after the last round
        if self.state.memory is not None and round <= self.plan.schedule.rounds:
            self.run.save_kept(round, self.state.frame().indices)

    def outcome(self, *, stopped: str | None, diverged: bool) -> Outcome:
        """The run as it is now. ``stopped``: why it ended early, None if it did not."""
        spent = self.spent.certified()  # first: ``of_each`` relies on it
        private = self.plan.method.mechanism.private and not self.plan.settings.reproducible
        unbounded = [math.inf] * len(self.plan.clients.sizes)
        tested = self._tested()
        matrices = (p for p in trainable(self.state.model).values() if p.ndim >= 2)
        return Outcome(
            rounds=self.state.round,
            updates=self.state.updates,
            score=self.evaluation.measure(),
            spent=spent,
            bounds=self.spent.bounds(spent.worst) if private else {},
            by_reader=self.spent.by_reader() if private and math.isfinite(spent.largest) else {},
            rho=rho_of(self.plan, self.state.public),
            sum_bits=sum_bits(self.plan, self.state.public),
            of_mean=None if self.plan.settings.tests_private_rows else self.evaluation.of_mean(),
            by_client=None if tested is None else ByClient.of(score for _, score in tested),
            clients=client_rows(self.plan, self.spent.of_each() if private else unbounded, tested),
            zero_weights=sum(int((p == 0).sum()) for p in matrices),
            pruning=self.totals.pruning,
            downlink=self.downlink.state_dict(),
            totals=self.totals.sums,
            transfer_seconds=run_seconds(self.run.messages),
            rounds_by_client=self._rounds_by_client(),
            wall_seconds=self._seconds,
            times=self.totals.times,
            simulated={"seconds": self.clock.now, **self.totals.clients}
            if self.clock.participation.timed
            else None,
            stopped=stopped,
            diverged=diverged,
        )

    def _rounds_by_client(self) -> dict[str, int] | None:
        """Rounds with an update of each client.

        None if no client has failed, for more than ``MOST_LISTED`` clients, or without bytes.csv.
        """
        clients = len(self.plan.terms)
        if not self.clock.health.since or clients > MOST_LISTED or not self.run.messages.exists():
            return None
        rounds = rounds_by_client(read_lines(self.run.messages))
        return {str(client): rounds.get(client, 0) for client in range(clients)}

    def _tested(self) -> list[tuple[int, Score | None]] | None:
        """Test rows and score of each client, see ``ClientScores.measure``; None if not wanted."""
        wanted = self.plan.settings.evaluate_clients or self.plan.method.personal
        return self._clients.measure() if wanted else None

    def checkpoint(self, asked: Iterable[int] = ()) -> None:
        """Save checkpoint, public weights and manifest; ``asked``: the clients of this round."""
        self.run.save_checkpoint(
            {
                "server": self.state.state_dict(),
                "downlink": self.downlink.state_dict(),
                "plan": self._fingerprint,
                "name": self.name,
                **self.totals.state_dict(),
                "seconds": self._seconds,
                "simulated_clock": self.clock.now,
                "health": self.clock.health.state_dict(),
                "ledgers": self.spent.heads,
                **self.tables.marks(),
                "score": self.evaluation.state_dict(),
            }
        )
        self.record_public()
        self.manifest.checkpoint(self.state.round, self.tables.marks(), self.spent.heads, asked)

    def _load(self, saved: dict[str, Any]) -> None:
        """Continue from the state in a checkpoint."""
        self.state.load_state_dict(saved["server"])
        if bool(saved["name"]) != bool(self.name):
            raise ValueError(
                f"{self.run.path} is a run of the other kind: continue a deployment with flwr run"
            )
        self.name = saved["name"]
        self.downlink.load_state_dict(saved["downlink"])
        self.totals.load_state_dict(saved)
        self.clock.now = saved["simulated_clock"]
        self.clock.health.load_state_dict(saved["health"])
        self.evaluation.load_state_dict(saved["score"])
        self.tables.cut(saved)

    def _receive(self, report: RoundReport) -> None:
        """Read the charges of a round, and record its payloads with ``record_updates``."""
        self.spent.receive(report, self.name)
        if not self.plan.settings.record_updates:
            return
        for client, payload in report.payloads.items():
            self.run.save_update(report.round, client, payload)
        if report.total is not None:
            self.run.save_sum(report.round, report.total)
        if report.plan is not None:
            facts = frame_facts(self.plan, report.plan, report.payloads)
            write_frame(round_folder(self.run.path, report.round), report.plan.frame, facts)

    @property
    def _seconds(self) -> float:
        """How long the run took so far, in all of its processes."""
        return self._seconds_before + time.monotonic() - self._started


def frame_facts(plan: Plan, common: RoundPlan, clients: Iterable[int]) -> dict[str, Any]:
    """Entries of frame.json about a round: how payloads are read, and the scale of their values.

    divisor: of the weighted sum over the clients; without privacy, that of these clients.
    clients: by client, "noise_std": the standard deviation of the noise on each value;
        "expected_batch": q_k N_k, or 1 at client level, where an update is a mean; "weight": of the
        client in the sum, if it is not 1.
    """
    terms = {client: plan.terms[client].of(common.phase) for client in clients}
    return {
        "round": common.round,
        "phase": common.phase.value,
        "method": plan.method.name,
        "codec": plan.uplink.codec.name if plan.sums is None else GRID,
        "indices": plan.uplink.index_mode,
        "most": plan.method.compression.most(common.frame.wire.size),
        "local_steps": common.local.steps,
        "divisor": common.divisor(plan.divisor, terms.values()),
        "clients": {
            str(client): {
                "noise_std": common.for_client(term).noise_std,
                "expected_batch": 1.0 if plan.unit.whole else term.sample_rate * term.num_examples,
                **({} if term.weight == 1 else {"weight": term.weight}),
            }
            for client, term in sorted(terms.items())
        },
    }


def make_downlink(s: Resolved, state: ServerState, run: RunDir) -> Downlink:
    """The server's side of the downlink that the settings name, with its files in the run."""
    store = StepFiles(run.steps)

    def keep(basis: Basis) -> None:
        store.save_basis(basis.round, basis_bytes(basis))

    if s.downlink == "full":
        return Downlink(state, keep, run)
    return SparseDownlink(
        state,
        downlink_codec(s),
        clients=s.clients,
        clients_per_round=s.clients_per_round,
        store=store,
        keep=keep,
        notes=run,
    )
