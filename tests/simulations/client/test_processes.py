"""Processes: a client that shares nothing with the server but message bytes; runs that are
interrupted by signals.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.places import REPOSITORY
from tests.simulations.support.runs import Run, run_local

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}


LONG = {
    "rounds": 12,
    "clients": 2,
    "sample_rate": 0.05,
    "noise_multiplier": 2.0,
    "reproducible": True,
}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(tmp_path_factory.mktemp("unbroken") / "run", **LONG, evaluate_every=12)


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedlsg", *arguments]


def interrupt(
    command: list[str],
    run: Run,
    number: signal.Signals,
    *,
    after_round: int,
    env: dict[str, str] = ENVIRONMENT,
) -> tuple[int, str]:
    """Start a command, send it the signal once a round is finished; (exit status, what it
    printed).
    """
    process = subprocess.Popen(
        command,
        env=env,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 300
    try:
        while finished_rounds(run) < after_round:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "no round was finished"
            time.sleep(0.005)
        os.kill(process.pid, number)
        printed = process.communicate(timeout=120)[0]
    finally:
        process.kill()
    return process.returncode, printed


def finished_rounds(run: Run) -> int:
    return run.directory.rounds.read_text().count("\n") - 1 if run.directory.rounds.exists() else 0


def options(engine: str, out: Path) -> list[str]:
    given = [
        item
        for name, value in LONG.items()
        if name != "reproducible"
        for item in ("-c", f"{name}={value}")
    ]
    return [
        "run",
        "--engine",
        engine,
        "--out",
        str(out),
        "--reproducible",
        "-c",
        "evaluate_every=12",
        *given,
    ]


def check_continued(run: Run, unbroken: Run) -> None:
    """As if nothing had happened."""
    assert run.weights.equal(unbroken.weights)
    assert [row.round for row in run.rows] == list(range(1, 13))
    assert {row.rejected for row in run.rows} == {""}
    assert run.ledgers == unbroken.ledgers
    summary = json.loads(run.directory.summary.read_text())
    assert not summary["private"]
    for name in ("accuracy", "loss", "epsilon_max", "uplink_bytes", "downlink_bytes", "rounds"):
        assert float(summary[name]) == unbroken.summary[name], name


@pytest.mark.slow
def test_interrupted_and_terminated_and_continued_to_the_same_weights(tmp_path, unbroken, fedlsg):
    """SIGINT, then SIGTERM. test_kills.py holds the same for SIGKILL."""
    run = Run(tmp_path / "run")
    status, printed = interrupt(
        command_line(*options("local", run.path)), run, signal.SIGINT, after_round=2
    )
    assert status == 130
    assert "fedlsg: error: interrupted" in printed
    assert f"continue with: fedlsg resume {run.path}" in printed
    assert "Traceback" not in printed
    at_interrupt = finished_rounds(run)
    assert 2 <= at_interrupt < 12
    resume = command_line("resume", str(run.path))
    status, terminated = interrupt(resume, run, signal.SIGTERM, after_round=at_interrupt + 2)
    assert status == 128 + signal.SIGTERM
    # SIGTERM says the same as Ctrl-C
    assert terminated.splitlines()[-2:] == printed.splitlines()[-2:]
    assert at_interrupt + 2 <= finished_rounds(run) < 12
    status, out, _ = fedlsg("resume", str(run.path))
    assert status == 0
    assert "NOT PRIVATE" in out
    check_continued(run, unbroken)


def left_in(temporary: Path) -> list[str]:
    """What runs have left there. torch makes an empty cache folder for each user wherever an
    optimizer is made.
    """
    return [
        path.name
        for path in sorted(temporary.iterdir())
        if not path.name.startswith("torchinductor_")
    ]


@pytest.mark.slow
@pytest.mark.ray
def test_terminated_and_killed_on_ray_leaves_no_folder_and_is_continued(tmp_path, unbroken):
    """SIGTERM ends a run as Ctrl-C does; after SIGKILL the processes that are left clean up."""
    run = Run(tmp_path / "run")
    with tempfile.TemporaryDirectory(prefix="t") as short:  # Ray's sockets need a short path
        temporary, env = Path(short), {**ENVIRONMENT, "TMPDIR": short}
        start = command_line(*options("ray", run.path))
        resume = command_line("resume", str(run.path))
        status, printed = interrupt(start, run, signal.SIGTERM, after_round=3, env=env)
        assert status == 128 + signal.SIGTERM
        assert printed.splitlines()[-2:] == [
            f"continue with: fedlsg resume {run.path}",
            "fedlsg: error: interrupted",
        ]
        assert left_in(temporary) == []
        status, _ = interrupt(
            resume, run, signal.SIGKILL, after_round=finished_rounds(run) + 3, env=env
        )
        assert status == -signal.SIGKILL
        deadline = time.monotonic() + 60
        while left_in(temporary):
            assert time.monotonic() < deadline, left_in(temporary)
            time.sleep(0.05)
        done = subprocess.run(
            resume, env=env, cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert left_in(temporary) == []
    check_continued(run, unbroken)
