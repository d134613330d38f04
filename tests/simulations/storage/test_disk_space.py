"""A full disk: the file that could not be written is named, and the run goes on to the same weights
afterwards.

/dev/full answers every write with the error of a full disk; the last test fills a real file system.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from fedlsg.simulations.engines import local
from fedlsg.simulations.run import commands
from fedlsg.simulations.storage.atomic_files import DiskFullError
from fedlsg.simulations.storage.run_directory import RunDir
from tests.places import REPOSITORY
from tests.simulations.support.runs import SMALL, Run, ignore, plan_at, resume_local, run_local

FULL = Path("/dev/full")
no_device = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full (Linux)")
SETTINGS = {"rounds": 3, "record_updates": True}

APPENDED = ("rounds.csv", "bytes.csv", "events.out.tfevents.fedlsg")
REPLACED = (
    "checkpoint/latest.pt",
    "summary.json",
    "updates/round-000002/client-000001.bin",
    "updates/round-000002/weights.npy",
)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(tmp_path_factory.mktemp("unbroken") / "run", **SETTINGS)


def continued(run: Run, unbroken: Run) -> bool:
    """Whether a resumed run is as one that never stopped."""
    return run.weights.equal(unbroken.weights) and [row.round for row in run.rows] == [1, 2, 3]


@no_device
@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", [*APPENDED, *REPLACED])
def test_a_file_that_does_not_fit_is_named_and_the_run_goes_on(name, tmp_path, unbroken):
    plan, directory = plan_at(tmp_path / "run", **SETTINGS)
    file = directory.path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    # what write_atomically writes
    full = file if name in APPENDED else file.with_name(f".{file.name}.{os.getpid()}")
    full.symlink_to(FULL)
    with pytest.raises(DiskFullError) as error:
        local.run(plan, directory, on_round=ignore)
    assert f"the disk is full: {file} could not be written" in str(error.value)
    assert str(error.value).endswith(
        f"make room, then continue with: fedlsg resume {directory.path}"
    )
    assert not full.exists() or name in APPENDED  # the temporary file is gone
    full.unlink(missing_ok=True)
    assert continued(resume_local(directory.path), unbroken)


@no_device
@pytest.mark.parametrize("method", ["lsg", "topk"])
def test_a_client_that_cannot_store_its_payload_stops_the_run(method, tmp_path):
    """Its payload, or with error feedback its payload and memory, would be on the run's own
    disk.
    """
    settings = SETTINGS | ({"method": "topk", "noise_multiplier": None} if method == "topk" else {})
    unbroken = run_local(tmp_path / "unbroken", **settings)
    plan, directory = plan_at(tmp_path / "run", **settings)
    file = (
        directory.last_payload(1) if method == "lsg" else directory.own(1) / "feedback-000001.bin"
    )
    file.parent.mkdir(parents=True)
    full = file.with_name(f".{file.name}.{os.getpid()}")
    full.symlink_to(FULL)
    with pytest.raises(
        DiskFullError, match=re.escape(f"the disk is full: {file} could not be written")
    ):
        local.run(plan, directory, on_round=ignore)
    assert not directory.rounds.exists()
    full.unlink(missing_ok=True)
    assert continued(resume_local(directory.path), unbroken)


@no_device
def test_resuming_while_the_disk_is_still_full_says_so(tmp_path, unbroken, monkeypatch):
    """What was written since the last checkpoint is cut away first, and that is noted in the
    manifest.
    """
    monkeypatch.setattr(commands, "restore", lambda _: FULL.write_text("a note"))
    shutil.copytree(unbroken.path, tmp_path / "run")
    with pytest.raises(
        DiskFullError, match=r"make room, then continue with: fedlsg resume .*/run$"
    ):
        commands.continued(RunDir.open(tmp_path / "run"), Console())


ON_A_SMALL_DISK = """
import shutil, subprocess, sys
from fedlsg.simulations.cli.command_line import main

def status(*words):
    sys.argv = ["fedlsg", *words]
    try:
        main()
    except SystemExit as end:
        return end.code or 0

disk, out, size, *options = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", disk], check=True)
run = status("run", *options, "--out", f"{disk}/run")
subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
resume = status("resume", f"{disk}/run")
shutil.copytree(f"{disk}/run", out)
print(f"\\n{run} {resume}")
"""


@cache
def mounting() -> bool:
    """Whether this user may mount a file system of its own."""
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.skipif(not mounting(), reason="needs unshare -rm (Linux, user namespaces)")
@pytest.mark.parametrize("kilobytes", [96, 128, 192])
def test_a_real_full_disk(kilobytes, tmp_path, unbroken):
    """It fills at another place for each size; after there is room the run is what it would have
    been.
    """
    (tmp_path / "disk").mkdir()
    settings = SMALL | SETTINGS
    options = [
        word for key, value in settings.items() for word in ("-c", f"{key}={str(value).lower()}")
    ]
    command = [
        "unshare",
        "-rm",
        sys.executable,
        "-c",
        ON_A_SMALL_DISK,
        str(tmp_path / "disk"),
        str(tmp_path / "out"),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(kilobytes), *options],
        cwd=REPOSITORY,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "1 0", done.stdout
    (line,) = done.stderr.strip().splitlines()
    disk = re.escape(str(tmp_path / "disk" / "run"))
    assert re.fullmatch(
        rf"fedlsg: error: the disk is full: {disk}/\S+ could not be written\. .* fedlsg resume {disk}",
        line,
    )
    assert continued(Run(tmp_path / "out"), unbroken)


@pytest.mark.slow
@pytest.mark.skipif(not mounting(), reason="needs unshare -rm (Linux, user namespaces)")
def test_a_read_only_run_directory_is_refused_in_one_line(tmp_path, unbroken):
    disk = tmp_path / "run"
    shutil.copytree(unbroken.path, disk)
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && "$1" -m fedlsg resume "$0"'
    command = ["unshare", "-rm", "sh", "-c", mount, str(disk), sys.executable]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line == (
        f"fedlsg: error: cannot write to {disk}: Read-only file system; make it writable, or "
        "continue a copy of it"
    )
