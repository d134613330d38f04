"""Engine ``ray``: the same ServerApp code and the same ClientApp, with clients in Ray workers.

Messages go directly to the workers: no SuperLink, no polling, no second driver.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from flwr.app import Message, MessageType

from fedlsg.simulations.client.piles import PILE_SECONDS, Pace, Pile
from fedlsg.simulations.client.virtual import VirtualGrid, give_id, task_identity
from fedlsg.simulations.engines.accounts import Accounts
from fedlsg.simulations.engines.cluster import ready
from fedlsg.simulations.engines.process import logging_to
from fedlsg.simulations.engines.ray_worker import CLIENT
from fedlsg.simulations.engines.signals import ignore_interrupts
from fedlsg.simulations.engines.watchers import RayLostError
from fedlsg.simulations.engines.workers import LostError, Outcome, Workers
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.server.callbacks import Callback
from fedlsg.simulations.server.server_app import serve
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.state import RoundPlan
from fedlsg.strategies.protocol.nodes import SimulatedGrid
from fedlsg.strategies.protocol.wire import WORKER_DIED, failure

GRACE_SECONDS = 2 * PILE_SECONDS
"""Time after an interruption in which payloads are still stored: ``resume`` sends these again
without a charge."""


class RayGrid(VirtualGrid, SimulatedGrid):
    """A Flower Grid whose clients run in Ray workers, a pile of messages at a time.

    Clients that are lost with their worker get their messages again, one by one: a client that
    kills its worker, or hangs in it, does not cost other clients their round.
    """

    def __init__(self, workers: Workers, accounts: Accounts, num_partitions: int) -> None:
        super().__init__(num_partitions)
        self.workers, self.accounts = workers, accounts
        self._pace = Pace()

    def representatives(self) -> Sequence[int]:
        """As many clients as there are workers."""
        return range(min(len(self.workers), self.num_partitions))

    def expect(self, plan: RoundPlan) -> None:
        """Begin a round, for which clients will be charged."""
        self.accounts.expect(plan)

    def end(self) -> None:
        """End the round and the workers: nobody else is asked."""
        self.accounts.end()
        self.workers.close()

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterable[Message]:
        """The replies, with an error for each client whose worker was lost twice.

        There is no reply of a client that stays silent, or whose worker was lost once before the
        deadline: another client may have ended the worker.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        queries = any(message.metadata.message_type != MessageType.TRAIN for message in messages)
        replies, lost = self._deliver(
            messages, deadline, Pace(one_by_one=True) if queries else self._pace
        )
        if deadline is not None and time.monotonic() >= deadline:
            return replies  # sent again, they would train and be charged for no use
        again = [message for message, _ in lost]
        more, lost = self._deliver(again, deadline, Pace(one_by_one=True))
        failures = [give_id(failure(why, WORKER_DIED, message)) for message, why in lost]
        return [*replies, *more, *failures]

    def _deliver(
        self, messages: Sequence[Message], deadline: float | None, pace: Pace
    ) -> tuple[list[Message], list[tuple[Message, str]]]:
        """The replies, and the messages that were lost, each with the reason."""
        tasks, replies = self.accounts.ask(messages)
        lost = list[tuple[Message, str]]()
        try:
            for pile, outcome in self.workers.answer(tasks, deadline, pace, self.accounts.leaves):
                if isinstance(outcome, LostError):
                    lost += [(task.message, str(outcome)) for task in pile]
                replies += self._settle(pile, outcome)
        except (KeyboardInterrupt, SystemExit, RayLostError):
            with ignore_interrupts():
                for pile, outcome in self.workers.answer(
                    [], time.monotonic() + GRACE_SECONDS, pace, self.accounts.leaves
                ):
                    self._settle(pile, outcome)
                self.accounts.end()
            raise
        self.accounts.end()
        return replies, lost

    def _settle(self, pile: Pile, outcome: Outcome) -> list[Message]:
        """The replies of a pile; of a lost or late pile none, and its clients stay charged."""
        if outcome is None or isinstance(outcome, LostError):
            self.accounts.keep(pile)
            return []
        return self.accounts.settle(pile, outcome)


def run(
    plan: Plan,
    directory: RunDir,
    *,
    on_round: Callable[[Row], None],
    callbacks: Sequence[Callback] = (),
    client: str = CLIENT,
    page: bool = True,
) -> dict[str, Any]:
    """Run a plan on Ray; returns the summary.

    Tests of bad clients give another ``client``, as ``module:attribute``; ``page=False`` leaves
    report.html out.
    Raises RuntimeError if Ray does not start, ValueError if it has no place for a worker.
    """
    plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
    with (
        logging_to(directory.log),
        task_identity(),
        ready() as cluster,
        cluster.losses_named(),
        closing(Workers(cluster, plan, directory, client)) as workers,
    ):
        grid = RayGrid(workers, Accounts(plan, directory), len(plan.terms))
        return serve(grid, plan, directory, on_round=on_round, callbacks=callbacks, page=page)
