"""The Ray workers of one run: they answer piles of tasks, and a dead or hanging one is replaced."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from logging import INFO, WARNING
from typing import Any
from uuid import uuid4

from flwr.common.logger import log

from fedlsg.simulations.client.piles import Answer, Pace, Pile, divide, pack, unpack
from fedlsg.simulations.client.virtual import limit_of
from fedlsg.simulations.engines.accounts import checked_answers
from fedlsg.simulations.engines.cluster import LOOK_SECONDS, START_SECONDS, Cluster, fitting
from fedlsg.simulations.engines.process import write_log
from fedlsg.simulations.engines.ray_worker import Job
from fedlsg.simulations.engines.shipping import put, shipment
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.settings.settings import as_config
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.protocol.expectations import reason_of
from fedlsg.strategies.protocol.proofs import own_identity

MARGIN_SECONDS = 10.0
"""Time for the way back before the deadline; at most a tenth of the time that is left."""

NEWS_SECONDS = 30.0
"""After so long without any news the log says what is waited for."""

OVERDUE_SECONDS = 10.0
"""How much longer than the limits of its clients a worker may take before it is ended."""

FAILED_STARTS_ALLOWED = 4
"""Workers that die at their start before no more are started: the next one would die as well."""


class LostError(RuntimeError):
    """A pile was lost with its worker."""


Outcome = Sequence[Answer] | LostError | None
"""What became of a pile: an answer to each task, or lost, or None if its worker still ran at the
deadline.
"""


class Workers:
    """As many workers as a run can use at once; the first call waits until Ray has started.

    Ray repeats no task and restarts no worker: what became of a pile is for the caller to decide. A
    worker that died or hangs is replaced; the others go on while its replacement looks for a place.
    """

    def __init__(self, cluster: Cluster, plan: Plan, directory: RunDir, client: str) -> None:
        s = plan.settings
        self._cluster, self._directory = cluster, directory
        self._most = min(s.clients_per_round, s.workers or s.clients_per_round)
        self._plan = plan
        self._job = Job(
            run=uuid4().hex,
            client=client,
            run_config=as_config(s),
            num_partitions=len(plan.terms),
            code=own_identity().digest,
        )
        self._free: list[Any] = []
        self._coming: dict[Any, tuple[Any, float]] = {}
        self._running: dict[Any, tuple[Any, Pile, float]] = {}
        self._knows: dict[Any, tuple[int, int]] = {}
        self._failed_starts = 0
        self._served = set[Any]()
        self._allowed: dict[Any, float] = {}

    @cached_property  # a GPU that joins later is asked for by the next run
    def _need(self) -> dict[str, float]:
        """Processors and GPUs of a worker; a share of a GPU under ``device=auto`` if the cluster
        has one.
        """
        s = self._plan.settings
        gpu = s.device == "cuda" or (s.device == "auto" and self._cluster.has_gpus())
        return {"cpus": s.client_cpus, "gpus": s.client_gpus if gpu else 0}

    def __len__(self) -> int:
        if not self._known:
            for worker in self._cluster.workers(self._most, **self._need):
                self._expect(worker)
            self._send_data()
        return self._known

    @property
    def _known(self) -> int:
        return len(self._free) + len(self._coming) + len(self._running)

    def answer(
        self, tasks: Pile, deadline: float | None, pace: Pace, sending: Callable[[Pile], None]
    ) -> Iterator[tuple[Pile, Outcome]]:
        """Each pile of the tasks that was sent, as soon as its outcome is known; a worker has one
        pile at a time.

        ``sending`` is called before a pile leaves. A worker stops its clients at their limits; one
        that takes much longer than those of its pile is ended, and the pile is lost. At the
        deadline (of ``time.monotonic``) a worker that still runs is ended, and what waits is not
        sent. Raises RuntimeError for a worker that cannot run the job at all, RayLostError if Ray
        is gone.
        """
        import ray

        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        until = None if left is None else time.time() + left - min(MARGIN_SECONDS, left / 10)
        sent = dict[int, tuple[bytes, Any]]()
        self._allowed.clear()
        waiting = divide(tasks, len(self), pace) if tasks else []
        heard = time.monotonic()
        while (waiting and len(self)) or self._running:
            if tasks and self._cluster.look():
                self._grow()
            while waiting and self._free:
                sending(waiting[0])
                self._send(waiting.pop(0), self._free.pop(0), until, sent)
            wakes = [time.monotonic() + LOOK_SECONDS, *map(self._patience, self._running)]
            left = max(
                0.0, min([*wakes, *([] if deadline is None else [deadline])]) - time.monotonic()
            )
            done, _ = ray.wait([*self._running, *self._coming], timeout=left)
            for ref in done:
                yield from self._take(ref, pace)
            for ref in [ref for ref in self._running if time.monotonic() >= self._patience(ref)]:
                yield self._end_hanging(ref)
            self._end_late()
            if deadline is not None and time.monotonic() >= deadline:
                break
            if done or self._running or self._free:
                heard = time.monotonic()
            elif time.monotonic() - heard >= NEWS_SECONDS:
                log(WARNING, "Ray has no free place for a worker yet: each needs %s", self._need)
                heard = time.monotonic()
        for worker, pile, _ in self._running.values():
            self._replace(worker) if tasks else self._cluster.kill(worker)
            yield pile, None
        self._running.clear()

    def _patience(self, ref: Any) -> float:
        """When (of ``time.monotonic``) a worker is ended that has not stopped its clients at their
        limits itself.
        """
        worker, _, began = self._running[ref]
        return (
            began
            + (0.0 if worker in self._served else START_SECONDS)
            + OVERDUE_SECONDS
            + self._allowed[ref]
        )

    def _end_hanging(self, ref: Any) -> tuple[Pile, Outcome]:
        worker, pile, began = self._running.pop(ref)
        why = (
            f"a worker did not answer for {time.monotonic() - began:.0f} s, longer than "
            "client_timeout allows"
        )
        log(WARNING, "%s: it is replaced, with %d clients", why, len(pile))
        self._replace(worker)
        return pile, LostError(why)

    def _end_late(self) -> None:
        """Another worker in place of one that has not come."""
        latest = time.monotonic() - START_SECONDS
        late = [ref for ref, (_, began) in self._coming.items() if began < latest]
        for ref in () if self._cluster.has_queue else late:
            worker, _ = self._coming.pop(ref)
            why = f"none came in {START_SECONDS:.0f} s; each needs a place with {self._need}"
            self._start_again(worker, TimeoutError(why))

    def _start_again(self, worker: Any, error: Exception) -> None:
        """Another worker in place of one that died or did not come at its start, a few times.

        Raises RuntimeError if no worker is left.
        """
        log(WARNING, "a worker of Ray did not start: %s", error)
        self._failed_starts += 1
        if self._failed_starts < FAILED_STARTS_ALLOWED:
            self._replace(worker)
            return
        self._cluster.kill(worker)
        if not self._known:
            raise RuntimeError(f"no worker of Ray could start: {reason_of(error)}") from error

    def _take(self, ref: Any, pace: Pace) -> Iterator[tuple[Pile, Outcome]]:
        """A worker is there, or has answered, or died."""
        import ray

        worker, pile, began = self._running.pop(ref, None) or (self._coming.pop(ref)[0], None, 0.0)
        try:
            answer = ray.get(ref)
        except ray.exceptions.RayTaskError as error:  # of the worker itself: no client's reaches it
            raise RuntimeError(f"a worker cannot run {self._job.client}: {error.cause}") from error
        except ray.exceptions.RayError as error:
            why = RuntimeError(f"{type(error).__name__}: {error}")
            if pile is None:
                self._start_again(worker, why)
                return
            log(WARNING, "a worker was lost with %d clients: %s", len(pile), reason_of(why))
            self._replace(worker)
            yield pile, LostError(reason_of(why))
            return
        if pile is None:
            self._free.append(worker)
            self._failed_starts = 0
            return
        try:
            pickled, arrays, records, forgot = answer
            answers = checked_answers(unpack(pickled, arrays), pile)
            write_log(records)
        except Exception as error:  # whatever a worker sends must not end the run
            reason = f"a worker's answer to {len(pile)} clients cannot be read: {reason_of(error)}"
            log(WARNING, "%s: it is replaced", reason)
            self._replace(worker)
            yield pile, LostError(reason)
            return
        self._free.append(worker)
        self._served.add(worker)
        if forgot:
            self._knows.pop(worker)
        pace.took(sum(task.work for task in pile), time.monotonic() - began)
        yield pile, answers

    def _send(
        self, pile: Pile, worker: Any, until: float | None, sent: dict[int, tuple[bytes, Any]]
    ) -> None:
        """Give a pile to a worker.

        ``sent``: large arrays that are in Ray's object store already, by identity; it keeps them,
        for another array would get the identity of a freed one.
        """
        import ray

        version, probed = self._knows.get(worker, (0, 0))
        steps, bases = self._directory.steps_after(version), self._directory.basis_after(probed)
        self._knows[worker] = (
            max([version, *(step for step, _ in steps)]),
            bases[0][0] if bases else probed,
        )
        pickled, arrays = pack([(steps, bases), *pile])
        for data in arrays:
            if id(data) not in sent:
                sent[id(data)] = data, ray.put(data)
        most = self._plan.settings.client_timeout
        limits = [limit_of(task.message, most) for task in pile]
        answer = worker.answer.remote(
            self._job, until, limits, pickled, *(sent[id(data)][1] for data in arrays)
        )
        self._running[answer], self._allowed[answer] = (worker, pile, time.monotonic()), sum(limits)

    def _send_data(self) -> None:
        """Put code and data that the driver is to send into Ray's object store; or the data's
        digest.
        """
        shipped = shipment(self._plan)
        if shipped is not None:
            self._job = replace(self._job, shipped=put(shipped))
        if self._cluster.is_foreign and (shipped is None or shipped.workload is None):
            self._job = replace(self._job, rows=self._directory.read_data_digest())

    def _expect(self, worker: Any) -> None:
        self._coming[worker.__ray_ready__.remote()] = worker, time.monotonic()

    def _grow(self) -> None:
        """Start workers on machines that have joined the cluster since, up to as many as the run
        can use.
        """
        if (
            not self._cluster.is_foreign
            or self._known >= self._most
            or self._failed_starts >= FAILED_STARTS_ALLOWED
        ):
            return
        more = min(self._most, fitting(**self._need)) - self._known
        for _ in range(more):
            self._expect(self._cluster.worker(**self._need))
        if more > 0:
            log(INFO, "the cluster has grown: %d more workers", more)

    def _replace(self, worker: Any) -> None:
        self._cluster.kill(worker)
        self._knows.pop(worker, None)
        self._served.discard(worker)
        self._expect(self._cluster.worker(**self._need))

    def close(self) -> None:
        """Give idle workers back to the cluster, and end the others."""
        for worker in [
            *(worker for worker, _ in self._coming.values()),
            *(worker for worker, _, _ in self._running.values()),
        ]:
            self._cluster.kill(worker)
        if self._free:
            self._cluster.give_back(self._free, **self._need)
        self._free, self._coming, self._running = [], {}, {}
