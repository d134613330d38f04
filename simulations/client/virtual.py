"""Simulated clients: the Flower Grid whose nodes they are, the call of one, and its time limit.

Both engines share it: node ids are known in advance, and a client sees the same Message and Context
on both.

The limit of a client follows from the settings of its run and the messages that it answers: others'
replies must not be lost with one that hangs. Under a trusted server (``trust=server``) there is
none: who slows the machine down would decide whether others reply in time, and epsilon counts on
each client being in the sum, or not, by its own data alone.
"""

import math
import os
import signal
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import torch
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedlsg.simulations.client.node.refusals import log_failure
from fedlsg.simulations.settings.settings import Settings
from fedlsg.strategies.protocol.wire import (
    FAILED,
    IN_RUN_LOG,
    TOO_SLOW,
    failure,
)
from fedlsg.user_code.failure import OwnEnd

ClientFunction = Callable[[Message, Context], Message]

# Flower draws ids of about 63 bits; ids as long as those keep the serialised sizes comparable.
FIRST_NODE = RUN = TASK = 2**62

SHARED = "shared-replica"
"""Key of a node's config: all clients are simulated on one machine, and share equal data
structures.
"""


class VirtualGrid(Grid):
    """One node a partition. Clients reply to pushed messages at once; the replies wait for
    ``pull_messages``.
    """

    def __init__(self, num_partitions: int) -> None:
        self.num_partitions = num_partitions
        self._replies: dict[str, Message] = {}

    @abstractmethod
    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterable[Message]:
        """The clients' replies, in any order."""

    def set_run(self, run: Any) -> None:
        """Nothing to set: there is one run."""

    @property
    def run(self) -> Any:
        """No Run object exists without a SuperLink."""
        raise RuntimeError("a simulated grid has no SuperLink run")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As flwr's: a message to one node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes, connected from the start."""
        return range(FIRST_NODE, FIRST_NODE + self.num_partitions)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Call the clients; their replies wait for ``pull_messages``."""
        return self._push(list(messages), None)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that have arrived, each once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push, then pull. A client that returns no message is missing among the replies."""
        return self.pull_messages(self._push(list(messages), timeout))

    def _push(self, messages: Sequence[Message], timeout: float | None) -> list[str]:
        for message in messages:
            give_id(message)
        for reply in self.deliver(messages, timeout):
            self._replies[reply.metadata.reply_to_message_id] = reply
        return [message.metadata.message_id for message in messages]


def give_id(message: Message) -> Message:
    """The message with the id that a SuperLink would have given it."""
    message.metadata.__dict__["_message_id"] = str(uuid4())
    return message


def call_client(
    client: ClientFunction,
    message: Message,
    num_partitions: int,
    run_config: Mapping[str, Any],
    state: RecordDict | None = None,
) -> Message | None:
    """The reply of one client; None if it returns no message. ``state``: of its Context, changed in
    place.

    Its exception becomes an error reply with a constant text; only the log has the exception.
    """
    context = Context(
        run_id=message.metadata.run_id,
        node_id=message.metadata.dst_node_id,
        node_config={
            "partition-id": message.metadata.dst_node_id - FIRST_NODE,
            "num-partitions": num_partitions,
            SHARED: True,
        },
        state=RecordDict() if state is None else state,
        run_config=dict(run_config),
    )
    try:
        reply = client(message, context)
    except Exception:
        return fail_client(message)
    return give_id(reply) if isinstance(reply, Message) else None


def fail_client(message: Message) -> Message:
    """The reply for a client that raised the current exception: a constant text."""
    log_failure()
    return give_id(failure(IN_RUN_LOG, FAILED, message))


def in_simulation() -> bool:
    """Whether this process is a Ray worker, whose messages come from the run's own server. A driver
    of Ray is not a worker.
    """
    ray = sys.modules.get("ray")
    return (
        ray is not None
        and ray.is_initialized()
        and ray.get_runtime_context().get_actor_id() is not None
    )


GPU_OPTION = (
    "this machine has a GPU, and Flower gives its clients none unless it is told: add "
    "--federation-config 'client-resources-num-gpus=0.25' to `flwr run` (four clients share a "
    "GPU), or give device=cpu"
)


def lacks_gpu(settings: Settings) -> bool:
    """Whether Flower's simulation hides this machine's GPU from a client that would use it."""
    flowers = settings.engine in ("auto", "flower") and in_simulation()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == "" and any(Path("/dev").glob("nvidia[0-9]*"))
    return flowers and settings.device != "cpu" and hidden and not torch.cuda.is_available()


@contextmanager
def task_identity() -> Iterator[None]:
    """Identify this process as a ServerApp, which Flower's Message constructor requires."""
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = TASK, RUN, SUPERLINK_NODE_ID
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


def limit_of(message: Message, client_timeout: float | None) -> float:
    """Seconds that a client may take for a message; infinite for a query, which may load data."""
    trains = message.metadata.message_type == MessageType.TRAIN
    return math.inf if client_timeout is None or not trains else client_timeout


def too_slow(message: Message, seconds: float) -> Message:
    """The reply for a client that was stopped."""
    return failure(
        f"stopped: it took longer than client_timeout, which is {seconds:.3g} s here",
        TOO_SLOW,
        message,
    )


T = TypeVar("T")


class OutOfTimeError(OwnEnd):
    """A client is stopped. Not an ``Exception``: handlers of those would reply, and the next client
    would begin.
    """


@contextmanager
def ending(until: float | None) -> Iterator[None]:
    """Raise OutOfTimeError inside when the clock (seconds since the epoch) shows ``until``, None
    for never.

    It uses a signal: without effect inside a library that never returns to Python, outside the main
    thread, and on Windows.
    """
    main = threading.current_thread() is threading.main_thread()
    if until is None or not (main and hasattr(signal, "setitimer")):
        yield
        return

    def cut_off(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, cut_off)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(until - time.time(), 1e-3))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call_until(until: float, call: Callable[[], T]) -> tuple[T | None, bool]:
    """What a call returns, and whether it was stopped: then it returned nothing. ``until``: see
    ``ending``; inf: never.

    Nothing of what the stopped call worked on may be used again: it ended anywhere.
    """
    try:
        with ending(None if until == math.inf else until):
            return call(), False
    except OutOfTimeError:
        return None, True
