"""Replicas that start from a whole model: in the memory that is there, before or after the pruning round."""

import pytest

from fedlsg.payload import find_codec
from fedlsg.state.round_plan import PRUNING_ROUND
from fedlsg.state.server_update import extra_vectors, read_steps, replay, restart
from fedlsg.training.optimizers import names
from strategies.federation.sparse_downlink import SparseDownlink
from tests.strategies.small_federation import StepsInMemory, server_state, values_for

OTHERS = ("sgd", "Muon")
"""Optimizers with a case of their own, and Muon, which takes matrices alone."""


@pytest.mark.parametrize(
    "choices",
    [
        {}, {"momentum": 0.0}, {"rank": 3, "momentum": 0.0, "ema": 0.9},
        *({"momentum": 0.0, "optimizer": name, "learning_rate": 0.01} for name in names() if name not in OTHERS),
        {"momentum": 0.0, "optimizer": "RMSprop", "optimizer_options": "momentum=0.9, centered=true"},
        {"momentum": 0.0, "optimizer": "adam", "optimizer_options": "amsgrad=true", "weight_decay": 0.1},
    ],
)  # fmt: skip
def test_a_replica_goes_on_from_a_whole_model_bit_for_bit(choices):
    server, replica = server_state(**choices), server_state(**choices)
    downlink = SparseDownlink(server, find_codec("float32"), clients=1, clients_per_round=1, store=StepsInMemory())
    restart(replica, server.weights, extra_vectors(server), round=1, updates=0)
    for round in range(6):
        frame = server.frame()
        with server.evaluated():
            pass
        downlink.finish_round(frame, [values_for(frame, 0, round)], 1.0)
        if round < 2:
            restart(replica, server.weights, extra_vectors(server), round=server.next_round, updates=server.updates)
        else:
            replay(replica, read_steps(downlink.steps[-1])[0], find_codec("float32"))
        assert replica.weights.equal(server.weights)


@pytest.mark.parametrize("round", [PRUNING_ROUND, 1])
def test_a_whole_model_in_the_pruning_round_leaves_the_pruning_to_come(round):
    state = server_state("dp-ssgd", prune="dp-snip", prune_rate=0.3, learning_rate=0.1)
    restart(state, state.weights, extra_vectors(state), round=round, updates=0)
    assert state.awaits_pruning is (round == PRUNING_ROUND)
    assert (state.round, state.next_round) == (0, round)
