"""What ends a run or a worker, and what is said then: lost Rays, late losses, signals; no task is
repeated.
"""

import ast
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MessageType, RecordDict

from fedlsg.simulations.client.piles import Task
from fedlsg.simulations.client.virtual import FIRST_NODE, task_identity
from fedlsg.simulations.engines.ray import RayGrid
from fedlsg.simulations.engines.signals import sigterm_raises
from fedlsg.simulations.engines.workers import LostError
from tests.places import REPOSITORY
from tests.simulations.engines.test_cluster import command_of, marked, short_tmp, wait_until
from tests.simulations.support.two_nodes import of_node, two_nodes

__all__ = ["short_tmp"]

SPEAK = """
import os, signal, sys
from rich.console import Console
from fedlsg.simulations.engines.watchers import last_word
with last_word("the last word", Console(quiet=sys.argv[1] == "quiet")):
    if sys.argv[1] != "alive":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("how", "said"), [("killed", "the last word\n"), ("alive", ""), ("quiet", "")]
)
def test_a_killed_process_has_a_last_word(how, said):
    done = subprocess.run(
        [sys.executable, "-P", "-c", SPEAK, how],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == (0 if how == "alive" else -signal.SIGKILL)
    assert done.stdout == said


GCS, RAYLET, WORKER = "gcs/gcs_server", "raylet/raylet", "ray::Worker"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("whose", "what"),
    [
        ("own", GCS),
        ("own", RAYLET),
        ("others", GCS),
        ("others", RAYLET),
        ("others", WORKER),
    ],
)
def test_a_lost_ray_ends_the_run_with_the_command_that_continues(whose, what, tmp_path, short_tmp):
    """Within 60 s, which Ray itself would need for a lost control service; a lost raylet may leave
    a driver waiting.

    A lost worker ends nothing.
    """
    mark, out = f"FEDLSG_TEST_MARK={uuid.uuid4().hex}", tmp_path / "run"
    env = {
        **os.environ,
        "TMPDIR": str(short_tmp),
        "PYTHONPATH": str(REPOSITORY),
        **dict([mark.split("=")]),
    }
    env.pop("RAY_ADDRESS", None)
    options = ["--rounds", "20000", "-c", "clients=2", "--epsilon", "1000", "--out", str(out)]
    command = [sys.executable, "-P", "-m", "fedlsg", "run", *options]
    log = tmp_path / "printed"
    with ExitStack() as stack:
        if whose == "others":
            nodes = stack.enter_context(two_nodes(short_tmp, late=True))
            command += ["--ray-address", nodes.address]
        file = stack.enter_context(log.open("wb"))
        process = stack.enter_context(
            subprocess.Popen(command, env=env, cwd=tmp_path, stdout=file, stderr=file)
        )
        wait_until(lambda: rounds_in(out) > 3, seconds=300)
        pids = marked(mark) if whose == "own" else of_node(nodes.first)
        pid = next(pid for pid in pids if what in command_of(pid).split("\0")[0])
        os.kill(pid, signal.SIGKILL)
        if what == WORKER:
            before = rounds_in(out)
            wait_until(lambda: rounds_in(out) > before + 2, seconds=120)
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=58) not in (0, None)
    wait_until(lambda: not marked(mark), seconds=30)
    printed = log.read_text()
    assert f"continue with: fedlsg resume {out}" in printed
    assert "Traceback" not in printed


def rounds_in(run: Path) -> int:
    return (
        len((run / "rounds.csv").read_text().splitlines()) - 1
        if (run / "rounds.csv").exists()
        else 0
    )


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

    # that of the Ray of other tests, if one is there
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as end:
            hang_up_and_end()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, hangup)
        signal.signal(signal.SIGTERM, before)
    assert end.value.code == 143


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
    made = [
        n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n) == "ray.remote"
    ]
    return [node.lineno for node in made if id(node) not in safe]


@pytest.mark.slow
def test_no_task_of_the_package_is_repeated():
    files = [
        path for top in ("simulations", "strategies") for path in (REPOSITORY / top).rglob("*.py")
    ]
    sources = {str(path): path.read_text() for path in files}
    assert {path: lines for path, text in sources.items() if (lines := repeatable(text))} == {}
    assert any("ray.remote(" in text for text in sources.values())


@pytest.mark.parametrize(
    "planted",
    [
        "ray.remote(W).remote()",
        "ray.remote(W).options(max_restarts=0).remote()",
        "@ray.remote\ndef f(): pass",
        "ray.remote(W).options(max_restarts=0, max_task_retries=1).remote()",
        "@ray.remote(num_cpus=1)\ndef f(): pass",
    ],
)
def test_a_task_that_ray_may_repeat_is_found(planted):
    assert repeatable(planted) == [1]
