"""Locks: no other user can take one, none is waited for without end, and who holds it is true. A
disk without locks is named before anything is charged.
"""

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedlsg import locks
from fedlsg.locks import ABSENT, LockedError, NoLocksError, is_locked, locked
from fedlsg.privacy import Ledger, LedgerError, RunLedger
from fedlsg.privacy.ledger_file import appendable
from fedlsg.simulations.storage.lock import exclusive, is_held
from fedlsg.simulations.storage.run_directory import RunDir
from tests.fedlsg.support.ledgers import entry
from tests.other_user import NOBODY, lock_all, needs_root, nobody, open_folder

KERNEL = pytest.mark.skipif(not locks.KERNEL.exists(), reason="the system does not list locks")


@contextmanager
def held(path: Path) -> Iterator[int]:
    """A lock that another process of this user has, by its number."""
    code = "import fcntl, os, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX)"
    command = [
        sys.executable,
        "-S",
        "-c",
        f"{code}; print(flush=True); sys.stdin.read()",
        str(path),
    ]
    with subprocess.Popen(command, stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def in_seconds(most: float, began: float) -> bool:
    return time.monotonic() - began < most


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        yield made


def use_all(folder: Path, round: int) -> None:
    """Whatever takes a lock in a run directory."""
    with exclusive(RunDir(folder)):
        Ledger(folder / "ledger.jsonl", client=3).charge(entry(round=round))
        RunLedger(folder / "ledger").charge([entry(round=round)])


@needs_root
def test_another_user_who_locks_all_that_he_can_open_stops_nothing(folder):
    use_all(folder, 1)
    began = time.monotonic()
    with nobody(lambda: lock_all(folder)) as names:
        assert "run.jsonl" in names
        assert "lock'" not in names
        use_all(folder, 2)
        assert not is_held(RunDir(folder))
    assert in_seconds(2, began)


@needs_root
def test_negative_control_a_lock_that_others_can_open_stops_a_charge(folder, monkeypatch):
    monkeypatch.setattr(locks, "FILE_MODE", 0o644)
    monkeypatch.setattr(locks, "close_to_others", lambda *_: None)
    use_all(folder, 1)
    with nobody(lambda: lock_all(folder)) as names:
        assert ".ledger.lock" in names
        with pytest.raises(ValueError, match=f"process [0-9]+ of another user .{NOBODY}."):
            use_all(folder, 2)


@needs_root
def test_a_lock_that_another_user_made_is_not_waited_for(folder):
    folder.chmod(0o777)
    began = time.monotonic()
    with nobody(lambda: fcntl.flock(os.open(folder / "x", os.O_CREAT), fcntl.LOCK_EX)):
        way_out = pytest.raises(LockedError, match=f"no process of yours uses it, remove {folder}")
        with way_out, locked(folder / "x"):
            pass
    assert in_seconds(2, began)


@needs_root
@KERNEL
def test_a_reader_who_cannot_open_the_lock_still_sees_a_run_that_runs(folder):
    run = RunDir(folder)
    with nobody(lambda: is_held(run)) as seen:
        assert seen == "False"
    with exclusive(run), nobody(lambda: is_held(run)) as seen:
        assert seen == "True"


def test_a_lock_that_an_older_version_left_open_is_closed(folder):
    (folder / ".lock").write_text("1")
    with exclusive(RunDir(folder)):
        assert (folder / ".lock").stat().st_mode & 0o777 == 0o600
        assert is_held(RunDir(folder))


@KERNEL
def test_who_holds_it_is_the_one_that_the_system_names(tmp_path):
    lock = tmp_path / ".lock"
    lock.write_text("1")  # of a process that ended long ago, whose number lives again
    with held(lock) as pid:
        named = pytest.raises(ValueError, match=f"in use by process {pid}: wait")
        with named, exclusive(RunDir(tmp_path)):
            pass


def test_where_the_system_does_not_say_no_number_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "KERNEL", tmp_path / "missing")
    (tmp_path / ".lock").write_text(str(os.getpid()))
    with held(tmp_path / ".lock"):
        unnamed = pytest.raises(ValueError, match="in use by another process:")
        with unnamed, exclusive(RunDir(tmp_path)):
            pass


def test_a_charge_does_not_wait_without_end_and_names_the_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "LOCK_SECONDS", 0.1)
    ledger, began = Ledger(tmp_path / "ledger.jsonl", client=3), time.monotonic()
    ledger.charge(entry(round=1))
    with held(tmp_path / ".ledger.lock"), pytest.raises(LedgerError, match="lock is locked by"):
        ledger.charge(entry(round=2))
    assert in_seconds(2, began)
    assert len(ledger.entries) == 1


def test_a_lock_is_waited_for_and_is_free_again(tmp_path):
    path = tmp_path / "x"
    with held(path):
        assert is_locked(path)
    with locked(path, seconds=5), pytest.raises(LockedError), locked(path, seconds=0):
        pass
    with locked(path, seconds=0):
        assert is_locked(path)
    assert not is_locked(path)
    assert not is_locked(tmp_path / "missing")


def test_a_lock_whose_file_was_removed_is_not_taken_twice(tmp_path):
    path, inside = tmp_path / "x", list[int]()
    with locked(path):
        before = os.open(path, os.O_RDONLY)
        path.unlink()
        with locked(path, seconds=0):  # the new file of that name
            inside.append(1)
            with pytest.raises(LockedError), locked(path, seconds=0):
                inside.append(2)
    os.close(before)
    assert inside == [1]


def test_a_link_is_no_lock(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "x").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="x"), locked(tmp_path / "x"):
        pass


def test_a_folder_is_closed_before_it_is_a_lock(folder):
    with locked(folder), pytest.raises(LockedError), locked(folder, seconds=0):
        pass
    assert folder.stat().st_mode & 0o777 == 0o700


def hold(way: str, folder: Path) -> None:
    """Hold something of a folder in one of the ways that there are."""
    ways = {"run": lambda: exclusive(RunDir(folder)), "folder": lambda: locked(folder)}
    with ways.get(way, lambda: appendable(folder / "ledger.jsonl"))():
        (folder / "inside").touch()


WAYS = ("run", "folder", "ledger")


@pytest.mark.parametrize("code", sorted(ABSENT))
@pytest.mark.parametrize("way", WAYS)
def test_a_disk_without_locks_is_named_with_the_way_out(way, code, tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: fail(code))
    with pytest.raises(NoLocksError, match=rf"the disk of {tmp_path}.* has no locks .*another"):
        hold(way, tmp_path)
    assert not (tmp_path / "inside").exists()
    assert not is_held(RunDir(tmp_path))


@pytest.mark.parametrize("way", WAYS)
def test_other_errors_stay_and_locks_are_taken(way, tmp_path, monkeypatch):
    hold(way, tmp_path)
    assert (tmp_path / "inside").exists()
    monkeypatch.setattr(fcntl, "flock", lambda *_: fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output error") as error:
        hold(way, tmp_path)
    assert not isinstance(error.value, NoLocksError)


def fail(code: int) -> None:
    raise OSError(code, os.strerror(code))
