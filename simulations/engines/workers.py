"""The Ray workers of one run: they answer piles of messages, and a dead or hanging one is replaced."""

import time
from collections.abc import Sequence
from functools import cached_property
from logging import WARNING
from typing import Any

from flwr.app import Message
from flwr.common.logger import log

from simulations.engines import run_log
from simulations.engines.cluster import Cluster
from simulations.engines.worker import Job
from simulations.grids.piles import Pile, pack, unpack
from simulations.plan.plan import Plan
from simulations.settings.settings import as_config
from strategies.federation.code_identity import own_identity
from strategies.federation.report import reason_of

MARGIN_SECONDS = 10.0
"""Time for the way back before the deadline; at most a tenth of the time that is left."""

NEWS_SECONDS = 30.0
"""After so long without any news the log says what is waited for."""

Lost = list[tuple[Pile, str]]
"""Piles whose worker died, each with the reason."""


class Workers:
    """As many workers as a run can use at once; the first call waits until Ray has started.

    Ray repeats no task and restarts no worker: what became of a pile is for the caller to decide. A worker that died or
    hangs is replaced; the others go on while its replacement looks for a place.
    """

    def __init__(self, cluster: Cluster, plan: Plan, client: str) -> None:
        s = plan.settings
        self._cluster, self._most = cluster, s.clients_per_round
        self._settings = s
        self._job = Job(
            client=client, run_config=as_config(s), num_partitions=len(plan.terms), code=own_identity().digest
        )
        self._free: list[Any] = []
        self._coming: dict[Any, Any] = {}
        self._running: dict[Any, tuple[Any, Pile]] = {}

    @cached_property
    def _need(self) -> dict[str, float]:
        """Processors and GPUs of a worker; a share of a GPU under ``device=auto`` if the cluster has one."""
        s = self._settings
        gpu = s.device == "cuda" or (s.device == "auto" and self._cluster.has_gpus())
        return {"cpus": s.client_cpus, "gpus": s.client_gpus if gpu else 0}

    def __len__(self) -> int:
        if not (self._free or self._coming or self._running):
            for worker in self._cluster.workers(self._most, **self._need):
                self._expect(worker)
        return len(self._free) + len(self._coming) + len(self._running)

    def answer(self, piles: Sequence[Pile], deadline: float | None) -> tuple[list[Message], Lost]:
        """The clients' replies, and the lost piles; each worker has one pile at a time.

        At the deadline (of ``time.monotonic``) a worker that still runs is ended; its pile has no replies. Raises
        RuntimeError for a worker that cannot run the job at all.
        """
        import ray

        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        until = None if left is None else time.time() + left - min(MARGIN_SECONDS, left / 10)
        waiting, sent = list(piles), dict[int, Any]()
        replies: list[Message] = []
        lost: Lost = []
        while (waiting and len(self)) or self._running:
            while waiting and self._free:
                self._send(waiting.pop(0), self._free.pop(0), until, sent)
            left = NEWS_SECONDS if deadline is None else min(NEWS_SECONDS, max(0.0, deadline - time.monotonic()))
            done, _ = ray.wait([*self._running, *self._coming], timeout=left)
            for ref in done:
                self._take(ref, replies, lost)
            if deadline is not None and time.monotonic() >= deadline:
                break
            if not (done or self._running or self._free):
                log(WARNING, "Ray has no free place for a worker yet: each needs %s", self._need)
        for worker, _ in self._running.values():
            self._replace(worker)
        self._running.clear()
        return replies, lost

    def _take(self, ref: Any, replies: list[Message], lost: Lost) -> None:
        """A worker is there, or has answered, or died."""
        import ray

        worker, pile = self._running.pop(ref, None) or (self._coming.pop(ref), None)
        try:
            answer = ray.get(ref)
        except ray.exceptions.RayTaskError as error:  # of the worker itself: no client's reaches it
            raise RuntimeError(f"a worker cannot run {self._job.client}: {error.cause}") from error
        except ray.exceptions.RayError as error:
            why = reason_of(RuntimeError(f"{type(error).__name__}: {error}"))
            log(WARNING, "a worker was lost with %d clients: %s", len(pile or ()), why)
            if pile is not None:
                lost.append((pile, why))
                self._replace(worker)
            elif not (self._free or self._coming or self._running):  # the next one would die at its start as well
                raise RuntimeError(f"no worker of Ray could start: {why}") from error
            return
        self._free.append(worker)
        if pile is not None:
            pickled, arrays, records = answer
            run_log.write(records)
            replies += unpack(pickled, arrays)

    def _send(self, pile: Pile, worker: Any, until: float | None, sent: dict[int, Any]) -> None:
        """Give a pile to a worker. ``sent``: large arrays that are in Ray's object store already, by identity."""
        import ray

        pickled, arrays = pack(pile)
        for data in arrays:
            if id(data) not in sent:
                sent[id(data)] = ray.put(data)
        answer = worker.answer.remote(self._job, until, pickled, *(sent[id(data)] for data in arrays))
        self._running[answer] = worker, pile

    def _expect(self, worker: Any) -> None:
        self._coming[worker.__ray_ready__.remote()] = worker

    def _replace(self, worker: Any) -> None:
        self._cluster.kill(worker)
        self._expect(self._cluster.worker(**self._need))

    def close(self) -> None:
        """Give idle workers back to the cluster, and end the others."""
        for worker in [*self._coming.values(), *(worker for worker, _ in self._running.values())]:
            self._cluster.kill(worker)
        if self._free:
            self._cluster.give_back(self._free, **self._need)
        self._free = []
