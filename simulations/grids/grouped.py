"""Many clients in one message: on Ray, a message costs more than a small client's training.

    server   GroupedGrid     the messages of a round, divided into one pile for each Ray actor
    actor    answer_groups   the clients of a pile, one after the other, on the one model of the actor

Strategy and clients do not notice: they see the same messages as without piles, and bytes are counted on those. A pile
is pickled. Large arrays are sent next to the pickle, without a copy, and only once if messages share them, such as the
weights.

A client that hangs must not lose the replies of those before it: shortly before the round's deadline the actor stops it
and sends the replies so far. Clients behind it in the pile lose the round, as in a queue.
"""

import io
import itertools
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from logging import WARNING
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid

from simulations.grids.virtual import FIRST_NODE, VirtualGrid, call_client, give_id
from strategies.federation.report import reason_of
from strategies.federation.wire import WORKER_DIED, failure

ACTION = "grouped"
LARGE = 4096
"""Bytes from which an array is sent next to the pickle; a smaller one is cheaper to copy."""
MARGIN_SECONDS = 10.0
"""Time for the way back before the deadline; at most a tenth of the time that is left."""

Pile = Sequence[Message]


class GroupedGrid(VirtualGrid):
    """The clients of a Flower simulation behind the nodes of ``grid``, each of which can serve any partition.

    ``sizes``: examples of each partition, by which work is divided; ``actors``: gives the number of parallel actors,
    called with the first message. If a pile is lost with its actor, its messages are sent again one by one, so a client
    that kills its actor loses no other client.
    """

    def __init__(self, grid: Grid, sizes: Sequence[int], *, actors: Callable[[], int]) -> None:
        super().__init__(len(sizes))
        self.grid, self.sizes = grid, sizes
        self._count, self._actors = actors, 0

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterable[Message]:
        """The replies; an error for each client whose actor was lost twice, none for one that stays silent."""
        self._actors = self._actors or self._count()
        deadline = None if timeout is None else time.monotonic() + timeout
        work = [self.sizes[message.metadata.dst_node_id - FIRST_NODE] for message in messages]
        replies, lost = self._exchange(divide(messages, work, self._actors), deadline)
        if deadline is None or time.monotonic() < deadline:  # later, they would train and be charged for no use
            more, lost = self._exchange([[message] for pile, _ in lost for message in pile], deadline)
            replies += more
        return [*replies, *(give_id(failure(why, WORKER_DIED, message)) for pile, why in lost for message in pile)]

    def _exchange(self, piles: Sequence[Pile], deadline: float | None) -> tuple[list[Message], list[tuple[Pile, str]]]:
        """The clients' replies; and the lost piles, each with the reason."""
        nodes = itertools.cycle(self.grid.get_node_ids())
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        until = None if left is None else time.time() + left - min(MARGIN_SECONDS, left / 10)
        questions = [
            Message(pack(pile, self.num_partitions, until), node, f"{MessageType.QUERY}.{ACTION}")
            for pile, node in zip(piles, nodes, strict=False)
        ]
        answers = list(self.grid.send_and_receive(questions, timeout=left)) if questions else []
        pile_of = {q.metadata.message_id: pile for q, pile in zip(questions, piles, strict=True)}
        replies: list[Message] = []
        lost: list[tuple[Pile, str]] = []
        for answer in answers:
            if answer.has_error():
                pile, why = pile_of[answer.metadata.reply_to_message_id], answer.error.reason or ""
                log(WARNING, "an actor was lost with %d clients: %s", len(pile), reason_of(RuntimeError(why)))
                lost.append((pile, why))
            else:
                replies += unpack(answer.content)[0]
        return replies, lost


class OutOfTimeError(BaseException):
    """A client is stopped. Not an ``Exception``: handlers of those would reply, and the next client would begin."""


@contextmanager
def ending(until: Any) -> Iterator[None]:
    """Raise OutOfTimeError inside when the clock shows ``until``, None for never.

    It uses a signal: without effect inside a library that never returns to Python, outside the main thread, and on
    Windows.
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


def answer_groups(app: ClientApp, forget: Callable[[], None] = lambda: None) -> None:
    """Let the ClientApp of a simulation reply to piles, too: it is called once for each message in them.

    ``forget`` is called after a client was stopped: the state of its process is unknown. In a deployment a pile is
    refused before it is opened: a pickle decides which code runs.
    """

    @app.query(ACTION)
    def answer_pile(message: Message, context: Context) -> Message:
        if not in_simulation():
            raise PermissionError("a client of its own answers for itself alone, and unpickles nothing")
        questions, num_partitions = unpack(message.content)
        answers: list[Message | None] = []
        try:
            with ending(message.content.config_records["of"].get("until")):
                for question in questions:
                    answers.append(call_client(app, question, num_partitions, context.run_config))
        except OutOfTimeError:
            log(WARNING, "stopped at the round's deadline: %d of %d clients have replied", len(answers), len(questions))
            forget()
        return Message(pack([a for a in answers if a is not None], num_partitions), reply_to=message)


def in_simulation() -> bool:
    """Whether this process is a Ray actor, whose messages come from the run's own server."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def divide(messages: Sequence[Message], work: Sequence[int], piles: int) -> list[list[Message]]:
    """The messages in at most ``piles`` piles, none empty; the next largest work goes to the least loaded pile.

    Messages of a pile keep their order.
    """
    loads, place = [0] * min(piles, len(messages)), [0] * len(messages)
    for i in sorted(range(len(messages)), key=lambda i: -work[i]):
        place[i] = loads.index(min(loads))
        loads[place[i]] += work[i] + 1
    return [[m for m, at in zip(messages, place, strict=True) if at == pile] for pile in range(len(loads))]


class _Pickler(pickle.Pickler):
    """Leaves large bytes out of the pickle, each object once; ``left`` has them in the order of their numbers."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.left: list[bytes] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: object) -> int | None:
        """The number of an object that is left out, None for a pickled one."""
        if type(obj) is not bytes or len(obj) < LARGE:
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self.left)
            self.left.append(obj)
        return self._numbers[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, left: Sequence[bytes]) -> None:
        super().__init__(io.BytesIO(data))
        self.left = left

    def persistent_load(self, number: int) -> bytes:
        return self.left[number]


def pack(messages: Pile, num_partitions: int, until: float | None = None) -> RecordDict:
    """Content of a Flower message that holds messages, and the time when replies are due (seconds since the epoch).

    Objects that messages share are in it once.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(list(messages))
    parts = [file.getvalue(), *pickler.left]
    arrays = {f"{i}": Array(dtype="uint8", shape=(len(d),), stype="raw", data=d) for i, d in enumerate(parts)}
    config = ConfigRecord({"num-partitions": num_partitions})
    if until is not None:
        config["until"] = until
    return RecordDict({"messages": ArrayRecord(arrays), "of": config})


def unpack(content: RecordDict) -> tuple[list[Message], int]:
    """The arguments of ``pack``. Only for content of this run's own processes: a pickle can run any code."""
    pickled, *left = [array.data for array in content.array_records["messages"].values()]
    messages: list[Message] = _Unpickler(pickled, left).load()
    return messages, int(content.config_records["of"]["num-partitions"])  # type: ignore[arg-type]
