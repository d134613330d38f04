"""A Ray worker of the engine ``ray``: it answers for the clients of a pile, one after the other, on one model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from logging import WARNING
from typing import Any

from simulations.engines import run_log

CLIENT = "simulations.client.app:app"

Reply = tuple[bytes, list[bytes], list[tuple[int, str]]]
"""What ``pack`` makes of the replies, and the worker's log."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the clients of a run have in common.

    ``client``: their ClientApp, as ``module:attribute``; ``code``: digest of the code that the driver runs.
    """

    client: str
    run_config: Mapping[str, Any]
    num_partitions: int
    code: str


class Worker:
    """Imports torch as soon as it is made, while the driver plans."""

    def __init__(self) -> None:
        import_module(CLIENT.partition(":")[0])

    def answer(self, job: Job, until: float | None, pickled: bytes, *left: bytes) -> Reply:
        """The replies to a pile.

        A client that still runs at ``until`` is stopped; the ones behind it lose the round, as in a queue. Raises
        RuntimeError if this machine has other code than the driver, ImportError if it lacks the ClientApp.
        """
        from flwr.common.logger import log

        from simulations.client.model import process
        from simulations.grids.deadline import OutOfTimeError, ending
        from simulations.grids.piles import pack, unpack
        from simulations.grids.virtual import call_client, fail_client, task_identity
        from strategies.federation.code_identity import own_identity

        if own_identity().digest != job.code:
            raise RuntimeError(
                f"this worker has {own_identity()}, other code than the driver: install the same version"
            )
        module, _, name = job.client.partition(":")
        client = getattr(import_module(module), name)
        with run_log.kept() as records, task_identity():
            questions: Sequence[Any] = unpack(pickled, left)
            replies: list[Any] = []
            try:
                with ending(until):
                    for question in questions:
                        try:
                            replies.append(call_client(client, question, job.num_partitions, job.run_config))
                        except OutOfTimeError:
                            raise
                        except BaseException:  # none may reach the driver: its text may quote a row
                            replies.append(fail_client(question))
            except OutOfTimeError:
                log(WARNING, "stopped at the round's deadline: %d of %d clients replied", len(replies), len(questions))
                process.cache_clear()  # the state of a stopped client's process is unknown
            return *pack([reply for reply in replies if reply is not None]), records
