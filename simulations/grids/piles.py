"""Many messages in one: a call of a Ray worker costs more than a small client's training.

A pile is pickled; large arrays stay outside of the pickle, each once however many messages share it, such as the
weights. Strategy and clients see the same messages as without piles, and bytes are counted on those.
"""

import io
import pickle
from collections.abc import Sequence

from flwr.app import Message

LARGE = 4096
"""Bytes from which an array stays outside of the pickle; a smaller one is cheaper to copy."""

Pile = Sequence[Message]


def divide(messages: Pile, work: Sequence[int], piles: int) -> list[list[Message]]:
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


def pack(messages: Pile) -> tuple[bytes, list[bytes]]:
    """The pickle of the messages, and the large arrays that it leaves out."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(list(messages))
    return file.getvalue(), pickler.left


def unpack(pickled: bytes, left: Sequence[bytes]) -> list[Message]:
    """The messages of ``pack``. Only for data of this run's own processes: a pickle can run any code."""
    messages: list[Message] = _Unpickler(pickled, left).load()
    return messages
