"""Handling of the signals that end a process: SIGINT (Ctrl-C), SIGTERM and SIGHUP.

The first signal raises KeyboardInterrupt in the main thread, so that every ``finally`` runs.
Libraries let that exception pass; Ray would turn a SystemExit into an error of its own. Later
signals change nothing. A command (``ending_command``) also ends if a library has swallowed the
exception, or if the main thread is busy in C: the exception is raised again, and after some seconds
the process ends as if it were killed, which the files of a run withstand. Ray's processes end with
it.

This module uses only the standard library: it is imported before everything else.
"""

import _thread
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that end a process, as far as this system has them."""
SECONDS = 4.0
"""Time that a command may take to end. After half of it, KeyboardInterrupt is raised again."""
STEP_SECONDS = 0.02
"""Time between two checks whether a library has replaced a handler in C."""
SHOW_CURSOR = "\x1b[?25h"
"""A terminal's code to show the cursor."""


@dataclass
class _Command:
    """The command of this process.

    is_there: whether this process is a command.
    seconds: time that it may take to end.
    number: the first signal; None before.
    raises: whether the next signal raises, although it is not the first.
    said: whether the command has printed that it was interrupted.
    words: functions that give the lines to print if it gives up, such as how to continue.
    """

    is_there: bool = False
    seconds: float = SECONDS
    number: int | None = None
    raises: bool = False
    said: bool = False
    words: list[Callable[[], str]] = field(default_factory=list)


_command = _Command()


def received() -> bool:
    """Whether a signal ends the command of this process."""
    return _command.number is not None


def status() -> int:
    """The exit status of an interrupted command: 128 and the number of its signal."""
    return 128 + (_command.number or signal.SIGINT)


def ending_command() -> None:
    """Make this process a command, which the signals end within seconds.

    A signal that is ignored, as by nohup, stays ignored.
    """
    _command.is_there = True
    numbers = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # written in C, whatever the main thread does
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if hasattr(os, "register_at_fork"):  # a child would write into its parent's pipe
        os.register_at_fork(after_in_child=_forget)
    _thread.start_new_thread(_watch, (reader, frozenset(numbers)))
    for number in numbers:
        signal.signal(number, _interrupt)


def _forget() -> None:
    """Make a forked process no command."""
    _command.is_there = False
    signal.set_wakeup_fd(-1)


def _interrupt(number: int, _: object) -> None:
    """The handler of a command: raises for its first signal, and when ``_watch`` asks for it.

    In a forked child, which is no command, it always raises.
    """
    is_first = _command.number is None
    _note(number, None)
    if is_first or _command.raises or not _command.is_there:
        _command.raises = False
        raise KeyboardInterrupt


def _note(number: int, _: object) -> None:
    """Keep the number of the first signal."""
    _command.number = _command.number or number


def _watch(reader: int, numbers: frozenset[int]) -> None:
    """Wait for the first signal; raise it once more after half of the time; then give up.

    The time is what ``allow`` has set before the signal.
    reader: a pipe with the number of each signal that any handler of Python gets.
    """
    number = 0
    while number not in numbers:
        number = os.read(reader, 1)[0]
    half = _command.seconds / 2
    time.sleep(half)
    _command.raises = True
    signal.pthread_kill(threading.main_thread().ident or 0, number)  # wakes it, if it sleeps
    time.sleep(half)
    _note(number, None)  # a main thread that is busy in C never ran the handler
    _give_up()


def allow(seconds: float) -> None:
    """Let a command take this long to end, or longer, after a signal that is still to come."""
    _command.seconds = max(_command.seconds, seconds)


def end_now(why: str = "") -> None:
    """End the process at once, if it is a command that was interrupted, or that failed.

    ``why``: the error of a command that failed.
    """
    if _command.is_there and (why or received()):
        _give_up(why)


def _give_up(why: str = "") -> None:
    """Print the last lines of the command and end the process, without any ``finally``."""
    lines = [line for line in [words() for words in _command.words] if line]
    if not _command.said:
        lines.append(f"fedlsg: error: {'interrupted' if received() else why}")
    cursor = SHOW_CURSOR if os.isatty(2) else ""
    with suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:  # else a stopped terminal would block the write
            os.write(2, (cursor + "".join(f"{line}\n" for line in lines)).encode())
    os._exit(status() if received() else 1)


def mark_said() -> None:
    """Note that the command has printed that it was interrupted, and ignore further signals.

    Only its exit is left, in which Python would remove our handlers.
    """
    _command.said = True
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def with_words(words: Callable[[], str]) -> Iterator[None]:
    """Print ``words()``, unless it is empty, if the command gives up in the block."""
    _command.words.append(words)
    try:
        yield
    finally:
        _command.words.remove(words)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in the block, so that every ``finally`` runs.

    They leave the block as SignalExit. It is for programs of users: a signal that is ignored or
    handled stays so.
    """
    numbers = list[int]()

    def interrupt(number: int, _: object) -> None:
        numbers.append(number)
        raise KeyboardInterrupt

    fatal = [
        number
        for number in ENDING
        if number != signal.SIGINT and signal.getsignal(number) is signal.SIG_DFL
    ]
    try:
        with _handlers(dict.fromkeys(fatal, interrupt)):
            yield
    except KeyboardInterrupt:
        if not numbers:
            raise
        from fedlsg.user_code.failure import SignalExit  # not before it is needed

        raise SignalExit(128 + numbers[0]) from None


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Let no signal raise in the block.

    A command notes its first one: the command line ends it with that status after the block. In a
    longer block than ``allow`` permits, ``_watch`` ends it.
    """
    with _handlers(dict.fromkeys(ENDING, _note if _command.is_there else signal.SIG_IGN)):
        yield


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Use these handlers in the block; outside the main thread do nothing."""
    # Python allows handlers in the main thread only
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def kept_handler() -> Iterator[None]:
    """Keep the handler of SIGTERM in C, whatever a library does in the block.

    Ray's library sets a handler that prints a trace and ends the process 3 s later, and removes
    every handler at its end. This works in any thread; Python's own function works only in the main
    thread.
    """
    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.restype = put.restype = ctypes.c_void_p
    put.argtypes = [ctypes.c_int, ctypes.c_void_p]
    # Python has one function in C for all signals that it handles: if it handles both signals, that
    # of SIGINT is right, also if the library has already replaced that of SIGTERM
    handled = [callable(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    handler = get(signal.SIGINT if all(handled) else signal.SIGTERM)
    block_ended = threading.Event()

    def restore() -> None:
        if get(signal.SIGTERM) != handler:
            put(signal.SIGTERM, handler)

    def keep_restoring() -> None:
        while not block_ended.wait(STEP_SECONDS):
            restore()

    restorer = threading.Thread(target=keep_restoring, name="handler of SIGTERM", daemon=True)
    restorer.start()
    try:
        yield
    finally:
        block_ended.set()
        restorer.join()
        restore()
