"""Passes that several small clients share, computed before their own calls
(``fedlsg.simulations.client.pile_pass``).
"""

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
    """Of one process.

    Clients of other ClientApps than ours are called one by one. After a pass that was stopped ours
    are, too: one of its clients hangs, and is stopped at its own limit next.
    """

    def __init__(self, client: object, partitions: int, run_config: Mapping[str, Any]) -> None:
        self._on = client is app
        self._partitions, self._run_config = partitions, run_config

    def of(self, pile: Pile) -> list[list[Task]]:
        """The pile in passes, in its order."""
        return (
            passes(pile, self._partitions, self._run_config)
            if self._on
            else [[task] for task in pile]
        )

    def compute(self, pile: Pile, limits: Sequence[float], until: float = math.inf) -> None:
        """Compute a pass within the longest of the clients' limits."""
        if len(pile) < 2 or not self._on:
            return
        call = partial(compute_ahead, pile, self._partitions, self._run_config)
        _, stopped = call_until(min(time.time() + max(limits), until), call)
        if stopped:
            self._on = False
            process.cache_clear()  # its state is unknown
            log(
                WARNING,
                "a pass of %d clients was stopped after %.3g s: one by one now",
                len(pile),
                max(limits),
            )
