"""What ends a worker or a run: lost late, signals; and no task that may draw noise is repeated."""

import ast
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from flwr.app import Message, MessageType, RecordDict

from simulations.engines.ray import RayGrid
from simulations.engines.signals import sigterm_raises
from simulations.engines.workers import LostError
from simulations.grids.piles import Task
from simulations.grids.virtual import FIRST_NODE, task_identity
from tests.places import REPOSITORY


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


def test_sigterm_raises_inside_only_and_leaves_what_nohup_ignores():
    def hang_up_and_end() -> None:
        with sigterm_raises():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as end:
            hang_up_and_end()
    finally:
        signal.signal(signal.SIGHUP, hangup)
    assert end.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


ONCE = {"max_restarts": 0, "max_task_retries": 0}
"""What an actor needs; its methods inherit it."""


def repeatable(source: str) -> list[int]:
    """Lines with ``ray.remote`` that are not followed by ``.options`` with ``ONCE``."""
    tree, safe = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "options":
            given = {key.arg: getattr(key.value, "value", None) for key in node.keywords}
            if ONCE.items() <= given.items():
                safe |= {id(inner) for inner in ast.walk(node)}
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n) == "ray.remote"]
    return [node.lineno for node in made if id(node) not in safe]


def test_no_task_of_the_package_is_repeated():
    files = [path for top in ("simulations", "strategies") for path in (REPOSITORY / top).rglob("*.py")]
    sources = {str(path): path.read_text() for path in files}
    assert {path: lines for path, text in sources.items() if (lines := repeatable(text))} == {}
    assert any("ray.remote(" in text for text in sources.values())


@pytest.mark.parametrize("planted", [
    "ray.remote(W).remote()", "ray.remote(W).options(max_restarts=0).remote()", "@ray.remote\ndef f(): pass",
    "ray.remote(W).options(max_restarts=0, max_task_retries=1).remote()", "@ray.remote(num_cpus=1)\ndef f(): pass",
])  # fmt: skip
def test_a_task_that_ray_may_repeat_is_found(planted):
    assert repeatable(planted) == [1]
