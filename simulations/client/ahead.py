"""Batches of small clients that one pass has drawn and summed, before the clients' own calls.

``pile_pass`` puts them here, and ``train`` takes them.
"""

from dataclasses import dataclass

from fedlsg.privacy import Entry
from fedlsg.simulations.client.client_account import GivenAccount
from fedlsg.simulations.client.process_state import Loaded
from fedlsg.training.local_training import Drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class Ahead:
    """The batch of one client.

    account: the client's account.
    entry: the charge that pays for the batch.
    drawn: the batch, and its clipped sum once it is computed.
    loaded: the weights and the frame of that sum.
    """

    account: GivenAccount
    entry: Entry
    drawn: Drawn
    loaded: Loaded


class Stash:
    """The batches that wait for their client's call, by client.

    They outlive an error in that call: a batch is drawn once for a charge.
    """

    def __init__(self) -> None:
        self._ahead: dict[int, Ahead] = {}

    def put(self, ahead: Ahead) -> None:
        """Keep the batch of a client, in place of an earlier one."""
        self._ahead[ahead.entry.client] = ahead

    def take(self, account: object, entry: Entry, loaded: Loaded) -> Drawn | None:
        """Remove and return the batch of this charge; None if it is still to be drawn.

        The charge must be the very record that the driver sent: an equal one of another run is
        another charge. A sum of other weights, or of another frame, is left out of the answer.
        """
        ahead = self._ahead.pop(entry.client, None)
        if ahead is None or ahead.entry != entry:
            return None
        if not isinstance(account, GivenAccount) or account.record is not ahead.account.record:
            return None
        return ahead.drawn if ahead.loaded is loaded else Drawn(positions=ahead.drawn.positions)

    def clear(self) -> None:
        """Forget all batches: a pass of other clients follows."""
        self._ahead.clear()


AHEAD = Stash()
"""The batches of this process."""
