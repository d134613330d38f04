"""Real runs of a tiny Flower app: what they report, and what they leave behind (nothing).

Processes are counted by oracles of the test's own: a mark in the environment, searched in /proc, and descent, followed
while the run lasts (two of Ray's processes overwrite their environment).
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.engines.runtime import home, superlink
from simulations.engines.runtime.superlink import RunOutcome, run_app
from tests.places import REPOSITORY

PYPROJECT = """
[project]
name = "tiny"
version = "0.1.0"
dependencies = []
[tool.flwr.app]
publisher = "fedlsg"
[tool.flwr.app.components]
serverapp = "tiny_app.server:app"
clientapp = "tiny_app.client:app"
[tool.flwr.app.config]
end = "{end}"
out = "{out}"
"""
SERVER = """
import time
from pathlib import Path
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    while len(nodes := sorted(grid.get_node_ids())) < 2:
        time.sleep(0.05)
    asked = [Message(RecordDict({"x": ConfigRecord({"x": n + 1})}), dst_node_id=node, message_type="train")
             for n, node in enumerate(nodes)]
    doubled = sorted(reply.content["x"]["x"] for reply in grid.send_and_receive(asked, timeout=100))
    Path(context.run_config["out"]).write_text(repr(doubled))
    if context.run_config["end"] == "raise":
        raise ValueError("planted failure of the ServerApp")
    while context.run_config["end"] == "hang":
        time.sleep(0.1)
"""
CLIENT = """
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message: Message, context: Context) -> Message:
    print("a client was asked", flush=True)
    return Message(RecordDict({"x": ConfigRecord({"x": 2 * message.content["x"]["x"]})}), reply_to=message)
"""
RUN = """
import sys
from pathlib import Path
from simulations.engines.runtime.superlink import run_app
app_dir, log_file = map(Path, sys.argv[1:])
try:
    run_app(app_dir, num_supernodes=2, log_file=log_file, poll=lambda: None)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def write_app(app_dir: Path, end: str) -> Path:
    (app_dir / "tiny_app").mkdir(parents=True)
    (app_dir / "pyproject.toml").write_text(PYPROJECT.format(end=end, out=app_dir / "out.txt"))
    (app_dir / "tiny_app" / "__init__.py").touch()
    (app_dir / "tiny_app" / "server.py").write_text(SERVER)
    (app_dir / "tiny_app" / "client.py").write_text(CLIENT)
    return app_dir


@pytest.fixture(scope="module")
def short_tmp() -> Iterator[Path]:
    """An empty TMPDIR of our own, short enough for Ray's sockets; must be empty again at the end of a run."""
    with tempfile.TemporaryDirectory(prefix="t") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, short_tmp: Path) -> dict[str, tuple[RunOutcome, Path, int]]:
    """A run that completes and a run that fails, at the same time on the same machine."""
    root = tmp_path_factory.mktemp("runs")

    def one(end: str) -> tuple[RunOutcome, Path, int]:
        polls: list[float] = []
        app_dir = write_app(root / end, end)
        log_file = app_dir / "flower.log"
        outcome = run_app(app_dir, num_supernodes=2, log_file=log_file, poll=lambda: polls.append(time.monotonic()))
        return outcome, app_dir, len(polls)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(tempfile, "tempdir", str(short_tmp))
        return dict(zip(("complete", "raise"), pool.map(one, ("complete", "raise")), strict=True))


@pytest.mark.ray
def test_a_run_that_completes(outcomes, short_tmp):
    outcome, app_dir, polls = outcomes["complete"]
    assert outcome.completed
    assert (outcome.status, outcome.sub_status, outcome.details) == ("finished", "completed", "")
    assert (app_dir / "out.txt").read_text() == "[2, 4]"
    assert polls > 4
    assert "a client was asked" in (app_dir / "flower.log").read_text()
    assert (app_dir / "flower.log").stat().st_mode & 0o777 == 0o600  # clients' tracebacks go there
    assert list(short_tmp.iterdir()) == []


@pytest.mark.ray
def test_a_run_that_fails_says_so_and_why(outcomes):
    outcome, app_dir, _ = outcomes["raise"]
    assert (app_dir / "out.txt").read_text() == "[2, 4]"
    assert not outcome.completed
    assert (outcome.status, outcome.sub_status) == ("finished", "failed")
    assert "planted failure of the ServerApp" in outcome.details
    assert "Traceback" in outcome.log_tail
    assert "\x1b" not in outcome.log_tail


@pytest.mark.ray
def test_a_taken_port_is_tried_again_and_a_refused_app_is_named(tmp_path, monkeypatch, short_tmp):
    monkeypatch.setattr(tempfile, "tempdir", str(short_tmp))
    app_dir = write_app(tmp_path / "app", "complete")
    (app_dir / "pyproject.toml").write_text("[project]\nname = 'tiny'\nversion = '0.1.0'\n")
    free_port = superlink.free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(superlink, "free_port", lambda: next(ports, None) or free_port())
        with pytest.raises(RuntimeError, match=r"(?s)expected Flower to run .*Missing \[tool\.flwr\.app\]"):
            run_app(app_dir, num_supernodes=2, log_file=tmp_path / "flower.log", poll=lambda: None)
    log = (tmp_path / "flower.log").read_text()
    assert log.count("Starting Flower SuperLink") == 2
    assert "address already in use" in log
    assert list(short_tmp.iterdir()) == []


