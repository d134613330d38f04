"""``--open`` around a run: what it leaves, what other users could see, and that it ends however the
run ends.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.places import REPOSITORY


@pytest.fixture(autouse=True)
def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)


def server_of(folder: Path) -> list[str]:
    """Arguments of processes that serve a folder, as every user of the machine sees them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "fedlsg.simulations.run.live" in words and str(folder) in words:
            found.append(words)
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_a_run_without_a_browser(fedlsg, tmp_path, monkeypatch):
    seen = {}

    def look(*given: object, **more: object) -> None:
        entry = tmp_path / "out" / "live.html"
        seen["mode"] = entry.stat().st_mode & 0o777
        seen["token"] = re.findall(r"[\w-]{43}", entry.read_text())[0]
        seen["arguments"] = server_of(tmp_path / "out")
        raise KeyboardInterrupt

    monkeypatch.setattr("fedlsg.simulations.run.commands.execute", look)
    status, out, err = fedlsg("run", "--engine", "local", "--rounds", "1", "--out", "out", "--open")
    assert (status, err) == (130, "fedlsg: error: interrupted\n")
    assert f"live page  {tmp_path / 'out' / 'live.html'} (no browser was found" in out
    assert (seen["mode"], len(seen["arguments"])) == (0o600, 1)
    assert seen["token"] not in out + seen["arguments"][0]
    assert not (tmp_path / "out" / "live.html").exists()
    assert not server_of(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_it_ends_with_a_run_that_is_killed(tmp_path):
    program = f"""
        import time
        from pathlib import Path
        from rich.console import Console
        from fedlsg.simulations.run.live import following
        with following(Path({str(tmp_path)!r}), Console(quiet=True)):
            print("ready", flush=True)
            time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        assert server_of(tmp_path)
        os.kill(run.pid, signal.SIGKILL)
    until = time.monotonic() + 30
    while server_of(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert not server_of(tmp_path)
    assert not (tmp_path / "live.html").exists()
