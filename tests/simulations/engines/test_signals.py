"""SIGINT, SIGTERM and SIGHUP end a command everywhere: status, words, nothing left.

Whole runs are in ``test_interrupted_runs``; small scripts have what is rare in one: an exception
that a library swallows, a main thread that is busy in C. No Ray is in this process.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.signals import Cell, Ending
from fedlsg.simulations.engines.signals import kept_handler
from tests.places import REPOSITORY


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"status": 1}, "status 1"),
        ({"printed": "fedlsg: error: interrupted"}, "no command"),
        ({"printed": "continue with: fedlsg resume runs/a"}, "no word"),
        ({"seconds": 5.5}, "5.5 s"),
        ({"left": ("raylet",)}, "left: raylet"),
        ({"sane": False}, "terminal"),
    ],
)
def test_a_wrong_ending_is_caught(changed, fault):
    right = {
        "status": 143,
        "seconds": 1.0,
        "printed": "continue with: fedlsg resume runs/a\nfedlsg: error: interrupted",
        "folder": True,
    }
    cell = Cell(engine="local", phase="round", signal="TERM")
    assert Ending(**right).faults(cell) == []
    assert Ending(**{**right, **changed}).faults(cell) == [fault]


BEGIN = """
import hashlib, sys, threading, time
from fedlsg.simulations.engines import signals
if sys.argv[1] != "no command":
    signals.ending_command()
signals._command.seconds = 1.0
threading.Timer(0.2, print, ["there"], {"flush": True}).start()
"""
SWALLOWED = """
try:
    time.sleep(30)
except KeyboardInterrupt:
    pass
try:
    time.sleep(30)
except KeyboardInterrupt:
    sys.exit(signals.status())
"""
BUSY = """
with signals.with_words(lambda: "continue with: it"):
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""
TEARDOWN = """
with signals.ignore_interrupts():
    time.sleep(0.6)
assert signals.received()
sys.exit(signals.status())
"""
GONE = "\nfedlsg: error: interrupted\n"


@pytest.mark.parametrize(
    ("script", "how", "status", "said"),
    [
        (SWALLOWED, "command", 143, ""),
        (BUSY, "command", 143, f"continue with: it{GONE}"),
        (TEARDOWN, "command", 143, ""),
        (BUSY, "no command", -signal.SIGTERM, ""),
    ],
    ids=["swallowed", "busy in C", "first one in the teardown", "control"],
)
def test_a_command_ends_whatever_its_main_thread_does(script, how, status, said):
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", BEGIN + script, how],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGTERM)
        try:
            _, printed = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, printed) == (status, said)


@pytest.fixture
def terminations() -> Iterator[list[int]]:
    """Each SIGTERM that this process has handled in Python."""
    found = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, before)


def ignore_in_c() -> None:
    """What a library in C does with SIGTERM, without Python's knowledge."""
    put = ctypes.pythonapi.PyOS_setsig
    put.argtypes = [ctypes.c_int, ctypes.c_void_p]
    put(signal.SIGTERM, 1)  # SIG_IGN


def test_a_handler_that_a_library_replaces_in_c_is_put_back(terminations):
    def library() -> None:
        with kept_handler():
            ignore_in_c()
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)  # the main thread takes it: one that is ignored before is dropped
            ignore_in_c()

    thread = threading.Thread(target=library)
    thread.start()
    thread.join()
    assert len(terminations) == 1
    os.kill(os.getpid(), signal.SIGTERM)
    assert len(terminations) == 2
    ignore_in_c()
    os.kill(os.getpid(), signal.SIGTERM)
    assert len(terminations) == 2, "negative control: without kept_handler it is lost"
