"""Stored examples that worker processes make in the order in which a step will read them.

Decoding an image takes longer than the step does. A batch is drawn by its client after the charge,
and then says which rows its microbatches read: workers make the next ones meanwhile. They get
numbers of rows and nothing else. Augmentation is not theirs: its draws belong to the client.
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
"""Workers of a process where the settings name no number."""


@dataclass(frozen=True)
class _Row:
    """One stored row, by its number."""

    stored: Stored

    def __call__(self, row: int) -> np.ndarray:
        row_values: np.ndarray = self.stored[np.array([row])][0]
        return row_values


class MadeAhead:
    """The examples of a split, made by ``workers`` where it is known that they will be read.

    Workers decode, and a thread puts the rows of the next microbatch together while the step
    computes. Guarantee: the inputs are those of ``split.batch``, bit for bit, whatever was
    expected.
    """

    def __init__(self, split: Split, workers: int) -> None:
        self.workers = RowWorkers[int, np.ndarray](_Row(split.inputs), workers)
        self._stored, self._prepare = split.inputs, split.prepare
        start = partial(torch.set_num_threads, torch.get_num_threads())
        self._thread = ThreadPoolExecutor(1, "rows", initializer=start)
        self._runs: deque[np.ndarray] = deque()
        self._next: Future[Inputs] | None = None

    def of(self, split: Split) -> Split:
        """The split whose rows are made ahead."""
        return replace(split, inputs=self, prepare=self.prepare)

    def __len__(self) -> int:
        return len(self._stored)

    def expect(self, rows: Int64[np.ndarray, " n"], size: int) -> None:
        """Rows that will be read next, in this order and ``size`` at a time."""
        if self._next is not None:
            wait([self._next])  # it takes from the workers
        self.workers.begin(rows.tolist(), room=3 * size)
        self._runs = deque(np.split(rows, range(size, len(rows), size)) if len(rows) else ())
        self._prepare_next()

    def __getitem__(self, rows: Int64[np.ndarray, " b"], /) -> Any:
        """The inputs of the rows, or these as they are stored where nobody expected them.

        Raises LostWorkerError if a worker was lost.
        """
        left = np.concatenate(self._runs) if self._runs else rows[:0]
        if not len(rows) or not np.array_equal(left[: len(rows)], rows):
            return self._stored[rows]
        assert self._next is not None
        inputs = self._next.result()
        if len(self._runs[0]) != len(rows):  # microbatches have another size than was said
            self.expect(left, len(rows))
            inputs = self._next.result()
        self._runs.popleft()
        self._prepare_next()
        return inputs

    def prepare(self, made: Any) -> Inputs:
        """The model's inputs."""
        inputs: Inputs = made if isinstance(made, torch.Tensor) else self._prepare(made)
        return inputs

    def _prepare_next(self) -> None:
        self._next = self._thread.submit(self._take, len(self._runs[0])) if self._runs else None

    def _take(self, count: int) -> Inputs:
        return self._prepare(np.stack(self.workers.take(count)))


def opens_files(stored: Stored) -> bool:
    """Whether rows are decoded from files whenever they are read."""
    return bool(getattr(stored, "in_files", False))


def processors() -> int:
    """Processors of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_of(settings: Any, stored: Stored) -> int:
    """How many workers make the rows of a process. Raises ValueError for rows that need none."""
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
