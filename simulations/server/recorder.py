"""What happened in a run: after each round the server's files are brought up to date, in a fixed
order.
"""

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
from fedlsg.simulations.storage.journal import read_lines, rounds_by_client, run_seconds
from fedlsg.simulations.storage.manifest import Manifest, accept
from fedlsg.simulations.storage.round_tables import Row, Tables, Times
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import StepFiles, round_folder, write_frame
from fedlsg.state import RoundPlan, ServerState, different_terms
from fedlsg.strategies.protocol.downlink import Downlink
from fedlsg.strategies.protocol.round_report import RoundReport, SimulatedClock
from fedlsg.strategies.protocol.sparse_downlink import SparseDownlink

OnRound = Callable[[Row], object]
MOST_LISTED = 100
"""Clients whose rounds a summary lists."""


class Recorder:
    """Keeps one run directory in step with the server's state: ``on_round`` and ``on_pruned`` are
    the strategy's callbacks.

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
        own = self._clients.overall if plan.method.personal else None
        self.evaluation = Evaluation(state, plan.workload, device=plan.device, overall=own)
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
        self.last: Row | None = None
        """The row of the last round of this process."""

    def begin(self) -> None:
        """Save what an interruption in the first round continues from."""
        keep_data_digest(self.plan, self.run)
        self.checkpoint()

    def resume(self) -> None:
        """Load the checkpoint and cut the tables to it.

        Raises ValueError if settings, data or a ledger differ from those that the checkpoint was
        made with.
        """
        saved = restore(self.run).state
        check_unchanged(saved["plan"], self.plan, self.run)
        accept(self.run, ["config.toml"], closed=False)  # what may change midway was compared
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

        Raises RuntimeError, before anything of the round is kept, if a client's payload, late or
        not, came without an entry in its ledger; DivergedError, as early, if the loss is not
        finite.
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
        """The numbers of the last round of this process; before its first, what the model scores
        now.
        """
        if self.last is not None:
            return self.last.numbers
        found = self.evaluation.measure()
        return {
            name: value
            for name, value in {
                "accuracy": found.accuracy,
                "loss": found.loss,
                **found.metrics,
            }.items()
            if value is not None
        }

    def on_pruned(self, report: RoundReport) -> None:
        """Count the bytes of the pruning round, and save the checkpoint, so that it is never run
        again.

        It has no row in rounds.csv. A pruning round that failed is counted, too, and ``resume``
        runs it again; bytes are then those of all attempts. Raises RuntimeError as ``on_round``
        does.
        """
        self._receive(report)
        most = max(t.prune_noise_multiplier for t in different_terms(self.plan.terms))
        self.totals.add_pruning(report, noise_multiplier=most)
        self.tables.append_messages(report)
        self.checkpoint(report.asked)

    def record_public(self) -> None:
        """With ``record_updates``: save the public weights and positions that the next round's
        payloads refer to.
        """
        if not self.plan.settings.record_updates:
            return
        round = self.state.next_round
        self.run.save_weights(round, self.state.weights)
        # after the last there is no frame
        if self.state.memory is not None and round <= self.plan.schedule.rounds:
            self.run.save_kept(round, self.state.frame().indices)

    def outcome(self, *, stopped: str | None, diverged: bool) -> Outcome:
        """The run as it is now. ``stopped`` says why it ended early."""
        spent = self.spent.certified()
        private = self.plan.method.mechanism.private and not self.plan.settings.reproducible
        endless = [math.inf] * len(self.plan.clients.sizes)
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
            clients=client_rows(self.plan, self.spent.of_each() if private else endless, tested),
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
        """Of each client, once one has failed; not of federations that are too large to read."""
        clients = len(self.plan.terms)
        if not self.clock.health.since or clients > MOST_LISTED or not self.run.messages.exists():
            return None
        had = rounds_by_client(read_lines(self.run.messages))
        return {str(client): had.get(client, 0) for client in range(clients)}

    def _tested(self) -> list[tuple[int, Score | None]] | None:
        """What was measured on each client's part of the test split, if that is wanted."""
        wanted = self.plan.settings.evaluate_clients or self.plan.method.personal
        return self._clients.measure() if wanted else None

    def checkpoint(self, asked: Iterable[int] = ()) -> None:
        """Save everything that ``resume`` needs, what is recorded, and the manifest; ``asked``: in
        this round.
        """
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
        self.spent.receive(report, self.name)
        if not self.plan.settings.record_updates:
            return
        for client, payload in report.payloads.items():
            self.run.save_update(report.round, client, payload)
        if report.total is not None:
            self.run.save_sum(report.round, report.total)
        if report.plan is not None:
            folder = round_folder(self.run.path, report.round)
            write_frame(
                folder, report.plan.frame, frame_facts(self.plan, report.plan, report.payloads)
            )

    @property
    def _seconds(self) -> float:
        """How long the run took so far, in all of its processes."""
        return self._seconds_before + time.monotonic() - self._started


def frame_facts(plan: Plan, common: RoundPlan, clients: Iterable[int]) -> dict[str, Any]:
    """What frame.json says of a round besides its coordinates: how payloads are read, and the scale
    of their values.

    divisor: the server's, of the weighted sum over the clients; without privacy, that of these
    clients. By client: the deviation of the noise on each value, the expected batch size q_k N_k
    (1 at client level, where an update is a mean), and its weight in the sum if that is not 1.
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
                "noise_std": common.for_client(own).noise_std,
                "expected_batch": own.sample_rate * own.num_examples
                if not plan.unit.whole
                else 1.0,
                **({} if own.weight == 1 else {"weight": own.weight}),
            }
            for client, own in sorted(terms.items())
        },
    }


def make_downlink(s: Resolved, state: ServerState, run: RunDir) -> Downlink:
    """The server's side of the downlink."""
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
