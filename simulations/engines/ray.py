"""Engine ``ray``: the same ServerApp code and the same ClientApp, with the clients shared out to Ray workers.

Messages go straight to the workers: no SuperLink, no polling, no second driver.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from flwr.app import Message

from simulations.engines import run_log
from simulations.engines.cluster import ready
from simulations.engines.worker import CLIENT
from simulations.engines.workers import Workers
from simulations.grids.piles import divide
from simulations.grids.virtual import FIRST_NODE, VirtualGrid, give_id, task_identity
from simulations.plan.plan import Plan
from simulations.rundir.rundir import RunDir
from simulations.rundir.tables import Row
from simulations.server.serve import serve
from strategies.federation.nodes import SimulatedGrid
from strategies.federation.wire import WORKER_DIED, failure


class RayGrid(VirtualGrid, SimulatedGrid):
    """A Flower Grid whose clients run in Ray workers, one pile of messages a worker.

    ``sizes``: examples of each partition, by which work is divided. A pile that is lost with its worker is sent again
    message by message, so a client that kills its worker loses no other client. One that hangs loses those behind it
    in its pile the round.
    """

    def __init__(self, workers: Workers, sizes: Sequence[int]) -> None:
        super().__init__(len(sizes))
        self.workers, self.sizes = workers, sizes

    def representatives(self) -> Sequence[int]:
        """As many clients as there are workers."""
        return range(min(len(self.workers), self.num_partitions))

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterable[Message]:
        """The replies; an error for each client whose worker was lost twice, none for one that stays silent."""
        deadline = None if timeout is None else time.monotonic() + timeout
        work = [self.sizes[message.metadata.dst_node_id - FIRST_NODE] for message in messages]
        replies, lost = self.workers.answer(divide(messages, work, len(self.workers)), deadline)
        if deadline is None or time.monotonic() < deadline:  # later, they would train and be charged for no use
            more, lost = self.workers.answer([[message] for pile, _ in lost for message in pile], deadline)
            replies += more
        return [*replies, *(give_id(failure(why, WORKER_DIED, message)) for pile, why in lost for message in pile)]


def run(
    plan: Plan, directory: RunDir, *, on_round: Callable[[Row], None], client: str = CLIENT, page: bool = True
) -> dict[str, Any]:
    """Run a plan on Ray; returns the summary.

    Tests of bad clients give another ``client``, as ``module:attribute``; ``page=False`` leaves report.html out.
    Raises RuntimeError if Ray does not start, ValueError if it has no place for a worker.
    """
    plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
    with (
        run_log.logging_to(directory.log),
        task_identity(),
        ready() as cluster,
        closing(Workers(cluster, plan, client)) as workers,
    ):
        return serve(RayGrid(workers, plan.sizes), plan, directory, on_round=on_round, page=page)
