"""Passes of an engine that several small clients share (``client.pile_pass``), in limited time."""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from logging import WARNING
from typing import Any

from flwr.common.logger import log

from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.client.pile_pass import compute_ahead, passes
from fedlsg.simulations.client.piles import Pile, Task
from fedlsg.simulations.client.process_state import process
from fedlsg.simulations.client.virtual import call_until


class Passes:
    """The passes of one process.

    Clients of other ClientApps than ours are called one by one. After a pass that was stopped, ours
    are, too: one of its clients hangs, and will be stopped at its own limit.
    """

    def __init__(self, client: object, partitions: int, run_config: Mapping[str, Any]) -> None:
        self._is_on = client is app
        self._partitions, self._run_config = partitions, run_config

    def divide(self, pile: Pile) -> list[list[Task]]:
        """The pile in passes, in its order."""
        if not self._is_on:
            return [[task] for task in pile]
        return passes(pile, self._partitions, self._run_config)

    def compute(self, pile: Pile, limits: Sequence[float], until: float = math.inf) -> None:
        """Compute a pass within the longest of the clients' limits, and before ``until``."""
        if len(pile) < 2 or not self._is_on:
            return
        call = partial(compute_ahead, pile, self._partitions, self._run_config)
        _, stopped = call_until(min(time.time() + max(limits), until), call)
        if stopped:
            self._is_on = False
            process.cache_clear()  # its state is unknown
            log(
                WARNING,
                "a pass of %d clients was stopped after %.3g s: one by one now",
                len(pile),
                max(limits),
            )
