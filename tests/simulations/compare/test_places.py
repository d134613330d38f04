"""Cells that share one Ray: how many run at a time, with how many workers, with which results, and
what is left.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest

from fedlsg.simulations.compare.grid.runner import share_out
from fedlsg.simulations.engines.cluster import Cluster
from fedlsg.simulations.storage.run_directory import RunDir
from tests.places import REPOSITORY
from tests.simulations.engines.test_cluster import (
    command_of,
    left_in,
    listening,
    marked,
    wait_until,
)
from tests.simulations.support.compare_cases import grid
from tests.simulations.support.runs import SMALL, Run, resume_local, run_local
from tests.simulations.support.two_nodes import NODE, environment, of_node, two_nodes

ROUNDS = 600
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


class FakeRay:
    """Ray that has started."""

    def address(self) -> str:
        return "127.0.0.1:6379"


@pytest.mark.parametrize(
    ("settings", "jobs", "workers", "at_a_time"),
    [
        ({}, None, 2, 4),
        ({}, 2, 4, 2),
        ({}, 3, 2, 3),
        ({}, 99, 1, 6),
        ({"workers": 3}, None, 3, 2),
        ({"client_cpus": 4}, None, 1, 2),
        ({"device": "cuda", "client_gpus": 0.5}, 1, 4, 1),
        ({"device": "cuda", "client_gpus": 1.0}, None, 1, 2),
        ({"client_cpus": 64}, None, 1, 1),
    ],
)
def test_places_are_shared_out(settings, jobs, workers, at_a_time, monkeypatch):
    """Six cells, eight processors and two GPUs in the cluster, four processors in this machine."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("fedlsg.simulations.compare.grid.runner.processors", lambda: 4)
    monkeypatch.setattr(
        "fedlsg.simulations.compare.grid.runner.fitting",
        lambda cpus, gpus: int(min(8 / cpus, 2 / gpus if gpus else 99)),
    )
    cells = grid(seeds=3, settings={"engine": "ray", "device": "cpu"} | settings).cells()
    with share_out(cells, jobs, cast("Cluster", FakeRay())) as (shared, number):
        assert os.environ["RAY_ADDRESS"] == "127.0.0.1:6379"
        assert number == at_a_time
        assert {cell.given["workers"] for cell in shared} == {workers}
    assert "RAY_ADDRESS" not in os.environ


@pytest.mark.slow
@pytest.mark.ray
def test_two_cells_at_a_time_have_the_bits_of_the_local_engine(warm, fedlsg, small, tmp_path):
    """This process uses Ray already, so they join that one; its idle workers make place for
    theirs.
    """
    for worker in warm.workers(1, cpus=1, gpus=0):
        warm.kill(worker)
    options = [
        word
        for name, value in {**SMALL, "engine": "ray"}.items()
        for word in ("-c", f"{name}={value}")
    ]
    status, out, err = fedlsg(
        "compare", "digits", "--methods", "lsg", "--seeds", "2", *options, "--out", "grid"
    )
    assert (status, err) == (0, ""), out
    other = run_local(tmp_path / "local", seed=1, record_updates=True)
    for seed, alone in enumerate((small, other)):
        cell = Run(tmp_path / "grid" / "cells" / f"lsg-seed{seed}")
        assert cell.weights.equal(alone.weights)
        assert cell.ledgers == alone.ledgers
        assert cell.config["engine"] == "ray"


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """Ray's sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


def count(mark: str, word: str) -> int:
    """Processes with the mark that have the word in their command."""
    return sum(word in command_of(pid) for pid in marked(mark))


@pytest.mark.ray
@pytest.mark.parametrize(
    ("number", "foreign"),
    [
        pytest.param(signal.SIGINT, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, True, marks=pytest.mark.slow),
    ],
)
def test_a_killed_cell_and_an_interrupted_grid_leave_nothing_and_can_be_resumed(
    number, foreign, short_tmp, tmp_path
):
    settings = {**SMALL, "engine": "ray", "workers": 1, "rounds": ROUNDS, "evaluate_every": ROUNDS}
    options = ["--methods", "sgd", "--seeds", "2", "--jobs", "2", "--out", str(tmp_path / "grid")]
    options += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    cells = [RunDir(tmp_path / "grid" / "cells" / f"sgd-seed{seed}") for seed in (0, 1)]
    mark = f"FEDLSG_TEST_MARK={uuid.uuid4().hex}"
    (short_tmp / "d" / "tmp").mkdir(parents=True)
    with two_nodes(short_tmp) if foreign else nullcontext() as nodes:
        env = environment(
            short_tmp / "d" if nodes is None else nodes.first, PYTHONPATH=str(REPOSITORY)
        )
        env |= dict([mark.split("=")]) | ({} if nodes is None else {"RAY_ADDRESS": nodes.address})
        env.pop(NODE)
        command = [sys.executable, "-P", "-m", "fedlsg", "compare", "digits", *options]
        with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL) as parent:
            wait_until(
                lambda: all(c.rounds.exists() and len(c.read_rounds()) > 2 for c in cells),
                seconds=120,
            )
            if nodes is None:
                assert [count(mark, "raylet/raylet"), count(mark, "gcs_server")] == [1, 1], (
                    "one Ray for both cells"
                )
                assert count(mark, "ray::Worker") == 2, "no more than the cells have"
                assert listening(marked(mark)) <= LOOPBACK
            os.kill(int((cells[0].path / ".lock").read_text()), signal.SIGKILL)
            record = tmp_path / "grid" / "cells.json"
            wait_until(
                lambda: json.loads(record.read_text())["sgd-seed0"]["status"] == "failed",
                seconds=30,
            )
            rows = len(cells[1].read_rounds())
            wait_until(lambda: len(cells[1].read_rounds()) > rows, seconds=30)
            parent.send_signal(number)
        wait_until(lambda: not marked(mark), seconds=30)
        wait_until(lambda: left_in(short_tmp / "d" / "tmp") == [], seconds=30)
        if nodes is not None:
            assert of_node(nodes.first), "the foreign cluster stays"
            assert of_node(nodes.second)
            assert not any(
                "ray::Worker" in command_of(pid)
                for pid in of_node(nodes.first) + of_node(nodes.second)
            )
    assert [c.summary.exists() for c in cells] == [False, False]
    assert json.loads(record.read_text())["sgd-seed1"]["status"] == "interrupted"
    resume_local(cells[1].path)
    alone = run_local(
        tmp_path / "local",
        method="sgd",
        noise_multiplier=None,
        seed=1,
        rounds=ROUNDS,
        evaluate_every=ROUNDS,
    )
    assert Run(cells[1].path).weights.equal(alone.weights)
