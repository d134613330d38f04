"""The Ray workers of one run: they answer piles of tasks; a dead or hanging one is replaced.

A task is one client's work of a round, a pile is the tasks that a worker gets at once. A worker is
a process of Ray (an actor), which may be on another machine. It is first expected, then free, then
running, then free again:

    expected   started, but Ray has not found a place for it yet
    free       it waits for a pile
    running    it answers a pile

A reference (``ref``) is Ray's name for a future object: a worker that is expected, or an answer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
"""Time for an answer to arrive before the deadline; at most a tenth of the remaining time."""

NEWS_SECONDS = 30.0
"""Time without any progress after which the log says what the run waits for."""

OVERDUE_SECONDS = 10.0
"""Time that a worker may take beyond the limits of its clients before it is ended."""

FAILED_STARTS_ALLOWED = 4
"""Workers that die at their start before no more are started: the next one would die as well."""


class LostError(RuntimeError):
    """A pile was lost with its worker."""


Outcome = Sequence[Answer] | LostError | None
"""The answers to a pile; or its loss; or None if its worker still ran at the deadline."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A worker that answers a pile.

    worker: the actor of Ray.
    pile: the tasks.
    began: when they were sent, by ``time.monotonic``.
    allowed_seconds: the sum of the limits of its clients.
    """

    worker: Any
    pile: Pile
    began: float
    allowed_seconds: float


class Workers:
    """As many workers as a run can use at once; the first call waits until Ray has started.

    Ray repeats no task and restarts no worker: the caller decides whether to send a lost pile
    again. A worker that died or hangs is replaced; the others continue meanwhile.
    """

    def __init__(self, cluster: Cluster, plan: Plan, directory: RunDir, client: str) -> None:
        """The workers of a planned run. ``client``: the ClientApp, as ``module:attribute``."""
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
        # by reference: an expected worker, and the time of its start
        self._expected: dict[Any, tuple[Any, float]] = {}
        # free workers
        self._free: list[Any] = []
        # by reference of an answer: the worker and its pile
        self._running: dict[Any, Running] = {}
        # workers that have answered a pile, and so have loaded code and data
        self._has_answered = set[Any]()
        # by worker: the last step and the last basis that it was sent
        self._has_received: dict[Any, tuple[int, int]] = {}
        # failed starts in a row
        self._failed_starts = 0

    @cached_property  # a GPU that joins later is asked for by the next run
    def _need(self) -> dict[str, float]:
        """Processors and GPUs of a worker; ``device=auto`` takes a GPU if the cluster has one."""
        s = self._plan.settings
        gpu = s.device == "cuda" or (s.device == "auto" and self._cluster.has_gpus())
        return {"cpus": s.client_cpus, "gpus": s.client_gpus if gpu else 0}

    def __len__(self) -> int:
        """The number of workers; the first call starts them."""
        if not self._started:
            for worker in self._cluster.workers(self._most, **self._need):
                self._expect(worker)
            self._send_data()
        return self._started

    @property
    def _started(self) -> int:
        return len(self._expected) + len(self._free) + len(self._running)

    def answer(
        self, tasks: Pile, deadline: float | None, pace: Pace, sending: Callable[[Pile], None]
    ) -> Iterator[tuple[Pile, Outcome]]:
        """Divide tasks into piles and send them; yields each pile with its outcome, once known.

        A worker stops its clients at their limits. A worker that takes much longer than the limits
        of its pile is ended, and the pile is lost.

        tasks: none, to collect only the answers of running workers.
        deadline: by ``time.monotonic``; None for none. Workers that still run then are ended, and
            piles that wait are not sent.
        pace: the speed of earlier piles; it is brought up to date.
        sending: called before a pile is sent.

        Raises RuntimeError for a worker that cannot run the job at all, RayLostError if Ray is
        gone.
        """
        import ray

        until = _workers_deadline(deadline)
        sent = dict[int, tuple[bytes, Any]]()
        waiting = divide(tasks, len(self), pace) if tasks else []
        last_news = time.monotonic()
        while (waiting and len(self)) or self._running:
            if tasks and self._cluster.look():
                self._grow()
            while waiting and self._free:
                sending(waiting[0])
                self._send(waiting.pop(0), self._free.pop(0), until, sent)
            done, _ = ray.wait(
                [*self._running, *self._expected], timeout=self._seconds_to_wait(deadline)
            )
            for ref in done:
                yield from self._take(ref, pace)
            now = time.monotonic()
            hanging = [ref for ref, it in self._running.items() if now >= self._patience(it)]
            for ref in hanging:
                yield self._end_hanging(ref)
            self._replace_late()
            if deadline is not None and time.monotonic() >= deadline:
                break
            if done or self._running or self._free:
                last_news = time.monotonic()
            elif time.monotonic() - last_news >= NEWS_SECONDS:
                log(WARNING, "Ray has no free place for a worker yet: each needs %s", self._need)
                last_news = time.monotonic()
        for running in self._running.values():
            self._replace(running.worker) if tasks else self._cluster.kill(running.worker)
            yield running.pile, None
        self._running.clear()

    def _seconds_to_wait(self, deadline: float | None) -> float:
        """Seconds until the next check of cluster or worker, or until the deadline."""
        now = time.monotonic()
        times = [now + LOOK_SECONDS, *map(self._patience, self._running.values())]
        if deadline is not None:
            times.append(deadline)
        return max(0.0, min(times) - now)

    def _patience(self, running: Running) -> float:
        """The time, by ``time.monotonic``, from which a worker without an answer counts as hanging.

        Its first pile may take longer: the worker loads code and data before it.
        """
        seconds = running.allowed_seconds + OVERDUE_SECONDS
        if running.worker not in self._has_answered:
            seconds += START_SECONDS
        return running.began + seconds

    def _end_hanging(self, ref: Any) -> tuple[Pile, Outcome]:
        """Replace a worker that hangs; its pile is lost."""
        hanging = self._running.pop(ref)
        why = (
            f"a worker did not answer for {time.monotonic() - hanging.began:.0f} s, longer than "
            "client_timeout allows"
        )
        log(WARNING, "%s: it is replaced, with %d clients", why, len(hanging.pile))
        self._replace(hanging.worker)
        return hanging.pile, LostError(why)

    def _replace_late(self) -> None:
        """Start another worker for each that is late; a cluster with a queue may take longer."""
        if self._cluster.has_queue:
            return
        latest = time.monotonic() - START_SECONDS
        late = [ref for ref, (_, began) in self._expected.items() if began < latest]
        for ref in late:
            worker, _ = self._expected.pop(ref)
            why = f"none came in {START_SECONDS:.0f} s; each needs a place with {self._need}"
            self._start_again(worker, TimeoutError(why))

    def _start_again(self, worker: Any, error: Exception) -> None:
        """Start another worker for one that died at its start or did not start in time.

        After FAILED_STARTS_ALLOWED in a row no more are started. Raises RuntimeError if no worker
        is left.
        """
        log(WARNING, "a worker of Ray did not start: %s", error)
        self._failed_starts += 1
        if self._failed_starts < FAILED_STARTS_ALLOWED:
            self._replace(worker)
            return
        self._cluster.kill(worker)
        if not self._started:
            raise RuntimeError(f"no worker of Ray could start: {reason_of(error)}") from error

    def _take(self, ref: Any, pace: Pace) -> Iterator[tuple[Pile, Outcome]]:
        """Handle the object of a reference: an expected worker, an answer, or a worker's death."""
        import ray

        if ref in self._expected:
            self._take_worker(ref)
            return
        running = self._running.pop(ref)
        worker, pile = running.worker, running.pile
        try:
            answer = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            # an error of the worker itself: errors of clients are part of its answer
            raise RuntimeError(f"a worker cannot run {self._job.client}: {error.cause}") from error
        except ray.exceptions.RayError as error:
            why = reason_of(RuntimeError(f"{type(error).__name__}: {error}"))
            log(WARNING, "a worker was lost with %d clients: %s", len(pile), why)
            self._replace(worker)
            yield pile, LostError(why)
            return
        try:
            pickled, arrays, records, forgot = answer
            answers = checked_answers(unpack(pickled, arrays), pile)
            write_log(records)
        except Exception as error:  # a wrong answer of a worker must not end the run
            reason = f"a worker's answer to {len(pile)} clients cannot be read: {reason_of(error)}"
            log(WARNING, "%s: it is replaced", reason)
            self._replace(worker)
            yield pile, LostError(reason)
            return
        self._free.append(worker)
        self._has_answered.add(worker)
        if forgot:
            self._has_received.pop(worker)
        pace.add(sum(task.work for task in pile), time.monotonic() - running.began)
        yield pile, answers

    def _take_worker(self, ref: Any) -> None:
        """Take an expected worker that is ready; replace it if it died at its start."""
        import ray

        worker, _ = self._expected.pop(ref)
        try:
            ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise RuntimeError(f"a worker cannot run {self._job.client}: {error.cause}") from error
        except ray.exceptions.RayError as error:
            self._start_again(worker, RuntimeError(f"{type(error).__name__}: {error}"))
            return
        self._free.append(worker)
        self._failed_starts = 0

    def _send(
        self, pile: Pile, worker: Any, until: float | None, sent: dict[int, tuple[bytes, Any]]
    ) -> None:
        """Send a pile to a worker, with the steps of the server that the worker has not received.

        until: the time, by ``time.time``, at which its clients must be done; None for none.
        sent: arrays in Ray's object store, with their references, by ``id``. The arrays themselves
            are kept here, because the id of a freed array is used again.
        """
        import ray

        last_step, last_basis = self._has_received.get(worker, (0, 0))
        steps = self._directory.steps_after(last_step)
        bases = self._directory.basis_after(last_basis)
        self._has_received[worker] = (
            max([last_step, *(step for step, _ in steps)]),
            bases[0][0] if bases else last_basis,
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
        self._running[answer] = Running(
            worker=worker, pile=pile, began=time.monotonic(), allowed_seconds=sum(limits)
        )

    def _send_data(self) -> None:
        """Put code and data into Ray's object store that workers cannot read themselves.

        Workers on other machines that read the data themselves get the digest of the rows.
        """
        shipped = shipment(self._plan)
        if shipped is not None:
            self._job = replace(self._job, shipped=put(shipped))
        if self._cluster.is_foreign and (shipped is None or shipped.workload is None):
            self._job = replace(self._job, rows=self._directory.read_data_digest())

    def _expect(self, worker: Any) -> None:
        """Note that a worker was started."""
        self._expected[worker.__ray_ready__.remote()] = worker, time.monotonic()

    def _grow(self) -> None:
        """Start workers on machines that have joined the cluster, if the run can use more."""
        if (
            not self._cluster.is_foreign
            or self._started >= self._most
            or self._failed_starts >= FAILED_STARTS_ALLOWED
        ):
            return
        more = min(self._most, fitting(**self._need)) - self._started
        for _ in range(more):
            self._expect(self._cluster.worker(**self._need))
        if more > 0:
            log(INFO, "the cluster has grown: %d more workers", more)

    def _replace(self, worker: Any) -> None:
        """End a worker and start another one."""
        self._cluster.kill(worker)
        self._has_received.pop(worker, None)
        self._has_answered.discard(worker)
        self._expect(self._cluster.worker(**self._need))

    def close(self) -> None:
        """Give idle workers back to the cluster, and end the others."""
        expected = [worker for worker, _ in self._expected.values()]
        for worker in [*expected, *(running.worker for running in self._running.values())]:
            self._cluster.kill(worker)
        if self._free:
            self._cluster.give_back(self._free, **self._need)
        self._free = []
        self._expected = {}
        self._running = {}


def _workers_deadline(deadline: float | None) -> float | None:
    """The time at which clients must be done, so that their answer arrives before the deadline.

    ``deadline`` is by ``time.monotonic``. The result is by ``time.time``, which other machines
    share.
    """
    if deadline is None:
        return None
    seconds_left = max(0.0, deadline - time.monotonic())
    return time.time() + seconds_left - min(MARGIN_SECONDS, seconds_left / 10)
