"""What happened in a run: after each round the server's files are brought up to date, in a fixed order."""

import math
import secrets
import time
from logging import ERROR
from typing import Any

from flwr.common.logger import log

from fedlsg.gradients import trainable
from fedlsg.state import ServerState
from simulations.plan.continuity import check_unchanged, fingerprint
from simulations.plan.plan import Plan
from simulations.rundir.links import run_seconds
from simulations.rundir.messages import SUMS as BYTES
from simulations.rundir.row import Row
from simulations.rundir.rundir import RunDir
from simulations.rundir.tables import Tables
from simulations.server.evaluate import Evaluation, Score
from simulations.server.restore import restore
from simulations.server.spent import Spent
from simulations.server.summary import Outcome, summarize
from simulations.workloads.digest import data_digest
from strategies.federation.downlink import Downlink
from strategies.federation.report import RoundReport
from strategies.federation.stopped import DivergedError

SUMS = (*BYTES, "uplink_messages", "downlink_messages")


class Recorder:
    """Keeps one run directory in step with the server's state; ``on_round`` is the strategy's callback.

    Order of one round: lines of bytes.csv, row, events, then checkpoint, with the digests of both tables. A crash in
    between leaves a row too many, which ``resume`` cuts off; it never leaves a checkpoint without its row.
    """

    def __init__(
        self, run: RunDir, plan: Plan, state: ServerState, downlink: Downlink, *, deployed: bool = False
    ) -> None:
        s = plan.settings
        assert s.delta is not None
        self.run, self.plan, self.state, self.downlink = run, plan, state, downlink
        self.name = secrets.token_hex(8) if deployed else ""
        self.spent = Spent(run, len(plan.terms), delta=s.delta)
        self.evaluation = Evaluation(state, plan.workload, device=s.device)
        self.tables = Tables(run)
        self.totals = dict.fromkeys(SUMS, 0)
        self.pruning: dict[str, Any] = {}
        self._fingerprint = fingerprint(plan)
        self._seconds_before = 0.0
        self._started = time.monotonic()

    def begin(self) -> None:
        """Save what an interruption in the first round continues from."""
        self.run.write_data_digest(data_digest(self.plan.workload.train))
        self.checkpoint()

    def resume(self) -> None:
        """Load the checkpoint and cut the tables to it.

        Raises ValueError where settings, data or a ledger differ from those that the checkpoint was made with.
        """
        saved = restore(self.run).state
        check_unchanged(saved["plan"], self.plan, self.run)
        self._seconds_before = saved["seconds"]
        self._load(saved)
        self.tables.cut_events()

    def give_up(self, why: str) -> dict[str, Any]:
        """Go back to the last finished round, which the checkpoint holds, and finish there; returns the summary."""
        log(ERROR, "%s", why)
        self._load(self.run.load_checkpoint())
        return self.finish(why, diverged=True)

    def on_round(self, report: RoundReport) -> Row:
        """Evaluate, append the row, save the checkpoint; returns the row.

        Raises RuntimeError, before anything of the round is kept, if a client's payload came without an entry in
        its ledger; DivergedError, as early, if the loss is not finite.
        """
        self._receive(report)
        row = self._row(report)
        self.tables.append(report, row)
        for name in SUMS:
            self.totals[name] += getattr(report, name)
        self.checkpoint()
        return row

    def on_pruned(self, report: RoundReport) -> None:
        """Count the bytes of the pruning round, and save the checkpoint, so that it is never run again.

        It has no row in rounds.csv. A pruning round that failed is counted, too, and ``resume`` runs it again; bytes
        are then those of all attempts. Raises RuntimeError as ``on_round`` does.
        """
        self._receive(report)
        before = self.pruning
        self.pruning = {
            **{name: before.get(name, 0) + getattr(report, name) for name in BYTES},
            "messages": before.get("messages", 0) + len(report.sent),
            "noise_multiplier": max(t.prune_noise_multiplier for t in self.plan.terms),
            "answered": list(report.answered),
            "rejected": {str(client): why for client, why in report.rejected.items()},
        }
        for name in BYTES:  # not the messages: "dense" bytes are computed from the number of training messages
            self.totals[name] += getattr(report, name)
        self.tables.append_messages(report)
        self.checkpoint()

    def record_public(self) -> None:
        """With ``record_updates``: save the public weights and positions that the next round's payloads refer to."""
        if not self.plan.settings.record_updates:
            return
        round = self.state.next_round
        self.run.save_weights(round, self.state.weights)
        if self.state.memory is not None:
            self.run.save_kept(round, self.state.frame().indices)

    def finish(self, stopped: str | None = None, *, diverged: bool = False) -> dict[str, Any]:
        """Write the merged ledger and the summary; return the summary. ``stopped`` says why a run ended early."""
        self.run.merge_ledgers()
        summary = summarize(self.plan, self._outcome(stopped, diverged=diverged))
        self.run.write_summary(summary)
        return summary

    def checkpoint(self) -> None:
        """Save everything that ``resume`` needs."""
        self.run.save_checkpoint(
            {
                "server": self.state.state_dict(),
                "downlink": self.downlink.state_dict(),
                "plan": self._fingerprint,
                "name": self.name,
                "totals": self.totals,
                "pruning": self.pruning,
                "seconds": self._seconds,
                "ledgers": self.spent.heads,
                **self.tables.marks(),
                "score": self.evaluation.state_dict(),
            }
        )

    def _load(self, saved: dict[str, Any]) -> None:
        self.state.load_state_dict(saved["server"])
        if bool(saved.get("name")) != bool(self.name):
            raise ValueError(f"{self.run.path} is a run of the other kind: continue a deployment with flwr run")
        self.name = saved.get("name", "")
        self.downlink.load_state_dict(saved["downlink"])
        self.totals, self.pruning = saved["totals"], saved["pruning"]
        self.evaluation.load_state_dict(saved["score"])
        self.tables.cut(saved)

    def _receive(self, report: RoundReport) -> None:
        self.spent.update(report.asked, report.rejected)
        for client, payload in report.payloads.items():
            self.spent.check_charged(client, report.round, self.name)
            if self.plan.settings.record_updates:
                self.run.save_update(report.round, client, payload)

    def _row(self, report: RoundReport) -> Row:
        last = report.round == self.plan.schedule.rounds
        due = last or report.round % self.plan.settings.evaluate_every == 0
        measured: Score | None = self.evaluation.measure() if due else None
        loss = self.evaluation.loss_on_few_rows() if measured is None else measured.loss
        if not math.isfinite(loss):
            raise DivergedError(f"round {report.round} left a model whose test loss is {loss}")
        spent = self.spent.certified() if last else self.spent.displayed()
        return Row(
            round=report.round,
            accuracy=None if measured is None else measured.accuracy,
            loss=None if measured is None else measured.loss,
            epsilon_max=spent.largest,
            epsilon_median=spent.median,
            **{name: getattr(report, name) for name in SUMS},
            seconds=round(report.seconds, 4),
            asked=" ".join(map(str, report.asked)),
            answered=" ".join(map(str, report.answered)),
            rejected=" ".join(map(str, sorted(report.rejected))),
            reasons=report.reasons,
        )

    def _outcome(self, stopped: str | None, *, diverged: bool) -> Outcome:
        spent, private = self.spent.certified(), self.plan.method.mechanism.private
        matrices = (p for p in trainable(self.state.model).values() if p.ndim >= 2)
        return Outcome(
            rounds=self.state.round,
            updates=self.state.updates,
            score=self.evaluation.measure(),
            spent=spent,
            bounds=self.spent.bounds(spent.worst) if private else {},
            seeded=self.plan.settings.reproducible or self.spent.reproducible,
            zero_weights=sum(int((p == 0).sum()) for p in matrices),
            pruning=self.pruning,
            downlink=self.downlink.state_dict(),
            totals=self.totals,
            transfer_seconds=run_seconds(self.run.messages),
            wall_seconds=self._seconds,
            stopped=stopped,
            diverged=diverged,
        )

    @property
    def _seconds(self) -> float:
        """How long the run took so far, in all of its processes."""
        return self._seconds_before + time.monotonic() - self._started
