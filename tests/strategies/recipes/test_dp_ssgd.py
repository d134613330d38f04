"""DP-SSGD and ranked RS in the federation: the pruning round, and masks that only the server can
make.
"""

from typing import Any

import torch
from flwr.app import Message

from fedlsg.gradients.hooked_pass.supported import trainable
from fedlsg.payload.message import pack
from fedlsg.state.round_plan import PRUNING_ROUND
from fedlsg.state.server_state import ServerState
from fedlsg.strategies.protocol.round_report import RoundReport
from fedlsg.strategies.protocol.wire import read_round
from tests.strategies.small_federation import Federation, public_terms, server_state, values_for

SNIP = {"prune": "dp-snip", "prune_rate": 0.4, "drop": "none"}


class PrunedFederation(Federation):
    """A federation whose clients also take part in the pruning round; it notes who was asked for
    what.
    """

    def __init__(self, state: ServerState, clients: int = 3, **settings: Any) -> None:
        super().__init__(
            state, clients, terms=public_terms(clients, prune_noise_multiplier=3.0), **settings
        )
        self.pruned: list[RoundReport] = []
        self.strategy.on_pruned = self.pruned.append
        self.asked: list[tuple[int, int]] = []
        self.announced: list[Any] = []

    def payload(self, partition: int, message: Message) -> bytes:
        announced = read_round(message.content)
        self.asked.append((announced.round, partition))
        self.announced.append(announced)
        frame = self.state.frame(announced.round)
        values = values_for(frame, partition, announced.round)
        return pack(
            values, frame.indices, size=frame.size, round=announced.round, digest=frame.digest
        )


def zeros(state: ServerState) -> int:
    return sum(int((p == 0).sum()) for p in trainable(state.model).values() if p.ndim >= 2)


def test_the_pruning_round_asks_every_client_once_and_training_starts_from_what_it_left():
    state = server_state("dp-ssgd", **SNIP)
    federation = PrunedFederation(state, clients_per_round=2)
    reports = federation.run(3)
    assert [round for round, _ in federation.asked] == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert {partition for round, partition in federation.asked if round == 0} == {0, 1, 2}
    assert [report.round for report in reports] == [1, 2, 3]
    (report,) = federation.pruned
    assert (report.round, report.answered, report.rejected) == (0, [0, 1, 2], {})
    assert report.uplink_bytes > 3 * 4 * 150
    weights = 12 * 10 + 10 * 3
    assert zeros(state) == int(0.4 * weights)
    assert state.frame().kept == state.weights.numel() - zeros(state)
    first = federation.announced[0]
    assert (first.sample_rate, first.noise_multiplier) == (1.0, 3.0)
    later = federation.announced[3]
    assert (later.sample_rate, later.noise_multiplier) == (0.5, 1.0)


def test_the_pruned_weights_are_those_of_the_smallest_summed_saliency():
    """By hand: the clients' values added up, the 60 smallest magnitudes of all weights set to 0."""
    state = server_state("dp-ssgd", **SNIP)
    frame, start = state.frame(PRUNING_ROUND), state.weights.clone()
    PrunedFederation(state).run(1)
    total = sum(values_for(frame, partition, 0).double() for partition in range(3)).abs()
    wanted = frame.indices[total.argsort(stable=True)[:60]].sort().values
    assert torch.equal(((state.weights == 0) & (start != 0)).nonzero().squeeze(1), wanted)


def test_values_that_no_honest_client_sends_are_refused_in_the_pruning_round():
    """The bound is that of the pruning round: N C_prune of signal and its own noise, far below
    training's.
    """

    class Loud(PrunedFederation):
        def payload(self, partition: int, message: Message) -> bytes:
            announced = read_round(message.content)
            if announced.round or partition:
                return super().payload(partition, message)
            frame = self.state.frame(PRUNING_ROUND)
            values = torch.full((frame.kept,), 20.0)
            return pack(values, frame.indices, size=frame.size, round=0, digest=frame.digest)

    federation = Loud(server_state("dp-ssgd", **SNIP))
    federation.run(1)
    assert federation.pruned[0].answered == [1, 2]
    assert "norm" in federation.pruned[0].rejected[0]
