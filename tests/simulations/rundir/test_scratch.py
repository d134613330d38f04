"""A scratch folder is gone however the process that made it ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulations.engines.watchers import scratch
from tests.places import REPOSITORY

HOLD = """
import sys, time
from simulations.engines.watchers import scratch
with scratch() as folder:
    (folder / "secret").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_it_is_private_and_gone_afterwards():
    with scratch() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "a").mkdir()
    assert not folder.exists()
    with pytest.raises(ValueError, match="planted"), scratch() as folder:
        raise ValueError("planted")
    assert not folder.exists()


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
