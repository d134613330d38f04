"""The Ray workers of one run: they answer piles of messages, and a dead or hanging one is replaced."""

import time
from collections.abc import Iterable, Sequence
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

Lost = list[tuple[Pile, str]]
"""Piles whose worker died, each with the reason."""


class Workers:
    """As many workers as a run can use at once; the first call waits until Ray has started.

    Ray repeats no task and restarts no worker: what became of a pile is for the caller to decide.
    """

    def __init__(self, cluster: Cluster, plan: Plan, client: str) -> None:
        s = plan.settings
        self._cluster, self._most = cluster, s.clients_per_round
        self._need = {"cpus": s.client_cpus, "gpus": s.client_gpus if s.device == "cuda" else 0}
        self._job = Job(
            client=client, run_config=as_config(s), num_partitions=len(plan.terms), code=own_identity().digest
        )
        self._workers: list[Any] = []
        self._running: dict[Any, tuple[int, Pile]] = {}

    def __len__(self) -> int:
        if not self._workers:
            self._workers = self._cluster.workers(self._most, **self._need)
        return len(self._workers)

    def answer(self, piles: Sequence[Pile], deadline: float | None) -> tuple[list[Message], Lost]:
        """The clients' replies, and the lost piles; each worker has one pile at a time.

        At the deadline (of ``time.monotonic``) a worker that still runs is ended; its pile has no replies. Raises
        RuntimeError for a worker that cannot run the job at all.
        """
        import ray

        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        until = None if left is None else time.time() + left - min(MARGIN_SECONDS, left / 10)
        waiting, free = list(piles), list(range(len(self)))
        sent: dict[int, Any] = {}
        replies: list[Message] = []
        lost: Lost = []
        while waiting or self._running:
            while waiting and free:
                self._send(waiting.pop(0), free.pop(0), until, sent)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            done, _ = ray.wait(list(self._running), timeout=left)
            for answer in done:
                place, pile = self._running.pop(answer)
                free.append(place)
                try:
                    pickled, arrays, records = ray.get(answer)
                except ray.exceptions.RayTaskError as error:  # of the worker itself: no client's reaches it
                    raise RuntimeError(f"a worker cannot run {self._job.client}: {error.cause}") from error
                except ray.exceptions.RayError as error:
                    why = reason_of(RuntimeError(f"{type(error).__name__}: {error}"))
                    log(WARNING, "a worker was lost with %d clients: %s", len(pile), why)
                    lost.append((pile, why))
                    self._replace([place])
                else:
                    run_log.write(records)
                    replies += unpack(pickled, arrays)
            if not done:
                self._replace(place for place, _ in self._running.values())
                self._running.clear()
                break
        return replies, lost

    def _send(self, pile: Pile, place: int, until: float | None, sent: dict[int, Any]) -> None:
        """Give a pile to a worker. ``sent``: large arrays that are in Ray's object store already, by identity."""
        import ray

        pickled, arrays = pack(pile)
        for data in arrays:
            if id(data) not in sent:
                sent[id(data)] = ray.put(data)
        answer = self._workers[place].answer.remote(self._job, until, pickled, *(sent[id(data)] for data in arrays))
        self._running[answer] = place, pile

    def _replace(self, places: Iterable[int]) -> None:
        for place in places:
            self._cluster.kill(self._workers[place])
            self._workers[place] = self._cluster.worker(**self._need)

    def close(self) -> None:
        """Give idle workers back to the cluster, and end the others."""
        busy = {place for place, _ in self._running.values()}
        for place in busy:
            self._cluster.kill(self._workers[place])
        self._cluster.give_back([w for place, w in enumerate(self._workers) if place not in busy], **self._need)
        self._workers = []
