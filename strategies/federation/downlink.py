"""What is sent down to clients: the interface that the strategy uses, and the simplest kind, the whole model."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.state import ServerState
from strategies.federation.replica_wire import Records
from strategies.federation.wire import flat_record, frame_record, kept_record


class Downlink(Protocol):
    """What the strategy calls, in this order: records for the selected clients, confirmation, the round's update."""

    def records(
        self, selected: Sequence[int], frame: Frame, *, framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """Records of each selected client's message; ``framed`` get the frame whole, ``lost`` the model."""

    def confirm(self, partitions: Collection[int]) -> None:
        """The replies of these clients show that they hold what was announced."""

    def abandon_round(self) -> None:
        """No reply arrived: the records of this round will be needed once more."""

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """Apply the clients' values, see ``ServerState.finish_round``."""

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """Prune by the clients' values, see ``ServerState.prune``."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs of it, in plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""


class FullDownlink:
    """The dense weights to every client, in every round."""

    def __init__(self, state: ServerState) -> None:
        self.state = state

    def records(
        self, selected: Sequence[int], frame: Frame, *, framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """The same arrays for all; with the kept positions where the server's memory chose them."""
        common: Records = {"weights": flat_record(self.state.weights)}
        if ranked(self.state):
            common["kept"] = kept_record(frame)
        return {p: common | ({"frame": frame_record(frame)} if p in framed else {}) for p in selected}

    def confirm(self, partitions: Collection[int]) -> None:
        """Nothing is remembered."""

    def abandon_round(self) -> None:
        """Nothing is remembered."""

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """As ``ServerState.finish_round``."""
        self.state.finish_round(frame, updates, noise_std=noise_std)

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """As ``ServerState.prune``."""
        self.state.prune(frame, updates, num_examples=num_examples)

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


def ranked(state: ServerState) -> bool:
    """Whether the mask depends on the server's memory, so that clients cannot derive it from the weights."""
    return state.memory is not None
