"""A Ray worker of the engine ``ray``: it calls the clients of a pile, one after the other."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from logging import WARNING
from socket import gethostname
from typing import Any

from fedlsg.simulations.engines.process import kept_log

CLIENT = "fedlsg.simulations.client.client_app:app"
"""The ClientApp of fedlsg."""

Reply = tuple[bytes, list[bytes], list[tuple[int, str]], bool]
"""The answers in the two parts of ``pack``, the worker's log, and whether the worker has lost the
steps and carriers that it was sent earlier."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The part of a task that is common to all clients of a run.

    run: a random name of the run.
    client: the ClientApp, as ``module:attribute``.
    run_config: Flower's run config.
    num_partitions: number of clients.
    code: digest of the code that the driver runs.
    shipped: reference to a ``Shipment`` in Ray's object store; None if each machine has, or
        downloads, code and data.
    rows: digest of the training rows that each machine must have; not compared if empty.
    """

    run: str
    client: str
    run_config: Mapping[str, Any]
    num_partitions: int
    code: str
    shipped: Any = None
    rows: str = ""


class Worker:
    """The process that calls clients. It imports torch at once, while the driver plans."""

    def __init__(self) -> None:
        import_module(CLIENT.partition(":")[0])
        self._run, self._device = "", "cpu"
        self._sent_data = ExitStack()

    def answer(
        self,
        job: Job,
        until: float | None,
        limits: Sequence[float],
        pickled: bytes,
        *outside: bytes,
    ) -> Reply:
        """The answers to the tasks of a pile, in its order.

        until: time, in seconds since the epoch, at which the running client is stopped; clients
            after it lose the round. None for no limit.
        limits: seconds after which each client is stopped.
        pickled, outside: what ``pack`` made of (steps, carriers) that this process lacks, and the
            tasks.

        Raises RuntimeError if this machine has other code than the driver, or cannot load the data;
        ImportError if it lacks the ClientApp.
        """
        from flwr.common.logger import log

        from fedlsg.simulations.client.drawing import kept_draws
        from fedlsg.simulations.client.piles import pack, unpack
        from fedlsg.simulations.client.process_state import HISTORY, process
        from fedlsg.simulations.client.virtual import call_until, give_id, task_identity, too_slow
        from fedlsg.simulations.engines.shared_passes import Passes
        from fedlsg.strategies.protocol.proofs import own_identity

        if own_identity().digest != job.code:
            raise RuntimeError(
                f"{gethostname()} has {own_identity()}, other code than the driver: install the "
                "same version"
            )
        until = math.inf if until is None else until
        module, _, name = job.client.partition(":")
        client = getattr(import_module(module), name)
        with kept_log() as records, task_identity(), ExitStack() as stack:
            if job.run != self._run:
                self._begin(job)
                self._run = job.run
                self._passes = Passes(client, job.num_partitions, job.run_config)
            stack.enter_context(kept_draws(self._device))
            history, *tasks = unpack(pickled, outside)
            forgot = False
            HISTORY.add(*history)
            replies: list[Any] = []
            # by the first task of a pass
            passes = {id(pile[0]): pile for pile in self._passes.divide(tasks)}
            for i, (task, limit) in enumerate(zip(tasks, limits, strict=True)):
                pile = passes.get(id(task))
                if pile is not None:
                    self._passes.compute(pile, limits[i : i + len(pile)], until)
                end = min(time.time() + limit, until)
                reply, stopped = call_until(end, partial(_call, client, job, task))
                if stopped:
                    process.cache_clear()  # the state of a stopped client's process is unknown
                    HISTORY.forget()
                    forgot = True
                    log(
                        WARNING,
                        "stopped at the %s: %d of %d clients replied",
                        "round's deadline" if end == until else "limit of a client",
                        len(replies),
                        len(tasks),
                    )
                    if end == until:
                        break
                    reply = give_id(too_slow(task.message, limit))
                replies.append(reply)
            replies += [None] * (len(tasks) - len(replies))
            answers = [(reply, task.state) for reply, task in zip(replies, tasks, strict=True)]
            return *pack(answers), records, forgot

    def _begin(self, job: Job) -> None:
        """Load the data of a run, and forget the run before it."""
        import ray

        from fedlsg.simulations.client.client_app import simulated_settings
        from fedlsg.simulations.client.process_state import HISTORY, process, serving
        from fedlsg.simulations.planning.base.prepare import prepare
        from fedlsg.simulations.planning.earlier_runs.data_digest import digest_of_rows

        HISTORY.forget()
        self._sent_data.close()
        process.cache_clear()
        shipped = None if job.shipped is None else ray.get(job.shipped)
        if shipped is not None:
            shipped.unpack()
        settings = simulated_settings(job.run_config, job.num_partitions)
        try:
            if shipped is not None and shipped.workload is not None:
                self._sent_data.enter_context(serving(prepare(settings, loaded=shipped.workload)))
            base = process(settings).base
            self._device = base.device
        except (ValueError, OSError, ImportError) as error:
            raise RuntimeError(
                f"{gethostname()} cannot load the data: {error}. Put them there (FEDLSG_DATA in "
                "Ray's environment), or let the driver send them: data_from=driver"
            ) from None
        if job.rows and digest_of_rows(base) != job.rows:
            raise RuntimeError(
                f"{gethostname()} has other training rows than the driver: copy the driver's data "
                "there"
            )


def _call(client: Any, job: Job, task: Any) -> Any:
    """The reply of a client. Its errors must not reach the driver: their text may quote a row."""
    from fedlsg.simulations.client.virtual import OutOfTimeError, call_client, fail_client

    try:
        return call_client(client, task.message, job.num_partitions, job.run_config, task.state)
    except OutOfTimeError:
        raise
    except BaseException:
        return fail_client(task.message)
