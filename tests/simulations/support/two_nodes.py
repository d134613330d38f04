"""A Ray cluster of two nodes on this machine, each with its own address, TMPDIR, HOME and working
directory.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NODE = "FEDLSG_TEST_NODE"
"""In the environment of a node's processes: its folder."""


@dataclass(frozen=True)
class TwoNodes:
    """``address`` of the first node, which the driver joins; the folders of both."""

    address: str
    first: Path
    second: Path

    def join(self) -> None:
        """Start the second node."""
        _start(self.second, f"--address={self.address}", "--node-ip-address=127.0.0.2")

    def kill(self, node: Path) -> int:
        """End every process of a node at once, as a machine that loses its power; returns how
        many.
        """
        pids = of_node(node)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)


def of_node(node: Path) -> list[int]:
    """The living processes of a node."""
    mark, found = f"{NODE}={node}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


@contextmanager
def two_nodes(folder: Path, *, late: bool = False) -> Iterator[TwoNodes]:
    """One processor a node. ``folder`` has a short name: Ray's sockets need it. Nothing of the
    nodes is left.

    ``late``: the second one is started by ``join``.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = TwoNodes(f"127.0.0.1:{port}", folder / "1", folder / "2")
    try:
        _start(
            nodes.first,
            "--head",
            f"--port={port}",
            "--include-dashboard=false",
            "--node-ip-address=127.0.0.1",
        )
        if not late:
            nodes.join()
        yield nodes
    finally:
        while nodes.kill(nodes.first) + nodes.kill(nodes.second):
            time.sleep(0.05)


def environment(node: Path, **more: str) -> dict[str, str]:
    """Of the processes of a node: nothing that points to files of another one."""
    places = {"TMPDIR": str(node / "tmp"), "HOME": str(node / "home"), NODE: str(node)}
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAY_", "FEDLSG_"))
    }
    return (
        plain
        | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
        | places
        | more
    )


def _start(node: Path, *options: str) -> None:
    for name in ("tmp", "home", "work"):
        (node / name).mkdir(parents=True)
    ray = Path(sys.executable).with_name("ray")
    command = [
        ray,
        "start",
        *options,
        "--num-cpus=1",
        "--object-store-memory=100000000",
        f"--temp-dir={node / 'tmp'}",
    ]
    subprocess.run(
        command,
        env=environment(node),
        cwd=node / "work",
        check=True,
        capture_output=True,
        timeout=120,
    )
