"""Engine ``local``: the same ServerApp code and the same ClientApp, in one process, without Ray.

Messages are serialised to bytes and read back on both ways, so that client and server share nothing else than bytes
that nobody can change.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from simulations.client_app import app
from simulations.plan import Plan
from simulations.row import Row
from simulations.rundir import RunDir
from simulations.server import serve
from simulations.settings import as_config
from strategies.report import reason_of
from strategies.serial import over_the_wire
from strategies.wire import FAILED

ClientFunction = Callable[[Message, Context], Message]


# Flower draws ids of about 63 bits; ids as long as those keep the serialised sizes comparable.
FIRST_NODE = RUN = TASK = 2**62


class LocalGrid(Grid):
    """A Flower Grid whose nodes are called one after the other in this process."""

    def __init__(self, client: ClientFunction, num_partitions: int, run_config: dict[str, Any]) -> None:
        self.client, self.run_config = client, run_config
        self.num_partitions = num_partitions
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """Nothing to set: there is one run."""

    @property
    def run(self) -> Any:
        """No Run object exists without a SuperLink."""
        raise RuntimeError("the local engine has no SuperLink run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """As flwr's: a message to one node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes, connected from the start."""
        return range(FIRST_NODE, FIRST_NODE + self.num_partitions)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run each message's client at once; the replies wait for ``pull_messages``."""
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that have arrived, each once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, then pull. A client that answers with nothing useful is simply missing among the replies."""
        return self.pull_messages(self.push_messages(messages))

    def _push(self, message: Message) -> str:
        name = str(uuid4())
        message.metadata.__dict__["_message_id"] = name
        delivered = over_the_wire(message)
        context = Context(
            run_id=RUN,
            node_id=message.metadata.dst_node_id,
            node_config={
                "partition-id": message.metadata.dst_node_id - FIRST_NODE,
                "num-partitions": self.num_partitions,
            },
            state=RecordDict(),
            run_config=self.run_config,
        )
        try:
            reply = self.client(delivered, context)
            if isinstance(reply, Message):
                self._replies[name] = sent_back(reply)
        except Exception as error:
            reason = f"{type(error).__name__}: {reason_of(error)}"
            self._replies[name] = sent_back(Message(Error(code=FAILED, reason=reason), reply_to=delivered))
        return name


def sent_back(reply: Message) -> Message:
    """A reply as the server gets it."""
    reply.metadata.__dict__["_message_id"] = str(uuid4())
    return over_the_wire(reply)


def run(
    plan: Plan, directory: RunDir, *, on_round: Callable[[Row], None], client: ClientFunction = app, page: bool = True
) -> dict[str, Any]:
    """Run a plan in this process; returns the summary.

    ``client`` is another ClientApp in tests of bad clients; ``page=False`` leaves report.html out.
    """
    plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
    grid = LocalGrid(client, len(plan.terms), dict(as_config(plan.settings)))
    with logging_to(directory), task_identity():
        return serve(grid, plan, directory, on_round=on_round, page=page)


@contextmanager
def logging_to(directory: RunDir) -> Iterator[None]:
    """Send Flower's log into run.log instead of the terminal."""
    logger = logging.getLogger("flwr")
    kept, logger.handlers = logger.handlers, [logging.FileHandler(directory.log)]
    logger.handlers[0].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    try:
        yield
    finally:
        logger.handlers[0].close()
        logger.handlers = kept


@contextmanager
def task_identity() -> Iterator[None]:
    """Identify this process as a ServerApp, which Flower's Message constructor insists on."""
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = TASK, RUN, SUPERLINK_NODE_ID
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before
