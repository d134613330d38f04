"""One way out for the signals that end a process: SIGINT (Ctrl-C), SIGTERM and SIGHUP.

The first one raises KeyboardInterrupt in the main thread, so that every ``finally`` runs. Libraries
let that exception pass; Ray would turn a SystemExit into an error of its own. Later signals change
nothing, for the end is under way. A command, see ``ending_command``, also ends where the exception
was swallowed, or the main thread is busy in C: it is raised again, and after some seconds the
process ends as if it were killed, which the files of a run withstand. Ray's processes end with it.

The standard library alone: nothing is imported before these handlers are there.
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
SECONDS = 4.0
"""How long a command may take to end. In half of that, an exception that was swallowed is raised
again."""
STEP_SECONDS = 0.02
"""Between two looks whether a library has replaced a handler in C."""
SHOW_CURSOR = "\x1b[?25h"


@dataclass
class _Command:
    """The command of this process. ``number``: the first signal; ``raises``: whether the next call
    of the handler raises, although it is not the first; ``words``: how to go on.
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
    """From now on this process is a command, which the signals end within seconds.

    One that is ignored, as by nohup, stays so.
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
    _command.is_there = False
    signal.set_wakeup_fd(-1)


def _interrupt(number: int, _: object) -> None:
    first, _command.number = _command.number is None, _command.number or number
    if first or _command.raises or not _command.is_there:
        _command.raises = False
        raise KeyboardInterrupt


def _note(number: int, _: object) -> None:
    _command.number = _command.number or number


def _watch(reader: int, numbers: frozenset[int]) -> None:
    """Wait for the first signal; raise it once more after half of the time; then give up."""
    number = 0
    while number not in numbers:  # of other handlers, too
        number = os.read(reader, 1)[0]
    half = _command.seconds / 2
    time.sleep(half)
    _command.raises = True
    signal.pthread_kill(threading.main_thread().ident or 0, number)  # it may be asleep
    time.sleep(half)
    _command.number = _command.number or number
    _give_up()


def allow(seconds: float) -> None:
    """A command that is interrupted from now on may take so long to end."""
    _command.seconds = max(_command.seconds, seconds)


def end_now(why: str = "") -> None:
    """End the process of a command that is interrupted, or failed as ``why`` says, with its words,
    and wait for nothing; elsewhere nothing happens.
    """
    if _command.is_there and (why or received()):
        _give_up(why)


def _give_up(why: str = "") -> None:
    text, code = ("interrupted", status()) if received() else (why, 1)
    lines = [line for line in [how() for how in _command.words] if line]
    lines += [] if _command.said else [f"fedlsg: error: {text}"]
    cursor = SHOW_CURSOR if os.isatty(2) else ""
    with suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:  # a stopped terminal would hold us
            os.write(2, (cursor + "".join(f"{line}\n" for line in lines)).encode())
    os._exit(code)


def mark_said() -> None:
    """The command has printed that it was interrupted: only its exit is left, in which Python would
    take our handlers away.
    """
    _command.said = True
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def with_words(words: Callable[[], str]) -> Iterator[None]:
    """Inside, ``words()`` is printed, unless empty, if the command gives up the rest."""
    _command.words.append(words)
    try:
        yield
    finally:
        _command.words.remove(words)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """In a program of a user's: SIGTERM and SIGHUP end what is inside by KeyboardInterrupt, so that
    ``finally`` runs, and leave it as SignalExit. One ignored or handled stays so.
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
    """No signal interrupts the teardown inside; a command that gets its first one here still ends
    with its status.
    """
    with _handlers(dict.fromkeys(ENDING, _note if _command.is_there else signal.SIG_IGN)):
        yield


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
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
    """Whatever a library inside does in C, SIGTERM stays with Python, if Python handles it.

    Ray's library takes it for a handler that prints a trace and ends the process 3 s later, and at
    its end takes away both. For any thread: Python's own function is for the main one.
    """
    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.restype = put.restype = ctypes.c_void_p
    put.argtypes = [ctypes.c_int, ctypes.c_void_p]
    # Python has one function in C for all signals that it handles
    handled = [callable(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    handler, over = get(signal.SIGINT if all(handled) else signal.SIGTERM), threading.Event()

    def restore() -> None:
        if get(signal.SIGTERM) != handler:
            put(signal.SIGTERM, handler)

    def look() -> None:
        while not over.wait(STEP_SECONDS):
            restore()

    looks = threading.Thread(target=look, name="handler of SIGTERM", daemon=True)
    looks.start()
    try:
        yield
    finally:
        over.set()
        looks.join()
        restore()
