"""Engine ``local``: the same ServerApp code and the same ClientApp, in one process, without Ray.

Messages are serialised to bytes and read back on both ways, so that client and server share only
bytes, which are immutable.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from logging import WARNING
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.logger import log

from fedlsg.participation import ClientLimit
from simulations import workloads
from simulations.callbacks.callback import Callback
from simulations.client.app import app
from simulations.client.model import is_served, process, serving
from simulations.engines.run_log import logging_to
from simulations.grids.deadline import call_until
from simulations.grids.limits import learn, limit_by, limit_of, too_slow
from simulations.grids.piles import Task
from simulations.grids.virtual import FIRST_NODE, ClientFunction, VirtualGrid, call_client, give_id, task_identity
from simulations.plan.plan import Plan, prepare
from simulations.rundir.rundir import RunDir
from simulations.rundir.tables import Row
from simulations.server.serve import serve
from simulations.settings.settings import as_config
from strategies.federation.serial import over_the_wire


class LocalGrid(VirtualGrid):
    """A Flower Grid whose nodes are called one after the other in this process, each with a Context of its own.

    A client is stopped at its limit, see ``ending``; ``sizes``: examples of each, its work for the limit.
    """

    def __init__(
        self,
        client: ClientFunction,
        num_partitions: int,
        run_config: dict[str, Any],
        *,
        limit: ClientLimit | None = None,
        sizes: Sequence[int] = (),
    ) -> None:
        super().__init__(num_partitions)
        self.client, self.run_config, self.sizes = client, run_config, sizes
        self.limit = ClientLimit(learns=False) if limit is None else limit
        self._states: dict[int, RecordDict] = {}

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterable[Message]:
        """The replies, in order. A client that takes longer than ``timeout`` alone has none: others need not wait."""
        for message in messages:
            reply = self._call(message, math.inf if timeout is None else timeout)
            if reply is not None:
                yield over_the_wire(reply)

    def _call(self, message: Message, timeout: float) -> Message | None:
        node, began = message.metadata.dst_node_id, time.monotonic()
        state = self._states.setdefault(node, RecordDict())
        task = Task(message, state, self.sizes[node - FIRST_NODE] if self.sizes else 1.0)
        seconds = min(limit_of(self.limit, task), timeout)
        reply, stopped = call_until(
            time.time() + seconds,
            lambda: call_client(self.client, over_the_wire(message), self.num_partitions, self.run_config, state),
        )
        if stopped:
            log(WARNING, "client %d was stopped after %.3g s", node - FIRST_NODE, seconds)
            process.cache_clear()  # the state of a stopped client's process is unknown
            return None if seconds == timeout else give_id(too_slow(message, seconds))
        learn(self.limit, task, reply, time.monotonic() - began)
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
    limit = limit_by(plan.settings)
    grid = LocalGrid(client, len(plan.terms), dict(as_config(plan.settings)), limit=limit, sizes=plan.sizes)
    own = workloads.own(plan.settings.workload) is not None and not is_served()
    clients = serving(prepare(plan.settings, loaded=plan.workload)) if own else nullcontext()
    with logging_to(directory.log), task_identity(), clients:
        return serve(grid, plan, directory, on_round=on_round, callbacks=callbacks, page=page)
