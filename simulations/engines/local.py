"""Engine ``local``: the same ServerApp code and the same ClientApp, in one process, without Ray.

Messages are serialised to bytes and read back on both ways, so that client and server share only
bytes, which are immutable.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from flwr.app import Message, RecordDict

from simulations import workloads
from simulations.callbacks.callback import Callback
from simulations.client.app import app
from simulations.client.model import is_served, serving
from simulations.engines.run_log import logging_to
from simulations.grids.virtual import ClientFunction, VirtualGrid, call_client, task_identity
from simulations.plan.plan import Plan, prepare
from simulations.rundir.rundir import RunDir
from simulations.rundir.tables import Row
from simulations.server.serve import serve
from simulations.settings.settings import as_config
from strategies.federation.serial import over_the_wire


class LocalGrid(VirtualGrid):
    """A Flower Grid whose nodes are called one after the other in this process, each with a Context of its own."""

    def __init__(self, client: ClientFunction, num_partitions: int, run_config: dict[str, Any]) -> None:
        super().__init__(num_partitions)
        self.client, self.run_config = client, run_config
        self._states: dict[int, RecordDict] = {}

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterable[Message]:
        """The replies, in order; ``timeout`` has no effect on a client that hangs."""
        for message in messages:
            state = self._states.setdefault(message.metadata.dst_node_id, RecordDict())
            reply = call_client(self.client, over_the_wire(message), self.num_partitions, self.run_config, state)
            if reply is not None:
                yield over_the_wire(reply)


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
    grid = LocalGrid(client, len(plan.terms), dict(as_config(plan.settings)))
    own = workloads.own(plan.settings.workload) is not None and not is_served()
    clients = serving(prepare(plan.settings, loaded=plan.workload)) if own else nullcontext()
    with logging_to(directory.log), task_identity(), clients:
        return serve(grid, plan, directory, on_round=on_round, callbacks=callbacks, page=page)
