"""Simulated clients: the Flower Grid whose nodes they are, the call of one, and its time limit.

Both engines use it: node ids are known in advance, and a client sees the same Message and Context
on both.

A client that hangs is stopped after a time limit, so that the replies of others are not lost. Under
a trusted server (``trust=server``) there is no limit: a client that slows the machine down could
decide whether others reply in time, and epsilon requires that a client's own data alone decide
whether it is in the sum.
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

FIRST_NODE = RUN = TASK = 2**62
"""Ids of the first node, the run and the task. They are as long as Flower's own (63 bits), so that
serialised sizes are comparable."""

SHARED = "shared-replica"
"""Key in the node config of simulated clients, which share equal data structures."""


class VirtualGrid(Grid):
    """A Flower grid with one node for each partition.

    Clients reply to pushed messages at once; the replies wait for ``pull_messages``.
    """

    def __init__(self, num_partitions: int) -> None:
        self.num_partitions = num_partitions
        self._replies: dict[str, Message] = {}

    @abstractmethod
    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterable[Message]:
        """The clients' replies, in any order."""

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

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
    """The reply of one client; None if it returns no message.

    An exception becomes an error reply with a constant text; only the log has the exception.
    ``state``: of the client's Context, changed in place.
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
    """Whether this process is a Ray worker: its messages come from the run's own server."""
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
"""The warning for ``lacks_gpu``."""


def lacks_gpu(settings: Settings) -> bool:
    """Whether Flower's simulation hides this machine's GPU from a client that would use it."""
    by_flower = settings.engine in ("auto", "flower") and in_simulation()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == "" and any(Path("/dev").glob("nvidia[0-9]*"))
    return by_flower and settings.device != "cpu" and hidden and not torch.cuda.is_available()


@contextmanager
def task_identity() -> Iterator[None]:
    """Identify this process as a ServerApp in the block: Flower's Message constructor needs it."""
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
    """The reply for a client that was stopped after ``seconds``."""
    return failure(
        f"stopped: it took longer than client_timeout, which is {seconds:.3g} s here",
        TOO_SLOW,
        message,
    )


T = TypeVar("T")


class OutOfTimeError(OwnEnd):
    """A client is stopped.

    It is no ``Exception``: handlers of exceptions would reply, and the next client would begin.
    """


@contextmanager
def ending(until: float | None) -> Iterator[None]:
    """Raise OutOfTimeError in the block at the time ``until``, in seconds since the epoch.

    None is no limit. It uses a signal: it has no effect inside a library that never returns to
    Python, outside the main thread, and on Windows.
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
    """The result of a call, and whether it was stopped; a stopped call has the result None.

    ``until``: see ``ending``; infinite for no limit. The objects that a stopped call worked on must
    not be used again: it may have ended at any place.
    """
    try:
        with ending(None if until == math.inf else until):
            return call(), False
    except OutOfTimeError:
        return None, True
