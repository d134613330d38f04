"""A worker that is lost when the time of a round is over: its clients are silent, and none is lost by another."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from flwr.app import Message, MessageType, RecordDict

from simulations.engines.ray import RayGrid
from simulations.engines.workers import LostError
from simulations.grids.piles import Task
from simulations.grids.virtual import FIRST_NODE, task_identity


class Dying:
    """Workers of which each dies after some time, with all of its pile."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1

    def answer(self, tasks: Any, deadline: float, pace: Any, sending: Any) -> Iterator[Any]:
        time.sleep(self.seconds)
        yield from ((pile, LostError("killed")) for pile in ([tasks] if tasks else []))


class Free:
    """Accounts that charge nobody."""

    def ask(self, messages: Sequence[Message]) -> tuple[list[Task], list[Message]]:
        return [Task(message) for message in messages], []

    def leaves(self, pile: Any) -> None: ...

    def keep(self, pile: Any) -> None: ...

    def end(self) -> None: ...


@pytest.mark.parametrize(("seconds", "errors"), [(0.0, 2), (1.2, 0)])
def test_who_was_lost_once_with_others_is_silent(seconds, errors):
    grid = RayGrid(Dying(seconds), Free(), 2)  # type: ignore[arg-type]
    with task_identity():
        asked = [Message(RecordDict(), FIRST_NODE + client, MessageType.TRAIN) for client in (0, 1)]
        replies = list(grid.send_and_receive(asked, timeout=1.0))
    assert len(replies) == errors
