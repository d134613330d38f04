"""What the server writes while it runs: rounds.csv, TensorBoard events, checkpoint, ledger, summary.json, report."""

import csv
import io
import math
import secrets
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict
from logging import ERROR
from typing import Any

import torch
from flwr.common.logger import log

from fedlsg.accounting import Event, Spread, displayed, spread
from fedlsg.privacy import Ledger, merge
from fedlsg.state import ServerState
from simulations.plan.continuity import check_unchanged, fingerprint, keep_data_digest
from simulations.plan.plan import Plan
from simulations.rundir import messages, tensorboard
from simulations.rundir.journal import Journal
from simulations.rundir.row import FIELDS, Row
from simulations.rundir.rundir import RunDir
from simulations.server.evaluate import Score, score
from simulations.server.restore import restore
from simulations.server.summary import summarize
from strategies.federation.downlink import Downlink, FullDownlink
from strategies.federation.report import RoundReport
from strategies.federation.stopped import DivergedError

BYTES = messages.SUMS
GLANCE_ROWS = 8
SUMS = (*BYTES, "uplink_messages", "downlink_messages")


class Recorder:
    """Keeps one run directory in step with the server's state; ``on_round`` is the strategy's callback.

    Order of one round: lines of bytes.csv, row, events, then checkpoint, with the digests of both tables. A crash in
    between leaves a row too many, which ``resume`` cuts off; it never leaves a checkpoint without its row.
    """

    def __init__(
        self,
        run: RunDir,
        plan: Plan,
        state: ServerState,
        *,
        downlink: Downlink | None = None,
        page: bool = True,
        deployed: bool = False,
    ) -> None:
        self.run, self.plan, self.state, self.page = run, plan, state, page
        self.downlink: Downlink = FullDownlink(state) if downlink is None else downlink
        self.ledgers = [Ledger(run.ledger(client), client=client) for client in range(len(plan.terms))]
        self._events = [_events(ledger) for ledger in self.ledgers]
        self._late = set[int]()  # did not answer in time: may write to their ledgers later
        self._heads = {str(ledger.client): ledger.snapshot() for ledger in self.ledgers if ledger.entries}
        self.name = secrets.token_hex(8) if deployed else ""
        self.fingerprint = fingerprint(plan)
        self.totals = dict.fromkeys(SUMS, 0)
        self.pruning: dict[str, Any] = {}
        self.last: Row | None = None
        self.measured: tuple[int, Score] | None = None
        self._rounds = Journal(run.rounds, csv_line(FIELDS))
        self._messages = Journal(run.messages, messages.HEADER)
        self._events_size = 0
        self.seconds_before = 0.0
        self.started = time.monotonic()

    def begin(self) -> None:
        """Save what an interruption in the first round continues from."""
        keep_data_digest(self.plan, self.run)
        self.checkpoint()

    def resume(self) -> None:
        """Load the checkpoint, cut the tables to it, and insist that every ledger still holds what it held then."""
        saved = restore(self.run).state
        check_unchanged(saved["plan"], self.plan, self.run)
        self.seconds_before = saved["seconds"]
        self._load(saved)
        tensorboard.cut(self.run.path, self._events_size, [Row.parse(row) for row in self.run.read_rounds()])

    def give_up(self, why: str) -> dict[str, Any]:
        """Go back to the last finished round, which the checkpoint holds, and finish there; returns the summary."""
        log(ERROR, "%s", why)
        self._load(self.run.load_checkpoint())
        return self.finish(why, diverged=True)

    def _load(self, saved: dict[str, Any]) -> None:
        self.state.load_state_dict(saved["server"])
        if bool(saved.get("name")) != bool(self.name):
            raise ValueError(f"{self.run.path} is a run of the other kind: continue a deployment with flwr run")
        self.name = saved.get("name", "")
        self.downlink.load_state_dict(saved["downlink"])
        self.totals, self.pruning = saved["totals"], saved["pruning"]
        self.measured = None if saved["score"] is None else (saved["score"]["round"], Score(**saved["score"]["score"]))
        self._rounds.cut(saved["rounds"])
        self._messages.cut(saved["messages"])
        self._events_size = saved["events"]

    def on_round(self, report: RoundReport) -> None:
        """Evaluate, append the row, save the checkpoint.

        Raises RuntimeError, before anything of the round is kept, if a client's payload came without an entry in
        its ledger here: its epsilon would be a fiction; DivergedError, as early, if the loss is no number.
        """
        self._receive(report)
        s = self.plan.settings
        due = report.round % s.evaluate_every == 0 or report.round == self.plan.schedule.rounds
        measured = self.evaluate() if due else None
        loss = self._glance() if measured is None else measured.loss
        if not math.isfinite(loss):
            raise DivergedError(f"round {report.round} left a model whose test loss is {loss}")
        spent = self.spent(fast=report.round != self.plan.schedule.rounds)
        row = Row(
            round=report.round,
            accuracy=None if measured is None else measured.accuracy,
            loss=None if measured is None else measured.loss,
            epsilon_max=spent.largest,
            epsilon_median=spent.median,
            uplink_bytes=report.uplink_bytes,
            downlink_bytes=report.downlink_bytes,
            uplink_bytes_wire=report.uplink_bytes_wire,
            downlink_bytes_wire=report.downlink_bytes_wire,
            uplink_messages=report.uplink_messages,
            downlink_messages=report.downlink_messages,
            seconds=round(report.seconds, 4),
            asked=" ".join(map(str, report.asked)),
            answered=" ".join(map(str, report.answered)),
            rejected=" ".join(map(str, sorted(report.rejected))),
            reasons=report.reasons,
        )
        self._messages.append(messages.lines_of(report))
        self._append(row)
        self._events_size = tensorboard.append(self.run.path, row)
        self.checkpoint()

    def on_pruned(self, report: RoundReport) -> None:
        """Count the bytes of the pruning round, and save the checkpoint, so that it is never run again.

        It has no row in rounds.csv. One that failed is counted, too, and run again by ``resume``; bytes are then those
        of all attempts. Raises RuntimeError as ``on_round`` does.
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
        for name in BYTES:  # messages are those of training: what dense training would send is counted by them
            self.totals[name] += getattr(report, name)
        self._messages.append(messages.lines_of(report))
        self.checkpoint()

    def _glance(self) -> float:
        """The loss on a few rows, in rounds that are not evaluated: enough to see that it is no number."""
        test = self.plan.workload.test
        few = test.pick(torch.arange(min(GLANCE_ROWS, len(test))))
        with self.state.evaluated() as model:
            return score(model, {"": few}, device=self.plan.settings.device).loss

    def evaluate(self) -> Score:
        """Accuracy and loss of the model as it is now; each round is evaluated once."""
        if self.measured is None or self.measured[0] != self.state.round:
            with self.state.evaluated() as model:
                found = score(model, self.plan.workload.tests, device=self.plan.settings.device)
            self.measured = self.state.round, found
        return self.measured[1]

    def _receive(self, report: RoundReport) -> None:
        self._late |= report.rejected.keys()
        for client in sorted({*report.asked, *self._late}):
            self._events[client] = _events(self.ledgers[client])
            if self.ledgers[client].entries:
                self._heads[str(client)] = self.ledgers[client].snapshot()
        for client, payload in report.payloads.items():
            if not self.ledgers[client].of_round(report.round, self.name):
                raise RuntimeError(
                    f"client {client} answered round {report.round}, and its ledger in {self.run.ledgers} does not "
                    "show it: nothing can be said of its epsilon"
                )
            if self.plan.settings.record_updates:
                self.run.save_update(report.round, client, payload)

    def spent(self, *, fast: bool) -> Spread:
        """Certified epsilons over the clients, from their ledgers; inf where a mechanism was not private.

        ``fast`` is what the running display shows, see ``population.displayed``; of the ledgers it has read those of
        clients that were asked since.
        """
        delta = self.plan.settings.delta
        assert delta is not None
        if not fast:
            self._events = [_events(ledger) for ledger in self.ledgers]
        unbounded = [events is None for events in self._events]
        if any(unbounded):
            each = [math.inf if endless else 0.0 for endless in unbounded]
            return Spread(largest=math.inf, median=statistics.median(each), worst=unbounded.index(True))
        population = [events for events in self._events if events is not None]
        return displayed(population, delta=delta) if fast else spread(population, delta=delta)

    def finish(self, stopped: str | None = None, *, diverged: bool = False) -> dict[str, Any]:
        """Write the merged ledger, summary and report; return the summary. ``stopped`` says why a run ended early."""
        from simulations.report.run_page import write_run_page

        merge(self.run.ledgers.glob("client-*.jsonl"), self.run.path / "ledger.jsonl")
        summary = {**summarize(self), "stopped": stopped, "diverged": diverged}
        self.run.write_summary(summary)
        if self.page:
            write_run_page(self.run)
        return summary

    @property
    def private(self) -> bool:
        """Whether the mechanism is private and all noise, also that of earlier processes of the run, was secret."""
        seeded = self.plan.settings.reproducible or any(ledger.reproducible for ledger in self.ledgers)
        return self.plan.method.mechanism.private and not seeded

    def _append(self, row: Row) -> None:
        self._rounds.append(csv_line(asdict(row).values()))
        for name in SUMS:
            self.totals[name] += getattr(row, name)
        self.last = row

    def checkpoint(self) -> None:
        """Save everything that ``resume`` needs."""
        self.run.save_checkpoint(
            {
                "server": self.state.state_dict(),
                "downlink": self.downlink.state_dict(),
                "plan": self.fingerprint,
                "name": self.name,
                "totals": self.totals,
                "pruning": self.pruning,
                "seconds": self.seconds,
                "ledgers": self._heads,
                "rounds": self._rounds.mark(),
                "messages": self._messages.mark(),
                "events": self._events_size,
                "score": None if self.measured is None else _plain(*self.measured),
            }
        )

    @property
    def seconds(self) -> float:
        """How long the run took so far, in all of its processes."""
        return self.seconds_before + time.monotonic() - self.started


def _events(ledger: Ledger) -> tuple[Event, ...] | None:
    """What a client spent; None where a mechanism was not private, which has no bound."""
    return None if any(entry.mechanism != "dp" for entry in ledger.entries) else ledger.events()


def csv_line(values: Iterable[object]) -> str:
    """One line of a CSV file."""
    text = io.StringIO(newline="")
    csv.writer(text).writerow(values)
    return text.getvalue()


def _plain(round: int, measured: Score) -> dict[str, Any]:
    return {"round": round, "score": {**vars(measured), "by_split": dict(measured.by_split)}}
