"""The run directory: nothing is overwritten, nothing half-written is taken for whole, and scratch
folders are gone.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.run_format import stamp
from fedlsg.simulations.storage.updates import read_frame, round_folder
from tests.places import REPOSITORY

SETTINGS = Settings(workload="digits", method="lsg", noise_multiplier=1.25, parameters={"rank": 4})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "holds no config.toml"),
        ("rank = [", "is damaged"),
        ("rnk = 4", "unknown setting 'rnk'"),
    ],
)
def test_a_directory_that_is_no_run_is_refused(text, message, tmp_path):
    if text is not None:
        (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        RunDir.open(str(tmp_path)).read_config()


def test_the_checkpoint_before_is_kept_and_named_when_it_is_used(tmp_path):
    run = RunDir(tmp_path)
    third, fourth = ({"server": {"round": number}, "plan": stamp()} for number in (3, 4))
    for state in (third, fourth):
        run.save_checkpoint(state)
    assert run.resume_point() == (fourth, None)
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-1])
    state, note = run.resume_point()
    assert state == third
    assert note == f"{run.checkpoint} is damaged: continuing from previous.pt, after round 3"
    run.checkpoint.unlink()
    assert (
        "latest.pt is missing: continuing from previous.pt, after round 3" in run.resume_point()[1]
    )
    run.previous.unlink()
    assert not run.has_checkpoint
    with pytest.raises(ValueError, match=r"no whole previous\.pt either: restore one of them"):
        run.resume_point()


def test_torch_sees_no_byte_of_a_damaged_checkpoint(tmp_path, monkeypatch):
    run = RunDir(tmp_path)
    run.save_checkpoint({"server": {"round": 1}})
    whole = run.checkpoint.read_bytes()
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    for place in range(0, len(whole), 7):
        run.checkpoint.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="is damaged"):
            run.load_checkpoint()


def test_a_checkpoint_is_data_and_no_program(tmp_path):
    """torch.load could run what a pickle says; a checkpoint from someone else must not."""

    class Planted:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "planted"),)

    run = RunDir(tmp_path)
    run.save_checkpoint({"server": Planted()})
    with pytest.raises(ValueError, match="is damaged"):
        run.load_checkpoint()
    assert not (tmp_path / "planted").exists()


def test_an_existing_directory_is_never_overwritten(tmp_path):
    (tmp_path / "run").mkdir()
    assert create(str(tmp_path / "run"), SETTINGS).path == tmp_path / "run", "an empty one is fine"
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty; choose another out$"):
        create(str(tmp_path / "run"), SETTINGS)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]
    RunDir(tmp_path / "run").config.touch()
    with pytest.raises(
        ValueError, match="is not empty; choose another out, or continue it with fedlsg resume"
    ):
        create(str(tmp_path / "run"), SETTINGS)


HOLD = """
import sys, time
from fedlsg.simulations.engines.watchers import scratch
with scratch() as folder:
    (folder / "secret").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_folder(number):
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "secret").exists()
        process.send_signal(number)
    deadline = time.monotonic() + 30
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_frame_comes_back_bit_for_bit(small):
    frame, about = read_frame(round_folder(small.path, 1))
    assert about["digest"] == frame.digest.hex()
    assert (round_folder(small.path, 1) / "client-000000.bin").read_bytes()[32:64] == frame.digest
    offsets = [block["offset"] for block in about["blocks"]]
    assert [b["part"] for b in about["blocks"]][:3] == ["L", "R", "dense"]
    assert offsets == [0, *np.cumsum([block["size"] for block in about["blocks"]])[:-1]]
