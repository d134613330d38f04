"""Ray of one run: what it leaves behind (nothing), where it listens, whose cluster it joins.

Processes are counted by oracles of the test's own: a mark in the environment, searched in /proc,
and descent.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.places import REPOSITORY
from tests.simulations.support.second_user import answered

READY = """
import sys, time
from fedlsg.simulations.engines.cluster import starting
with starting() as ray_of_run:
    print("starting", flush=True)
    if sys.argv[1] == "ready":
        import ray
        for worker in ray_of_run.workers(2, cpus=1, gpus=0):
            ray.get(worker.__ray_ready__.remote())
            ray_of_run.kill(worker)
        print(ray.get_runtime_context().gcs_address, flush=True)
    time.sleep(600)
"""


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
ALWAYS = (4,)
"""SIGTERM in the middle; the other cases are slow."""


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """Ray's sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def started(when: str, folder: Path) -> tuple[subprocess.Popen[str], str, str]:
    """A process that starts Ray, its mark, and the last line that it printed; it has come as far as
    ``when``.
    """
    mark = f"FEDLSG_TEST_MARK={uuid.uuid4().hex}"
    env = {
        **os.environ,
        "TMPDIR": str(folder),
        "PYTHONPATH": str(REPOSITORY),
        **dict([mark.split("=")]),
    }
    env.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", READY, when],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if when == "ready":
        line = process.stdout.readline()
    elif when == "in the middle":
        wait_until(lambda: any("raylet" in command_of(pid) for pid in marked(mark)), seconds=60)
    assert line, "it ended early"
    return process, mark, line.strip()


def wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, condition.__doc__
        time.sleep(0.05)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def marked(mark: str) -> set[int]:
    """Living processes with the mark in their environment, and their descendants: two of Ray's
    overwrite theirs.
    """
    parents, found = dict[int, int](), set[int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        pid = int(stat.parent.name)
        try:
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[pid] = int(parent)
                if mark.encode() in (stat.parent / "environ").read_bytes().split(b"\0"):
                    found.add(pid)
        except OSError:
            continue
    grown = -1
    while grown != len(found):
        grown = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def inodes(pids: set[int]) -> dict[str, int]:
    """The sockets of these processes, each with one of its processes."""
    found = {}
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                found[os.readlink(fd).removeprefix("socket:[").removesuffix("]")] = pid
            except OSError:
                continue
    return found


def sockets(pids: set[int]) -> dict[str, int]:
    """ADDRESS:PORT, the address as /proc/net/tcp writes it, where these processes listen, each with
    its process.
    """
    owners, found = inodes(pids), {}
    for name in ("tcp", "tcp6"):
        for row in map(str.split, Path(f"/proc/net/{name}").read_text().splitlines()[1:]):
            if row[3] == "0A" and row[9] in owners:
                address, port = row[1].split(":")
                found[f"{address}:{int(port, 16)}"] = owners[row[9]]
    return found


def listening(pids: set[int]) -> set[str]:
    """Addresses, as /proc/net/tcp writes them, on which these processes listen."""
    return {name.split(":")[0] for name in sockets(pids)}


def left_in(folder: Path) -> list[str]:
    """torch makes an empty cache folder for each user wherever an optimizer is made."""
    return [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor_")]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    ("when", "number"),
    [
        pytest.param(when, number, marks=() if case in ALWAYS else pytest.mark.slow)
        for case, (when, number) in enumerate(
            product(("starting", "in the middle", "ready"), SIGNALS)
        )
    ],
)
def test_a_signal_leaves_no_process_and_no_folder_behind(number, when, short_tmp):
    process, mark, address = started(when, short_tmp)
    family = marked(mark)
    assert process.pid in family
    assert len(family) > (6 if when == "ready" else 0)
    if when == "ready":
        (private,) = short_tmp.glob("fedlsg-*")
        assert private.stat().st_mode & 0o777 == 0o700, (
            "Ray opens its own folder, inside, to everybody"
        )
        assert (
            answered(address.rpartition(":")[2], ["/ray.rpc.InternalKVGcsService/InternalKVKeys"])
            == []
        ), "no token"
        assert listening(family) <= {
            "0100007F",
            "0000000000000000FFFF00000100007F",
            "00000000000000000000000001000000",
        }
    process.send_signal(number)
    status = process.wait(timeout=60)
    assert (
        status == {signal.SIGINT: 1, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
        or status == -signal.SIGINT
    )
    with process:  # closes its pipe
        pass
    wait_until(lambda: not marked(mark), seconds=30 if number == signal.SIGKILL else 10)
    wait_until(lambda: left_in(short_tmp) == [], seconds=30 if number == signal.SIGKILL else 10)
