"""Many clients in one message: on Ray, a message costs more than a small client's training.

    server   GroupedGrid     the messages of a round, shared out into one pile for each Ray actor
    actor    answer_groups   the clients of a pile, one after the other, on the one model of the actor

The strategy and the clients do not know: they see the messages that they would see without it, and bytes are counted on
those. A pile is pickled; what is large in it goes beside the pickle, uncopied, and once where messages share it, as
they do the weights.

One client that hangs must not cost the round the answers of those before it: shortly before the round's deadline the
actor cuts it off and sends what it has. Those behind it in the pile have lost the round, as behind it in a queue.
"""

import io
import itertools
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from logging import WARNING

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid

from simulations.grids.deadline import OutOfTimeError, ending
from simulations.grids.virtual import FIRST_NODE, VirtualGrid, called, failed, named
from strategies.federation.report import reason_of
from strategies.federation.wire import WORKER_DIED

ACTION = "grouped"
LARGE = 4096
"""Bytes from which on an array goes beside the pickle: below it, a copy costs less than a record of its own."""
MARGIN_SECONDS = 10.0
"""Before the deadline, for the way back; a tenth of the time that there is, where that is less."""

Pile = Sequence[Message]


class GroupedGrid(VirtualGrid):
    """The clients of a Flower simulation behind the nodes of ``grid``, each of which can serve any partition.

    ``sizes``: examples of each partition, by which work is shared out; ``actors``: how many run at once, asked with the
    first message. A pile that is lost with its actor is sent again, client by client: one that kills its actor costs
    the round no other client.
    """

    def __init__(self, grid: Grid, sizes: Sequence[int], *, actors: Callable[[], int]) -> None:
        super().__init__(len(sizes))
        self.grid, self.sizes = grid, sizes
        self._count, self._actors = actors, 0

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterable[Message]:
        """The replies, an error for each client whose actor was lost twice, nothing for silence until the timeout."""
        self._actors = self._actors or self._count()
        deadline = None if timeout is None else time.monotonic() + timeout
        work = [self.sizes[message.metadata.dst_node_id - FIRST_NODE] for message in messages]
        replies, lost = self._exchange(shared_out(messages, work, self._actors), deadline)
        if deadline is None or time.monotonic() < deadline:  # else they would train, and be charged, for nobody
            more, lost = self._exchange([[message] for pile, _ in lost for message in pile], deadline)
            replies += more
        return [*replies, *(named(failed(message, why, WORKER_DIED)) for pile, why in lost for message in pile)]

    def _exchange(self, piles: Sequence[Pile], deadline: float | None) -> tuple[list[Message], list[tuple[Pile, str]]]:
        """The replies of the clients; the piles that were lost, and why."""
        nodes = itertools.cycle(self.grid.get_node_ids())
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        until = None if left is None else time.time() + left - min(MARGIN_SECONDS, left / 10)
        questions = [
            Message(packed(pile, self.num_partitions, until), node, f"{MessageType.QUERY}.{ACTION}")
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
                replies += unpacked(answer.content)[0]
        return replies, lost


def answer_groups(app: ClientApp, forget: Callable[[], None] = lambda: None) -> None:
    """Make a ClientApp answer piles, too, in a simulation: it is called once for each message in them.

    ``forget`` is called where a client was cut off: what it was working on is in no known state. In a deployment a pile
    is refused before it is opened: whoever sends a pickle says what is run.
    """

    @app.query(ACTION)
    def grouped(message: Message, context: Context) -> Message:
        if not in_simulation():
            raise PermissionError("a client of its own answers for itself alone, and unpickles nothing")
        questions, num_partitions = unpacked(message.content)
        answers: list[Message | None] = []
        try:
            with ending(message.content.config_records["of"].get("until")):
                for question in questions:
                    answers.append(called(app, question, num_partitions, context.run_config))
        except OutOfTimeError:
            log(
                WARNING, "cut off at the round's deadline: %d of %d clients have answered", len(answers), len(questions)
            )
            forget()
        return Message(packed([a for a in answers if a is not None], num_partitions), reply_to=message)


def in_simulation() -> bool:
    """Whether this process is an actor of Ray's, which got its message from the run's own server."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def shared_out(messages: Sequence[Message], work: Sequence[int], piles: int) -> list[list[Message]]:
    """The messages in at most ``piles`` piles, none empty, each next largest work given to the least loaded pile.

    Within a pile they keep their order.
    """
    loads, place = [0] * min(piles, len(messages)), [0] * len(messages)
    for i in sorted(range(len(messages)), key=lambda i: -work[i]):
        place[i] = loads.index(min(loads))
        loads[place[i]] += work[i] + 1
    return [[m for m, at in zip(messages, place, strict=True) if at == pile] for pile in range(len(loads))]


class _Pickler(pickle.Pickler):
    """Leaves large bytes out, each object once; ``left`` has them in the order of their numbers."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.left: list[bytes] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: object) -> int | None:
        """The number of what is left out, None for what is pickled."""
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


def packed(messages: Pile, num_partitions: int, until: float | None = None) -> RecordDict:
    """Content of a Flower message that holds messages, and when answers are due (seconds since the epoch).

    Differs from the wire: what the messages share is in it once.
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


def unpacked(content: RecordDict) -> tuple[list[Message], int]:
    """What ``packed`` took. Only for content of this run's own processes: unpickling runs what it is told to."""
    pickled, *left = [array.data for array in content.array_records["messages"].values()]
    messages: list[Message] = _Unpickler(pickled, left).load()
    return messages, int(content.config_records["of"]["num-partitions"])  # type: ignore[arg-type]
