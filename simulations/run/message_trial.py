"""A trial of a plan's messages: two rounds by the code of a run, with a few public rows.

Sizes of messages do not depend on rows, so they are those of the run. Nobody is charged: ledger
entries and payloads of the trial are in a temporary folder, which is removed. Two clients take
part, except in a secure sum, whose messages depend on the number of clients.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from flwr.app import ConfigRecord

from fedlsg.gradients import check
from fedlsg.participation import Participation
from fedlsg.randomness import own_draws
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.client.process_state import Held, Process, serving
from fedlsg.simulations.client.rehearsal import NoAccount, on_public_rows
from fedlsg.simulations.client.train import train_round
from fedlsg.simulations.client.virtual import task_identity
from fedlsg.simulations.engines.accounts import Accounts
from fedlsg.simulations.engines.local import LocalGrid
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.server.recorder import make_downlink
from fedlsg.simulations.server.server_app import federation_settings
from fedlsg.simulations.settings.participation import NAMES as CLOCK
from fedlsg.simulations.settings.settings import as_config
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.protocol.round_report import RoundReport, Sent, SimulatedClock
from fedlsg.strategies.protocol.wire import flat_record
from fedlsg.strategies.strategy import FedLSG
from fedlsg.training.local_training import shape_of
from fedlsg.user_code.objects import restored

TRIAL_CLIENTS = 2
"""Clients of a trial without a secure sum, and rounds of a trial: in the second one replicas get an
update."""
ROWS = 8
"""Public rows of each of its clients."""
REPEATS = 3
"""Timings of a step, at most."""
TIMED_SECONDS = 5.0
"""Time after which a step is not timed again."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The messages of a trial.

    rounds: number and messages of each round; the pruning round, number 0, is first.
    clients: number of clients.
    seconds: time of the last round.
    """

    rounds: Sequence[tuple[int, Sequence[Sent]]]
    clients: int
    seconds: float

    def per_client(self, direction: str, round: int) -> Mapping[str, float]:
        """Mean bytes of all messages of a round to or from a client, by level."""
        sent = [
            message for number, messages in self.rounds if number == round for message in messages
        ]
        in_direction = [message for message in sent if message.direction == direction]
        return {
            level: sum(getattr(message, f"{level}_bytes") for message in in_direction)
            / self.clients
            for level in ("values", "payload", "wire")
        }


def try_rounds(plan: Plan) -> Trial:
    """Run the trial of a plan. Raises RuntimeError, with the reason, if a client fails."""
    small = _small(plan)
    rounds: list[tuple[int, Sequence[Sent]]] = []
    with TemporaryDirectory(prefix="fedlsg-plan-") as folder, _untouched(plan), task_identity():
        run = RunDir(Path(folder))
        small = replace(small, settings=replace(small.settings, run_dir=folder))
        grid = LocalGrid(
            app,
            len(small.terms),
            dict(as_config(small.settings)),
            accounts=Accounts(small, run, here=True),
        )
        state, clock = small.initial.server(), _clock(plan)
        seconds = 0.0

        def keep(report: RoundReport) -> None:
            # not ``report``: that of a trusted server leaves out the clients
            complete = strategy.exchange.report
            if complete.reasons:
                raise RuntimeError(f"a round on public rows failed: client {complete.reasons}")
            rounds.append((report.round, list(complete.sent)))

        strategy = FedLSG(
            state,
            federation_settings(small, run),
            on_round=keep,
            on_pruned=keep,
            downlink=make_downlink(small.settings, state, run),
            clock=SimulatedClock(_everybody(small)),
        )
        with serving(cast(Base, small)):
            for number in range(1, min(TRIAL_CLIENTS, plan.schedule.rounds) + 1):
                began = clock()
                weights = flat_record(state.weights)
                messages = strategy.configure_train(number, weights, ConfigRecord(), grid)
                strategy.aggregate_train(
                    number, grid.send_and_receive(messages, timeout=plan.settings.round_timeout)
                )
                seconds = clock() - began
        grid.end()
    return Trial(rounds=rounds, clients=len(small.terms), seconds=seconds)


def time_step(plan: Plan) -> tuple[float, int, int | None]:
    """Time one local step on public rows; returns seconds, its rows, and its peak of memory.

    It has one microbatch at most: a larger batch takes proportionally longer, and no more memory.
    Memory, in bytes, is that of this process with the data; None if the system does not report it.
    """
    batch = round(plan.clients.largest_batch if plan.unit.whole else plan.local.expected_batch)
    with _untouched(plan):
        state = plan.initial.server()
        size = max(1, min(batch, shape_of(plan.local, state.public.parameters.values()).size))
        base = on_public_rows(plan, plan.workload.test, size)
        if state.awaits_pruning:
            state.pruned = True
        common = state.plan(
            replace(plan.local, steps=1, shuffled=0, sample_rate=1.0), plan.sums, plan.unit
        )
        round_plan = common.for_client(replace(plan.terms[0], sample_rate=1.0))
        here = Process(base=base, state=state.public, held=Held(state.public))
        checked, account = check(state.model, round_plan.frame), NoAccount()
        release = round_plan.release
        # of a secure sum the noise is left out
        add = None if release is None else lambda total, mechanism, stream: total
        _reset_peak()
        clock = _clock(plan)
        seconds: list[float] = []
        for _ in range(1 + REPEATS):  # the first pass prepares kernels
            began = clock()
            train_round(here, account, round_plan, size, checked, add)
            seconds.append(clock() - began)
            if sum(seconds) > TIMED_SECONDS:
                break
    return min(seconds), size, _peak(plan.device)


def _small(plan: Plan) -> Plan:
    """The plan with clients that hold ``ROWS`` public rows, all of which are in every batch."""
    number = min(TRIAL_CLIENTS, len(plan.terms))
    if plan.sums is not None:
        number = plan.settings.clients_per_round
    largest = max(plan.terms, key=lambda terms: terms.num_examples)
    small_terms = (replace(largest, num_examples=ROWS, sample_rate=1.0),) * number
    without_clock: dict[str, Any] = dict.fromkeys(CLOCK)
    settings = replace(
        plan.settings,
        clients=number,
        clients_per_round=number,
        epsilon=None,
        client_epsilons=None,
        client_deltas=None,
        record_updates=False,
        engine="local",
        noise_multiplier=largest.noise_multiplier or None,
        **without_clock,
    )
    return replace(
        on_public_rows(plan, plan.workload.test, ROWS, clients=number),
        settings=settings,
        terms=small_terms,
        local=replace(plan.local, sample_rate=1.0),
    )


def _everybody(plan: Plan) -> Participation:
    """All clients in each round."""
    number = len(plan.terms)
    return Participation(clients=number, per_round=number, seed=plan.settings.seed)


@contextmanager
def _untouched(plan: Plan) -> Iterator[None]:
    """Restore the user's objects and torch's generators after the block."""
    workload: Any = plan.workload
    used = workload.loss, workload.test.prepare, workload.models
    with restored(*used, data=True), own_draws(plan.device):
        yield


def _clock(plan: Plan) -> Callable[[], float]:
    """A clock in seconds; on processors, CPU time: other processes do not count."""
    if plan.device == "cuda":
        return time.monotonic
    return lambda: time.process_time() / max(1, plan.settings.threads)


def _reset_peak() -> None:
    """Reset the peak of memory, of the GPU and of this process (Linux)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak(device: str) -> int | None:
    """The peak of memory in bytes; None if the system does not report it."""
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    try:
        line = Path("/proc/self/status").read_text().partition("VmHWM:")[2]
        return 1024 * int(line.split()[0])
    except (OSError, IndexError, ValueError):
        return None
