"""Another user can do nothing with the Ray of a run; where it asks for no token he runs code as its
owner.

Needs root, to become another user.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.places import REPOSITORY
from tests.simulations.engines.test_cluster import marked, sockets
from tests.simulations.support import second_user

NOBODY = 65534
TRIES = (
    "read classes of workers",
    "replace classes of workers",
    "push a task to a worker",
    "submit a job",
    "read files",
    "connect to Unix sockets",
    "ask over HTTP",
    "kill workers",
)
OWNER = """
import sys
from contextlib import nullcontext
from fedlsg.simulations.engines import cluster
if sys.argv[1] == "open":
    cluster.locked = lambda folder: nullcontext()
with cluster.starting(ahead=0) as ray_of_run:
    ray_of_run.wait()
    import ray
    from fedlsg.simulations.engines.ray_worker import Worker
    start = ray.remote(Worker).options(num_cpus=0).remote
    first = start()
    ray.get(first.__ray_ready__.remote())
    print(ray.get_runtime_context().gcs_address, ray_of_run._folder, flush=True)
    sys.stdin.readline()
    try:
        ray.get(start().__ray_ready__.remote(), timeout=60)
        print("whole", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root, to become another user"
    ),
]


@contextmanager
def owner(door: str) -> Iterator[tuple[subprocess.Popen[str], str, Path, str]]:
    """The process that started a Ray, Ray's address and folder, and the mark of all its
    processes.
    """
    mark = f"FEDLSG_TEST_MARK={os.urandom(8).hex()}"
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short_tmp:
        Path(short_tmp).chmod(0o755)
        env = {
            **os.environ,
            "TMPDIR": short_tmp,
            "PYTHONPATH": str(REPOSITORY),
            **dict([mark.split("=")]),
        }
        env.pop("RAY_ADDRESS", None)
        command = [sys.executable, "-P", "-c", OWNER, door]
        with subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            address, folder = process.stdout.readline().split()
            yield process, address, Path(folder), mark


def attack(address: str, folder: Path, ports: list[str], command: str) -> dict[str, object]:
    script = [
        sys.executable,
        "-P",
        second_user.__file__,
        str(NOBODY),
        address,
        str(folder),
        command,
        *ports,
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(script, env=env, capture_output=True, text=True, timeout=300, check=True)
    result: dict[str, object] = json.loads(done.stdout)
    return result


def tried(door: str, folder: Path) -> tuple[dict[str, object], str, Path]:
    """What another user could do to a Ray, how its owner's next worker started, and what would be
    stolen.
    """
    secret, stolen = folder / "secret", folder / "stolen"
    secret.touch(mode=0o600)
    secret.write_text("only for its owner")
    with owner(door) as (process, address, private, mark):
        ports = sorted({name.rpartition(":")[2] for name in sockets(marked(mark))})
        found = attack(address, private, ports, f"cp {secret} {stolen}")
        after, _ = process.communicate("\n", timeout=120)
    return found, after.strip(), stolen


def test_another_user_can_do_nothing(tmp_path):
    found, after, stolen = tried("locked", tmp_path)
    assert found == dict.fromkeys(TRIES, False) | {"any other call": []}
    assert after == "whole"
    assert not stolen.exists()
