"""Batches that were drawn, and mostly summed, in one pass ahead of the clients' own calls
(``one_pass``).
"""

from dataclasses import dataclass

from fedlsg.privacy import Entry
from fedlsg.simulations.client.client_account import GivenAccount
from fedlsg.simulations.client.process_state import Loaded
from fedlsg.training.local_training import Drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class Ahead:
    """What was drawn for a charged ``entry`` of an account; its sum is in the weights and the frame
    ``loaded``.
    """

    account: GivenAccount
    entry: Entry
    drawn: Drawn
    loaded: Loaded


class Stash:
    """Of this process. It outlives the state of a process that was stopped: a batch is drawn once
    for a charge.
    """

    def __init__(self) -> None:
        self._ahead: dict[int, Ahead] = {}

    def put(self, ahead: Ahead) -> None:
        """Keep what was drawn for a client, in place of what was."""
        self._ahead[ahead.entry.client] = ahead

    def take(self, account: object, entry: Entry, loaded: Loaded) -> Drawn | None:
        """What was drawn for this charge, once; None if its batch is still to be drawn.

        The charge is the very record that the driver sent: an equal one of another run is another
        charge. A sum of other weights, or of another frame, is not used, its batch is.
        """
        ahead = self._ahead.pop(entry.client, None)
        known = (
            ahead is not None
            and isinstance(account, GivenAccount)
            and account.record is ahead.account.record
        )
        if ahead is None or not known or ahead.entry != entry:
            return None
        return ahead.drawn if ahead.loaded is loaded else Drawn(positions=ahead.drawn.positions)

    def clear(self) -> None:
        """Other clients follow."""
        self._ahead.clear()


AHEAD = Stash()
