"""Piles: many messages in one call of a Ray worker.

A call costs more than a small client's training. A pile is pickled. Large arrays, such as the
weights, stay outside of the pickle, each once even if many messages share it. Strategy and clients
see the same messages as without piles, and bytes are counted on these messages.
"""

import heapq
import io
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict

MIN_ARRAY_BYTES = 4096
"""Size from which an array stays outside of the pickle; a smaller one is cheaper to copy."""

PILE_SECONDS = 1.0
"""Time that a pile should take: many times its transport, and little to lose with a worker."""

FIRST_PILES = 4
"""Piles for each worker, before it is known how long a client takes."""


@dataclass(frozen=True, eq=False)
class Task:
    """One message for one client.

    message: to the client.
    state: of the client's Flower Context.
    work: amount of work, in any unit.
    """

    message: Message
    state: RecordDict = field(default_factory=RecordDict)
    work: float = 1.0


Pile = Sequence[Task]

Answer = tuple[Message | None, RecordDict]
"""A client's reply, None if it returned none; and the state that it left."""


class Pace:
    """The speed of the piles so far, from which the number of the next piles follows.

    work, seconds: of earlier piles; each pile counts half as much as the one after it.
    one_by_one: whether every task is a pile.
    """

    def __init__(self, *, one_by_one: bool = False) -> None:
        self.work = 0.0
        self.seconds = 0.0
        self.one_by_one = one_by_one

    def add(self, work: float, seconds: float) -> None:
        """Count a pile that is done."""
        self.work = self.work / 2 + work
        self.seconds = self.seconds / 2 + seconds

    def count_piles(self, work: float, tasks: int, workers: int) -> int:
        """Piles for so much work: one for each worker, or more so that each takes PILE_SECONDS."""
        if self.one_by_one:
            return tasks
        if self.work:
            number = math.ceil(work / self.work * self.seconds / PILE_SECONDS)
        else:
            number = workers * FIRST_PILES
        return min(tasks, max(workers, number))


def divide(tasks: Pile, workers: int, pace: Pace) -> list[list[Task]]:
    """Divide tasks into piles of nearly equal work, none of them empty.

    The task with the most work is next, and goes to the pile with the least work. Tasks of a pile
    keep their order.
    """
    number = pace.count_piles(sum(task.work for task in tasks), len(tasks), workers)
    loads = [(0.0, pile) for pile in range(number)]  # a heap: the least load is first
    pile_of = [0] * len(tasks)
    for i in sorted(range(len(tasks)), key=lambda i: -tasks[i].work):
        load, pile_of[i] = loads[0]
        # + 1: tasks without work are divided evenly, too, so that no pile is empty
        heapq.heapreplace(loads, (load + tasks[i].work + 1, pile_of[i]))
    piles: list[list[Task]] = [[] for _ in range(number)]
    for task, pile in zip(tasks, pile_of, strict=True):
        piles[pile].append(task)
    return piles


class _Pickler(pickle.Pickler):
    """Leaves large bytes out of the pickle, each object once.

    outside: these bytes; their places in the list are their numbers in the pickle.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.outside: list[bytes] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: object) -> int | None:
        """The number of an object that is left out; None for a pickled one."""
        if type(obj) is not bytes or len(obj) < MIN_ARRAY_BYTES:
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self.outside)
            self.outside.append(obj)
        return self._numbers[id(obj)]


class _Unpickler(pickle.Unpickler):
    """Reads what ``_Pickler`` wrote, with the bytes ``outside`` of the pickle."""

    def __init__(self, data: bytes, outside: Sequence[bytes]) -> None:
        super().__init__(io.BytesIO(data))
        self.outside = outside

    def persistent_load(self, number: int) -> bytes:
        return self.outside[number]


def pack(pile: Sequence[Any]) -> tuple[bytes, list[bytes]]:
    """The pickle of tasks or answers, and the large arrays that it leaves out."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(list(pile))
    return file.getvalue(), pickler.outside


def unpack(pickled: bytes, outside: Sequence[bytes]) -> list[Any]:
    """The packed objects. Only for data of this run's own processes: a pickle can run any code."""
    pile: list[Any] = _Unpickler(pickled, outside).load()
    return pile
