"""Many messages in one: a call of a Ray worker costs more than a small client's training.

A pile is pickled; large arrays stay outside of the pickle, each once however many messages share
it, such as the weights. Strategy and clients see the same messages as without piles, and bytes are
counted on those.
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
"""Bytes from which an array stays outside of the pickle; a smaller one is cheaper to copy."""

PILE_SECONDS = 1.0
"""How long a pile should take: many times its transport, and little to lose with a worker."""


UNKNOWN = 4
"""Piles a worker while it is unknown how long a client takes."""


@dataclass(frozen=True, eq=False)
class Task:
    """A message to a client, the state of the client's Flower Context, and how much work it is, in
    any unit.
    """

    message: Message
    state: RecordDict = field(default_factory=RecordDict)
    work: float = 1.0


Pile = Sequence[Task]

Answer = tuple[Message | None, RecordDict]
"""A client's reply, None if it returned none; and the state that it left."""


class Pace:
    """How much work a pile should have, from how long the piles so far took."""

    def __init__(self, *, one_by_one: bool = False) -> None:
        self.work = self.seconds = 0.0
        self.one_by_one = one_by_one

    def took(self, work: float, seconds: float) -> None:
        """A pile is done. Older ones count half as much with each new one."""
        self.work, self.seconds = self.work / 2 + work, self.seconds / 2 + seconds

    def piles(self, work: float, tasks: int, workers: int) -> int:
        """Piles for so much work: one a worker, or as many more as make each take PILE_SECONDS."""
        if self.one_by_one:
            return tasks
        wished = work / self.work * self.seconds / PILE_SECONDS if self.work else workers * UNKNOWN
        return min(tasks, max(workers, math.ceil(wished)))


def divide(tasks: Pile, workers: int, pace: Pace) -> list[list[Task]]:
    """The tasks in piles of nearly equal work, none empty: the next largest work goes to the least
    loaded pile.

    Tasks of a pile keep their order.
    """
    number = pace.piles(sum(task.work for task in tasks), len(tasks), workers)
    loads = [(0.0, pile) for pile in range(number)]
    place = [0] * len(tasks)
    for i in sorted(range(len(tasks)), key=lambda i: -tasks[i].work):
        load, place[i] = loads[0]
        heapq.heapreplace(loads, (load + tasks[i].work + 1, place[i]))
    piles: list[list[Task]] = [[] for _ in range(number)]
    for task, pile in zip(tasks, place, strict=True):
        piles[pile].append(task)
    return piles


class _Pickler(pickle.Pickler):
    """Leaves large bytes out of the pickle, each object once; ``left`` has them in the order of
    their numbers.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.left: list[bytes] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: object) -> int | None:
        """The number of an object that is left out, None for a pickled one."""
        if type(obj) is not bytes or len(obj) < MIN_ARRAY_BYTES:
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


def pack(pile: Sequence[Any]) -> tuple[bytes, list[bytes]]:
    """The pickle of tasks or answers, and the large arrays that it leaves out."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(list(pile))
    return file.getvalue(), pickler.left


def unpack(pickled: bytes, left: Sequence[bytes]) -> list[Any]:
    """What was packed. Only for data of this run's own processes: a pickle can run any code."""
    pile: list[Any] = _Unpickler(pickled, left).load()
    return pile
