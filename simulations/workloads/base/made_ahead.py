"""Rows of the next microbatches are decoded in other processes while a step computes.

Decoding an image takes longer than its gradient. A client draws its batch after the charge, and
then says which rows the microbatches will read, in order (``expect``). Workers get numbers of rows
and nothing else. They do not augment: random draws belong to the client.
"""

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from fedlsg.rows import RowWorkers
from fedlsg.simulations.workloads.base.split import Inputs, Split, Stored

MOST_WORKERS = 8
"""The most workers of a process, unless the settings name a number."""


@dataclass(frozen=True)
class _Row:
    """The work of a worker: it decodes one of the ``stored`` rows, by its number."""

    stored: Stored

    def __call__(self, row: int) -> np.ndarray:
        values: np.ndarray = self.stored[np.array([row])][0]
        return values


class MadeAhead:
    """The stored examples of a split; worker processes decode those that are expected next.

    Workers decode rows, and a thread of this process puts those of the next microbatch together.
    Guarantee: the inputs are those of ``split.batch``, bit for bit, whatever was expected.
    """

    def __init__(self, split: Split, workers: int) -> None:
        self.workers = RowWorkers[int, np.ndarray](_Row(split.inputs), workers)
        self._stored = split.inputs
        self._prepare = split.prepare
        same_threads = partial(torch.set_num_threads, torch.get_num_threads())
        self._thread = ThreadPoolExecutor(1, "rows", initializer=same_threads)
        self._microbatches: deque[np.ndarray] = deque()  # numbers of rows, the next one first
        self._next: Future[Inputs] | None = None  # the inputs of the next one

    def of(self, split: Split) -> Split:
        """The split whose rows are made ahead."""
        return replace(split, inputs=self, prepare=self.prepare)

    def __len__(self) -> int:
        return len(self._stored)

    def expect(self, rows: Int64[np.ndarray, " n"], size: int) -> None:
        """Say which rows will be read next, in this order and ``size`` at a time.

        Raises LostWorkerError unless ``workers`` were opened.
        """
        if self._next is not None:
            wait([self._next])  # the thread still takes rows from the workers
        self.workers.begin(rows.tolist(), room=3 * size)
        microbatches = np.split(rows, range(size, len(rows), size)) if len(rows) else []
        self._microbatches = deque(microbatches)
        self._prepare_next()

    def __getitem__(self, rows: Int64[np.ndarray, " b"], /) -> Any:
        """The model's inputs of rows that were expected; other rows as they are stored.

        Raises LostWorkerError if a worker was lost.
        """
        expected = np.concatenate(self._microbatches) if self._microbatches else rows[:0]
        if not len(rows) or not np.array_equal(expected[: len(rows)], rows):
            return self._stored[rows]
        assert self._next is not None
        inputs = self._next.result()
        if len(self._microbatches[0]) != len(rows):  # their size is not the expected one
            self.expect(expected, len(rows))
            inputs = self._next.result()
        self._microbatches.popleft()
        self._prepare_next()
        return inputs

    def prepare(self, rows: Any) -> Inputs:
        """The model's inputs of what ``__getitem__`` gave: inputs already, or stored rows."""
        inputs: Inputs = rows if isinstance(rows, torch.Tensor) else self._prepare(rows)
        return inputs

    def _prepare_next(self) -> None:
        """Let the thread make the inputs of the next microbatch, if there is one."""
        self._next = None
        if self._microbatches:
            self._next = self._thread.submit(self._take, len(self._microbatches[0]))

    def _take(self, count: int) -> Inputs:
        """The inputs of the next ``count`` rows, which it waits for."""
        return self._prepare(np.stack(self.workers.take(count)))


def opens_files(stored: Stored) -> bool:
    """Whether stored rows are decoded from files each time that they are read."""
    return bool(getattr(stored, "in_files", False))


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_of(settings: Any, stored: Stored) -> int:
    """How many workers decode the rows of a process.

    Raises ValueError for a given number if rows are in memory: workers would have nothing to do.
    """
    given: int | None = settings.loader_workers
    if not opens_files(stored):
        if given:
            raise ValueError(
                f"loader_workers={given}: workers decode images in files, and the rows of this "
                "workload are in memory: leave it out"
            )
        return 0
    if given is not None:
        return given
    cpus: int = settings.client_cpus if settings.engine == "ray" else processors()
    threads: int = settings.threads
    return max(1, min(MOST_WORKERS, cpus - threads))
