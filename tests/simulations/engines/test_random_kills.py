"""Twenty kills (-9) of driver, worker, raylet or node at random moments; each run is continued
until it is whole.

Then no process is left that the run started, a foreign cluster stands, weights are those of an
unbroken run, and no client trained without a charge.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from tests.places import REPOSITORY
from tests.simulations.engines.test_cluster import command_of, left_in, marked, wait_until
from tests.simulations.support.runs import SMALL, Run, run_local
from tests.simulations.support.two_nodes import NODE, TwoNodes, environment, of_node, two_nodes

pytestmark = [pytest.mark.ray, pytest.mark.slow]
CLIENT = "tests.simulations.support.ray_clients:noting"
CLIENTS, ROUNDS = 5, 12
SETTINGS = {
    **SMALL,
    "clients": CLIENTS,
    "rounds": ROUNDS,
    "evaluate_every": ROUNDS,
    "round_timeout": 60.0,
}

DRIVE = """
import json, sys
from pathlib import Path
from fedlsg.simulations.engines import ahead, ray
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.planning.plan import make_plan
from tests.simulations.support.runs import ignore, plan_at
with ahead("ray"):
    path = Path(sys.argv[1])
    if path.exists():
        directory = RunDir.open(str(path))
        plan = make_plan(directory.read_config())
    else:
        plan, directory = plan_at(path, **json.loads(sys.argv[3]))
    ray.run(plan, directory, on_round=ignore, client=sys.argv[2], page=False)
"""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(tmp_path_factory.mktemp("local") / "run", **{**SETTINGS, "engine": "local"})


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


def start(
    out: Path, env: dict[str, str], settings: dict[str, object]
) -> tuple[subprocess.Popen[bytes], str]:
    """A driver, and the mark of everything that it starts."""
    mark = f"FEDLSG_TEST_MARK={uuid.uuid4().hex}"
    env = {**env, "PYTHONPATH": str(REPOSITORY), **dict([mark.split("=")])}
    command = [
        sys.executable,
        "-P",
        "-c",
        DRIVE,
        str(out),
        CLIENT,
        json.dumps({**settings, "engine": "ray"}),
    ]
    with (out.parent / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=env, cwd=out.parent, stdout=log, stderr=log, start_new_session=True
        )
    return process, mark


def is_gone(mark: str) -> bool:
    """No process is left that a driver started."""
    return not marked(mark)


def targets(what: str, driver: int, mark: str, nodes: TwoNodes | None) -> list[int]:
    """Processes that a kill of ``what`` ends at once."""
    if what == "driver":
        return [driver]
    family = marked(mark) if nodes is None else set(of_node(nodes.second))
    if what == "node":
        return sorted(family)
    word = {"worker": "ray::Worker", "raylet": "raylet/raylet"}[what]
    return [pid for pid in sorted(family) if word in command_of(pid)][:1]


def kill_at_a_random_moment(
    out: Path,
    what: str,
    driver: subprocess.Popen[bytes],
    mark: str,
    nodes: TwoNodes | None,
    draws: random.Random,
) -> int:
    """After the first row of the table; returns how many processes were ended."""
    rows = out / "rounds.csv"
    deadline = time.monotonic() + 120
    after = draws.randrange(2, ROUNDS)
    while driver.poll() is None and time.monotonic() < deadline:
        if rows.exists() and rows.read_bytes().count(b"\n") >= after:
            break
        time.sleep(0.01)
    time.sleep(draws.uniform(0, 0.3))
    found = targets(what, driver.pid, mark, nodes)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(found)


@pytest.mark.parametrize("seed", range(20))
def test_a_kill_loses_no_round_and_no_charge(seed, unbroken, tmp_path, short_tmp):
    draws = random.Random(seed)
    foreign = seed % 2 == 1
    kinds = ("driver", "worker", "raylet", "node") if foreign else ("driver", "worker", "raylet")
    what = kinds[seed // 2 % len(kinds)]
    settings = SETTINGS | {"reproducible": seed % 4 < 2}
    out = tmp_path / "run"
    (short_tmp / "d" / "tmp").mkdir(parents=True)
    with two_nodes(short_tmp) if foreign else nullcontext() as nodes:
        home = short_tmp / "d" if nodes is None else nodes.first
        env = environment(home)
        if nodes is not None:
            env["RAY_ADDRESS"] = nodes.address
        env.pop(NODE)
        driver, mark = start(out, env, settings)
        ended = kill_at_a_random_moment(out, what, driver, mark, nodes, draws)
        driver.wait(timeout=200)
        tries = 0
        while not (out / "summary.json").exists():
            tries += 1
            assert tries <= 3, (tmp_path / "driver.log").read_text()[-3000:]
            wait_until(partial(is_gone, mark), seconds=30)
            driver, mark = start(out, env, settings)
            driver.wait(timeout=200)
        wait_until(partial(is_gone, mark), seconds=30)
        if nodes is None:
            wait_until(lambda: left_in(short_tmp / "d" / "tmp") == [], seconds=30)
        else:
            assert of_node(nodes.first), "the foreign cluster stays"
    run = Run(out)
    report(seed, what, foreign, ended, tries, run)
    assert [row.answered.split() for row in run.rows] == [
        [str(client) for client in range(CLIENTS)]
    ] * ROUNDS
    trained = Counter((tmp_path / "trained").read_text().split("\n")[:-1])
    for client in range(CLIENTS):
        charged = Counter(entry.round for entry in run.entries(client))
        assert charged.keys() == set(range(1, ROUNDS + 1))
        if settings["reproducible"]:
            assert set(charged.values()) == {1}, "the same bits again are the same release"
        else:
            assert all(charged[round] >= trained[f"{client} {round}"] for round in charged)
    if settings["reproducible"]:
        assert run.weights.equal(unbroken.weights)


def report(seed: int, what: str, foreign: bool, ended: int, tries: int, run: Run) -> None:
    """A line for each kill, to be read with ``pytest -s``."""
    entries = sum(len(run.entries(client)) for client in range(CLIENTS))
    where = "cluster of two nodes" if foreign else "own Ray"
    print(
        f"seed {seed}: {what} of {where}, {ended} ended, {tries} resumes, {entries} charges for "
        f"{CLIENTS * ROUNDS}"
    )
