"""What the server writes while it runs: rounds.csv, TensorBoard events, checkpoint, ledger, summary.json, report."""

import csv
import io
import math
import platform
import statistics
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedlsg.accounting import AccountingError, compose
from fedlsg.events import Event
from fedlsg.ledger import Ledger, merge, verify_extends
from fedlsg.population import Spread, displayed, spread
from fedlsg.supported import trainable
from simulations import messages, tensorboard
from simulations.chance import chance_of
from simulations.continuity import check_unchanged, fingerprint
from simulations.disk_space import naming
from simulations.downlink import downlink_of
from simulations.evaluate import Score, score
from simulations.hardware import hardware
from simulations.links import run_seconds
from simulations.outbox import write_atomically
from simulations.plan import Plan
from simulations.preset import codec_of
from simulations.row import FIELDS, Row
from simulations.rundir import RunDir
from strategies.downlink import Downlink, FullDownlink
from strategies.report import RoundReport
from strategies.state import ServerState

PACKAGES = ("fedlsg", "torch", "flwr", "ray", "numpy", "scipy", "prv-accountant", "dp-accounting")

BYTES = messages.SUMS
SUMS = (*BYTES, "uplink_messages", "downlink_messages")


class Recorder:
    """Keeps one run directory in step with the server's state; ``on_round`` is the strategy's callback.

    Order of one round: lines of bytes.csv, row, events, then checkpoint. A crash in between leaves a row too many,
    which ``resume`` cuts off; it never leaves a checkpoint without its row.
    """

    def __init__(
        self, run: RunDir, plan: Plan, state: ServerState, *, downlink: Downlink | None = None, page: bool = True
    ) -> None:
        self.run, self.plan, self.state, self.page = run, plan, state, page
        self.downlink: Downlink = FullDownlink(state) if downlink is None else downlink
        self.ledgers = [Ledger(run.ledger(client), client=client) for client in range(len(plan.terms))]
        self._events = [_events(ledger) for ledger in self.ledgers]
        self._late = set[int]()  # did not answer in time: may write to their ledgers later
        self._heads = {str(ledger.client): ledger.snapshot() for ledger in self.ledgers if ledger.entries}
        self.fingerprint = fingerprint(plan)
        self.totals = dict.fromkeys(SUMS, 0)
        self.pruning: dict[str, Any] = {}
        self.last: Row | None = None
        self.seconds_before = 0.0
        self.started = time.monotonic()

    def resume(self) -> None:
        """Load the checkpoint, cut rounds.csv to it, and insist that every ledger still holds what it held then."""
        saved = self.run.load_checkpoint()
        verify_extends(saved["ledgers"], self.run.ledgers)
        check_unchanged(saved["plan"], self.plan)
        self.state.load_state_dict(saved["server"])
        self.downlink.load_state_dict(saved.get("downlink", {}))
        self.totals, self.seconds_before = saved["totals"], saved["seconds"]
        self.pruning = saved["pruning"]
        rows = [row for row in self.run.read_rounds() if int(row["round"]) <= self.state.round]
        if len(rows) != self.state.round:
            raise ValueError(f"{self.run.rounds} is damaged: it lacks rounds that the checkpoint holds; restore it")
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.run.rounds, text.getvalue().encode())
        parsed = [Row.parse(row) for row in rows]
        pruning = self.pruning.get("messages", messages.ALL if self.pruning else 0)
        messages.cut(self.run.messages, parsed, self.totals, pruning=pruning, last=self.state.round)
        tensorboard.rewrite(self.run.path, parsed)

    def on_round(self, report: RoundReport) -> None:
        """Evaluate, append the row, save the checkpoint.

        Raises RuntimeError, before anything of the round is kept, if a client's payload came without an entry in
        its ledger here: its epsilon would be a fiction.
        """
        self._receive(report)
        s = self.plan.settings
        due = report.round % s.evaluate_every == 0 or report.round == self.plan.schedule.rounds
        measured = self._evaluate() if due else None
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
        messages.append(self.run.messages, report)
        self._append(row)
        tensorboard.append(self.run.path, row)
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
        messages.append(self.run.messages, report)
        self.checkpoint()

    def _pruning(self) -> dict[str, Any] | None:
        prune = self.plan.method.prune
        if not prune.active:
            return None
        zeros = sum(int((p == 0).sum()) for p in trainable(self.state.model).values() if p.ndim >= 2)
        return {"kind": prune.kind, "rate": prune.rate, "zero_weights": zeros, **self.pruning}

    def _evaluate(self) -> Score:
        with self.state.evaluated() as model:
            return score(model, self.plan.workload.tests, device=self.plan.settings.device)

    def _receive(self, report: RoundReport) -> None:
        self._late |= report.rejected.keys()
        for client in sorted({*report.asked, *self._late}):
            self._events[client] = _events(self.ledgers[client])
            if self.ledgers[client].entries:
                self._heads[str(client)] = self.ledgers[client].snapshot()
        for client, payload in report.payloads.items():
            if not any(entry.round == report.round for entry in self.ledgers[client].entries):
                raise RuntimeError(
                    f"client {client} answered round {report.round}, and its ledger in {self.run.ledgers} does not "
                    "show it: nothing can be said of its epsilon; clients need the run directory on a shared disk"
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

    def finish(self, stopped: str | None = None) -> dict[str, Any]:
        """Write the merged ledger, summary and report; return the summary. ``stopped`` says why a run ended early."""
        from simulations.compare.run_page import write_run_page

        merge(self.run.ledgers.glob("client-*.jsonl"), self.run.path / "ledger.jsonl")
        summary = {**self.summary(), "stopped": stopped}
        self.run.write_summary(summary)
        if self.page:
            write_run_page(self.run)
        return summary

    def summary(self) -> dict[str, Any]:
        """Everything of summary.json."""
        plan, s, state = self.plan, self.plan.settings, self.state
        measured = self._evaluate()
        spent = self.spent(fast=False)
        dense = 4 * plan.dense_parameters
        return {
            "workload": s.workload,
            "model": s.model,
            "method": s.method,
            "seed": s.seed,
            "rounds": state.round,
            "clients": len(plan.terms),
            "accuracy": measured.accuracy,
            "accuracy_by_split": dict(measured.by_split),
            "loss": measured.loss,
            "private": self.private and math.isfinite(spent.largest),
            "epsilon_max": spent.largest,
            "epsilon_median": spent.median,
            "delta": s.delta,
            "accountant": self._accountants(self.ledgers[spent.worst]),
            "noise_multiplier": max(t.noise_multiplier for t in plan.terms),
            "pruning": self._pruning(),
            "trust": s.trust,
            "reproducible": s.reproducible,
            "codec": codec_of(s, plan.method),
            "downlink": downlink_of(s, self.downlink),
            **{name: self.totals[name] for name in BYTES},
            "uplink_bytes_dense": dense * self.totals["uplink_messages"],
            "downlink_bytes_dense": dense * self.totals["downlink_messages"],
            "transfer_seconds": run_seconds(self.run.messages),
            "wall_seconds": round(self._seconds(), 3),
            "engine": s.engine,
            "device": s.device,
            **asdict(plan.local.numbers),
            "chance": asdict(chance_of(plan.workload.tests, plan.workload.num_classes)),
            "hardware": hardware(s.device),
            "versions": versions(),
        }

    @property
    def private(self) -> bool:
        """Whether the mechanism is private and all noise, also that of earlier processes of the run, was secret."""
        seeded = self.plan.settings.reproducible or any(ledger.reproducible for ledger in self.ledgers)
        return self.plan.method.mechanism.private and not seeded

    def _accountants(self, worst: Ledger) -> dict[str, Any]:
        """Both accountants' intervals for the client with the largest epsilon, and any failure's text."""
        if not self.plan.method.mechanism.private:
            return {}
        delta = self.plan.settings.delta
        assert delta is not None
        try:
            bound = compose(worst.events(), delta=delta)
        except AccountingError as error:
            return {"reported": "none", "client": worst.client, "intervals": {}, "failures": {"both": str(error)}}
        intervals = {name: asdict(interval) for name, interval in bound.intervals.items()}
        return {
            "reported": bound.accountant,
            "client": worst.client,
            "intervals": intervals,
            "failures": bound.failures,
        }

    def _append(self, row: Row) -> None:
        new = not self.run.rounds.exists()
        with naming(self.run.rounds), self.run.rounds.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerow(asdict(row))
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
                "totals": self.totals,
                "pruning": self.pruning,
                "seconds": self._seconds(),
                "ledgers": self._heads,
            }
        )

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started


def _events(ledger: Ledger) -> tuple[Event, ...] | None:
    """What a client spent; None where a mechanism was not private, which has no bound."""
    return None if any(entry.mechanism != "dp" for entry in ledger.entries) else ledger.events()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