@pytest.mark.ray
@linux
@pytest.mark.parametrize(
    ("number", "when", "status"),
    [
        (signal.SIGINT, "clients answered", 130),
        (signal.SIGTERM, "SuperLink up", 143),
        (signal.SIGKILL, "SuperLink up", -9),
    ],
)
def test_a_signal_leaves_no_process_behind(number, when, status, tmp_path, short_tmp):
    app_dir = write_app(tmp_path / "app", "hang")
    log_file = tmp_path / "flower.log"
    mark = f"FEDLSG_TEST_MARK={uuid.uuid4().hex}"
    env = dict([mark.split("=")], **os.environ, TMPDIR=str(short_tmp))
    command = [sys.executable, "-c", RUN, str(app_dir), str(log_file)]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    family: set[tuple[int, int]] = set()
    try:
        signs: dict[str, Callable[[], bool]] = {
            "clients answered": lambda: (app_dir / "out.txt").exists(),
            "SuperLink up": lambda: log_file.exists() and "Uvicorn running" in log_file.read_text(),
        }
        wait_until(lambda: family.update(descendants(process.pid)) or signs[when](), seconds=120)
        assert len(marked(mark)) > 2
        os.killpg(process.pid, number)  # what the terminal does on Ctrl-C: the whole foreground group
        assert process.wait(timeout=20) == status
        if number == signal.SIGKILL:  # killed outright, the others notice
            wait_until(lambda: not marked(mark) | alive(family), seconds=20)
        assert marked(mark) | alive(family) == set()
        assert list(short_tmp.iterdir()) == []
    finally:
        for pid in marked(mark) | alive(family):
            os.kill(pid, signal.SIGKILL)
        printed, _ = process.communicate()
    assert printed == ("interrupted\n" if number == signal.SIGINT else "")


def wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def marked(mark: str) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in entry.read_bytes():
                found.add(int(entry.parent.name))
        except OSError:
            continue
    return found


def table() -> dict[tuple[int, int], int]:
    """Parent of every living process by (pid, start time)."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(entry.parent.name), int(fields[19])] = int(fields[1])
    return found


def descendants(pid: int) -> set[tuple[int, int]]:
    parents, found, line = table(), set(), {pid}
    while line:
        children = {process for process, parent in parents.items() if parent in line}
        found |= children
        line = {child for child, _ in children}
    return found


def alive(family: set[tuple[int, int]]) -> set[int]:
    return {pid for pid, _ in family & table().keys()}


def config(**settings: object) -> dict[str, str]:
    defaults = {"num_supernodes": 5, "cpus": 1, "gpus": 0, "total_cpus": None, "total_gpus": None}
    text = superlink._federation_config(**{**defaults, **settings})  # type: ignore[arg-type]
    return dict(pair.split("=") for pair in text.split(" "))


def test_federation_config_by_hand(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(superlink, "_cpu_count", lambda: 64)
    assert config() == {
        "num-supernodes": "5",
        "client-resources-num-cpus": "1",
        "client-resources-num-gpus": "0.0",
        "init-args-log-to-driver": "true",
        "init-args-num-cpus": "5",  # 64 would start 64 actors for five clients
    }
    assert config(gpus=0.25, total_gpus=1)["init-args-num-gpus"] == "1"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "init-args-num-cpus" not in config(total_cpus=4, total_gpus=1)
    assert "init-args-num-gpus" not in config(total_cpus=4, total_gpus=1)


@given(st.integers(1, 200), st.floats(0.1, 128, allow_nan=False), st.integers(1, 256))
def test_there_is_always_room_for_one_client_and_never_for_more_than_ask(num_supernodes, cpus, cores):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setattr(superlink, "_cpu_count", lambda: cores)
        total = int(config(num_supernodes=num_supernodes, cpus=cpus)["init-args-num-cpus"])
    assert total >= cpus
    assert total < num_supernodes * cpus + 1
    assert total <= max(cores, cpus + 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_supernodes": 0}, "num_supernodes=0 >= 1"),
        ({"cpus": 0}, "cpus_per_client=0 > 0"),
        ({"gpus": -1}, "gpus_per_client=-1 >= 0"),
        ({"cpus": 2, "total_cpus": 1}, "total_cpus=1 >= cpus_per_client=2"),
        ({"gpus": 1, "total_gpus": 0}, "total_gpus=0 >= gpus_per_client=1"),
    ],
)
def test_resources_that_ray_would_wait_for_are_refused(settings, message, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_a_private_ray_stays_away_from_other_clusters_and_networks(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    env = home.environment(tmp_path)
    assert (env["FLWR_HOME"], env["RAY_TMPDIR"]) == (str(tmp_path), str(tmp_path))
    assert env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    joined = home.environment(tmp_path)
    assert "RAY_TMPDIR" not in joined
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in joined
