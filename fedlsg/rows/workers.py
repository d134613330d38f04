"""Worker processes that make rows in advance, while a step computes.

The step gives the list of its rows, in their order. Workers get the number of a row and, for rows
with random draws, the key of this row's draws. The batch, the stream that keys come from, and noise
stay in the process of the client. No secret stream can be pickled, and a fork copies none. Workers,
also replacements of lost ones, start by ``open`` alone: call it before a step draws its batch.
Messages go through pipes between a process and its own children, never through files or arguments
of a command.
"""

import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import Any, Generic, Literal, TypeVar

import torch

Request = TypeVar("Request")
Row = TypeVar("Row")
Start = Literal["fork", "spawn"]

ROWS_PER_MESSAGE = 8
"""Most rows that a worker makes for one message."""


class LostWorkerError(RuntimeError):
    """A process that made rows ended. Its batch was charged, and is not drawn again."""


class RowWorkers(Generic[Request, Row]):
    """Processes that make rows.

    make: makes a row from its request: a number, or a number and a key.
    count: number of the processes.
    start: how they start; None is "fork" on Linux, else "spawn", for which ``make`` must be
        picklable.
    Guarantee: ``take`` gives the rows that ``make`` makes in this process, in the order of
    ``begin``, for any number of workers and any ``start``.
    """

    def __init__(
        self, make: Callable[[Request], Row], count: int, *, start: Start | None = None
    ) -> None:
        if count < 1:
            raise ValueError(f"expected {count=} >= 1 workers")
        start = start or ("fork" if sys.platform == "linux" else "spawn")
        self._make, self.count, self._context = make, count, get_context(start)
        self._pool: ProcessPoolExecutor | None = None
        self._left: deque[Request] = deque()
        self._running: deque[tuple[int, Future[list[Row]]]] = deque()
        self._made: deque[Row] = deque()
        self._room = 0

    def open(self) -> None:
        """Start the processes, unless they run.

        Call it before a batch is drawn, which a fork would copy; nothing else starts processes.
        Raises ValueError for a ``make`` that cannot be sent to another process.
        """
        if self._pool is not None:
            return
        pool = ProcessPoolExecutor(
            self.count,
            mp_context=self._context,
            initializer=_start_worker,
            initargs=(self._make, os.getpid()),
        )
        with warnings.catch_warnings():
            # Python warns of every fork of a process with threads: workers use none of theirs
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
            try:
                waiting = [pool.submit(_ready) for _ in range(self.count)]
                for worker in waiting:
                    worker.result()
            except Exception as error:
                pool.shutdown(wait=False, cancel_futures=True)
                how = self._context.get_start_method()
                raise ValueError(
                    f"workers cannot start by {how!r} ({type(error).__name__}: {error}): 'spawn' "
                    "needs data that can be pickled, with a class in a module that can be "
                    "imported; take start='fork', or no workers"
                ) from error
        self._pool = pool

    def begin(self, requests: Iterable[Request], room: int) -> None:
        """Begin to make these rows, and forget all earlier ones.

        ``room``: most rows that are made, or in work, and not taken yet; at least two a worker.
        Raises LostWorkerError unless workers run.
        """
        if self._pool is None:
            raise LostWorkerError("no worker runs: ``open`` starts them, before a batch is drawn")
        for _, future in self._running:
            future.cancel()
        self._left, self._running, self._made = deque(requests), deque(), deque()
        self._room = max(room, 2 * self.count)
        self._send()

    def take(self, count: int) -> list[Row]:
        """The next rows.

        Raises LostWorkerError if a worker was lost, what ``make`` raised, and IndexError if fewer
        are left.
        """
        while len(self._made) < count:
            _, future = self._running.popleft()
            try:
                self._made.extend(future.result())
            except BrokenProcessPool:
                self.close()
                raise LostWorkerError(_lost_worker_message(self.count)) from None
            self._send()
        taken = [self._made.popleft() for _ in range(count)]
        self._send()
        return taken

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
        self._left, self._running, self._made = deque(), deque(), deque()

    def _send(self) -> None:
        """Give rows to the workers until ``room`` is full."""
        assert self._pool is not None
        size = max(1, min(ROWS_PER_MESSAGE, self._room // (2 * self.count)))
        held = len(self._made) + sum(count for count, _ in self._running)
        while self._left and held < self._room:
            requests = list(islice(self._left, size))
            for _ in requests:
                self._left.popleft()
            try:
                self._running.append((len(requests), self._pool.submit(_make_all, requests)))
            except BrokenProcessPool:
                self.close()
                raise LostWorkerError(_lost_worker_message(self.count)) from None
            held += len(requests)


def _lost_worker_message(count: int) -> str:
    """The message for a lost worker of ``count``."""
    return (
        f"one of {count} workers that make rows ended before its rows were made: something killed "
        "it, most often a lack of memory; take fewer workers, or a smaller microbatch_size. The "
        "step stays charged once, and the next one starts new workers"
    )


_make: Callable[[Any], Any] | None = None
"""The function that makes a row, in a worker; None elsewhere."""


def _start_worker(make: Callable[[Any], Any], parent: int) -> None:
    """Make this process a worker: it has one thread, ignores an interruption, and ends with its
    parent.
    """
    global _make
    _make = make
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Wait for the end of the parent, and end this process."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)  # the parent was killed: nobody reads the rows


def _ready() -> None:
    """A task that shows that the worker has started."""
    assert _make is not None


def _make_all(requests: Sequence[Any]) -> list[Any]:
    """The rows of these requests."""
    assert _make is not None
    return [_make(request) for request in requests]
