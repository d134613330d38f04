"""What is sent down to clients: the interface that the strategy uses, and the simplest kind, the whole model."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.state import ServerState
from strategies.federation.basis_wire import Holders, Keep, keep_nowhere
from strategies.federation.replica_wire import Records
from strategies.federation.wire import flat_record, frame_record, kept_record


class Downlink(Protocol):
    """What the strategy calls, in this order: records for the selected clients, confirmation, the round's update.

    A kind that remembers nothing needs only ``records``, ``finish_round`` and ``prune``.
    """

    def records(
        self, selected: Sequence[int], frame: Frame, *, framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """Records of each selected client's message; ``framed`` get the frame whole, ``lost`` the model."""

    def confirm(self, partitions: Collection[int]) -> None:
        """The replies of these clients show that they hold what was announced."""
        return

    def abandon_round(self) -> None:
        """No reply arrived: the records of this round will be needed once more."""
        return

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """Apply the clients' values, see ``ServerState.finish_round``."""

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """Prune by the clients' values, see ``ServerState.prune``."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs of it, in plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""
        return


class FullDownlink(Downlink):
    """The dense weights to every client, in every round."""

    def __init__(self, state: ServerState, keep: Keep = keep_nowhere) -> None:
        self.state, self.holders = state, Holders(state, keep)

    def records(
        self, selected: Sequence[int], frame: Frame, *, framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """The same weights for all; with the kept positions where the server's memory chose them, and with the basis of
        the last refresh for those that were not there.
        """
        common: Records = {"weights": flat_record(self.state.weights)}
        if has_ranked_mask(self.state):
            common["kept"] = kept_record(frame)
        bases, whole = self.holders.records(selected, framed), framed_records(self.state, frame, framed)
        return {p: common | (whole if p in framed else {}) | bases.get(p, {}) for p in selected}

    def confirm(self, partitions: Collection[int]) -> None:
        self.holders.confirm(partitions)

    def state_dict(self) -> dict[str, Any]:
        return self.holders.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.holders.load_state_dict(state)

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        self.state.finish_round(frame, updates, noise_std=noise_std)

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        self.state.prune(frame, updates, num_examples=num_examples)


def framed_records(state: ServerState, frame: Frame, framed: Collection[int]) -> Records:
    """The frame for clients that derive another one; of probed carriers the positions, since the basis is sent, too."""
    if not framed:
        return {}
    if state.basis is None:
        return {"frame": frame_record(frame)}
    return {} if frame.kept == frame.size else {"frame": frame_record(frame, carriers=False)}


def has_ranked_mask(state: ServerState) -> bool:
    """Whether the mask depends on the server's memory, so that clients cannot derive it from the weights."""
    return state.memory is not None
