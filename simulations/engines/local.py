"""Engine ``local``: the same ServerApp code and the same ClientApp, in one process, without Ray.

Messages to and from another ClientApp than ours are copied, so that it shares only bytes with the
server, which are immutable. Ours keeps and changes no message.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from logging import WARNING
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.logger import log

from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.client.drawing import kept_draws
from fedlsg.simulations.client.piles import Pile, Task
from fedlsg.simulations.client.process_state import is_served, process, serving
from fedlsg.simulations.client.virtual import (
    FIRST_NODE,
    ClientFunction,
    VirtualGrid,
    call_client,
    call_until,
    give_id,
    limit_of,
    task_identity,
    too_slow,
)
from fedlsg.simulations.engines.accounts import Accounts
from fedlsg.simulations.engines.process import logging_to
from fedlsg.simulations.engines.shared_passes import Passes
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.server.callbacks import Callback
from fedlsg.simulations.server.server_app import serve
from fedlsg.simulations.settings.settings import as_config
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.state import RoundPlan
from fedlsg.strategies.protocol.nodes import SimulatedGrid
from fedlsg.strategies.protocol.wire import over_the_wire


class LocalGrid(VirtualGrid, SimulatedGrid):
    """A Flower Grid whose nodes are called one after the other in this process.

    Each has its own Context, and is stopped at its time limit, see ``ending``. Without ``accounts``
    the clients keep ledgers of their own.
    """

    def __init__(
        self,
        client: ClientFunction,
        num_partitions: int,
        run_config: dict[str, Any],
        *,
        client_timeout: float | None = None,
        accounts: Accounts | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(num_partitions)
        self._pass_on: Callable[[Message], Message] = over_the_wire
        if client is app:
            self._pass_on = lambda message: message
        self._device = device
        self.client, self.run_config, self.accounts = client, run_config, accounts
        self.client_timeout = client_timeout
        self._states: dict[int, RecordDict] = {}
        self._passes = Passes(client, num_partitions, run_config)

    def representatives(self) -> Sequence[int]:
        """One client: this process has the code and the data of all of them."""
        return range(min(1, self.num_partitions))

    def expect(self, plan: RoundPlan) -> None:
        """Begin a round, for which clients will be charged."""
        if self.accounts is not None:
            self.accounts.expect(plan)

    def end(self) -> None:
        """End the round: nobody else is asked."""
        if self.accounts is not None:
            self.accounts.end()

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterable[Message]:
        """The replies; none of a client that takes longer than ``timeout`` alone."""
        timeout = math.inf if timeout is None else timeout
        if self.accounts is None:
            yield from self._deliver_without_accounts(messages, timeout)
            return
        tasks, replies = self.accounts.ask(messages)
        yield from replies
        try:
            with kept_draws(self._device):
                for pile in self._passes.divide(tasks):
                    yield from self._deliver_pass(pile, timeout, self.accounts)
        finally:
            self.accounts.end()

    def _deliver_without_accounts(
        self, messages: Sequence[Message], timeout: float
    ) -> Iterable[Message]:
        for message in messages:
            state = self._states.setdefault(message.metadata.dst_node_id, RecordDict())
            task = Task(message, state)
            reply = self._call(task, min(self._limit_of(task), timeout), timeout)
            if reply is not None:
                yield self._pass_on(reply)

    def _deliver_pass(self, pile: Pile, timeout: float, accounts: Accounts) -> Iterable[Message]:
        """The replies of the clients of one pass."""
        accounts.leaves(pile)
        limits = [min(self._limit_of(task), timeout) for task in pile]
        self._passes.compute(pile, limits)
        for task, limit in zip(pile, limits, strict=True):
            reply = None
            try:
                reply = self._call(task, limit, timeout)
            # also of a client that was interrupted: its state says whether it drew
            finally:
                settled = accounts.settle([task], [(reply, task.state)])
            yield from map(self._pass_on, settled)

    def _limit_of(self, task: Task) -> float:
        return limit_of(task.message, self.client_timeout)

    def _call(self, task: Task, seconds: float, timeout: float) -> Message | None:
        """The reply of a client that is stopped after ``seconds``.

        A client that is stopped has an error reply, or none if the ``timeout`` is over.
        """
        message = task.message
        reply, stopped = call_until(
            time.time() + seconds,
            lambda: call_client(
                self.client,
                self._pass_on(message),
                self.num_partitions,
                self.run_config,
                task.state,
            ),
        )
        if stopped:
            client = message.metadata.dst_node_id - FIRST_NODE
            log(WARNING, "client %d was stopped after %.3g s", client, seconds)
            process.cache_clear()  # the state of a stopped client's process is unknown
            return None if seconds == timeout else give_id(too_slow(message, seconds))
        return reply


def run(
    plan: Plan,
    directory: RunDir,
    *,
    on_round: Callable[[Row], None],
    callbacks: Sequence[Callback] = (),
    client: ClientFunction = app,
    page: bool = True,
) -> dict[str, Any]:
    """Run a plan in this process; returns the summary.

    Tests of bad clients give another ``client``; ``page=False`` leaves report.html out.
    """
    plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
    accounts = Accounts(plan, directory, here=True)
    grid = LocalGrid(
        client,
        len(plan.terms),
        dict(as_config(plan.settings)),
        client_timeout=plan.settings.client_timeout,
        accounts=accounts,
        device=plan.device,
    )
    with ExitStack() as stack:
        if not is_served():
            base = prepare(plan.settings, loaded=plan.workload, parts=plan.parts)
            stack.enter_context(serving(base))
        stack.enter_context(logging_to(directory.log))
        stack.enter_context(task_identity())
        return serve(grid, plan, directory, on_round=on_round, callbacks=callbacks, page=page)
