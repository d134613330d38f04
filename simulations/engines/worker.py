"""A Ray worker of the engine ``ray``: it answers for the clients of a pile, one after the other, on one model."""

from importlib import import_module
from logging import WARNING
from typing import Any

from simulations.engines import run_log

CLIENT = "simulations.client.app:app"

Reply = tuple[bytes, list[bytes], list[tuple[int, str]]]
"""What ``pack`` makes of the replies, and the worker's log."""


class Worker:
    """Imports torch as soon as it is made, while the driver plans; ``begin`` names the run."""

    def __init__(self) -> None:
        import_module(CLIENT.partition(":")[0])

    def begin(self, client: str, run_config: dict[str, Any], num_partitions: int) -> None:
        """Serve a run's clients with the ClientApp at ``client``, ``module:attribute``."""
        module, _, name = client.partition(":")
        self.client = getattr(import_module(module), name)
        self.run_config, self.num_partitions = run_config, num_partitions

    def answer(self, until: float | None, pickled: bytes, *left: bytes) -> Reply:
        """The replies to a pile.

        A client that still runs at ``until`` is stopped; the ones behind it lose the round, as in a queue.
        """
        from flwr.common.logger import log

        from simulations.client.model import process
        from simulations.grids.deadline import OutOfTimeError, ending
        from simulations.grids.piles import pack, unpack
        from simulations.grids.virtual import call_client, task_identity

        with run_log.kept() as records, task_identity():
            questions = unpack(pickled, left)
            replies: list[Any] = []
            try:
                with ending(until):
                    for question in questions:
                        replies.append(call_client(self.client, question, self.num_partitions, self.run_config))
            except OutOfTimeError:
                log(WARNING, "stopped at the round's deadline: %d of %d clients replied", len(replies), len(questions))
                process.cache_clear()  # the state of a stopped client's process is unknown
            return *pack([reply for reply in replies if reply is not None]), records
