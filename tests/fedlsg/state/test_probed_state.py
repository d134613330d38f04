"""Carriers of probes and whole models as state: kept between refreshes, in checkpoints."""

import copy
from typing import Any

import pytest

from fedlsg.payload import find_codec
from fedlsg.state.public_state import PublicState
from fedlsg.state.round_plan import PRUNING_ROUND
from fedlsg.state.server_state import ServerState, load_weights
from fedlsg.state.server_update import extra_vectors, read_steps, replay, restart
from fedlsg.strategies.protocol.sparse_downlink import SparseDownlink
from fedlsg.training.optimizers import names
from tests.strategies.small_federation import StepsInMemory, model, server_state, values_for

CASES: dict[str, dict[str, Any]] = {
    "probe": {"rank": 3, "out_rank": 4, "sparsity": 0.3},
    "lsg-probe": {"rank": 2},
    "rgp-probe": {"rank": 2},
    "dp-kfc": {},
    "gep": {"rank": 3},
}
COMMON = {"probes": 15, "refresh_rounds": 3, "learning_rate": 0.5, "momentum": 0.5}


def state_of(name: str, **more: Any) -> ServerState:
    return server_state(name, **(COMMON | CASES[name] | more))


def a_round(state: ServerState, *, silent: bool = False) -> bytes:
    """A round, or one without a valid reply; returns the digest of its frame."""
    frame = state.frame()
    state.finish_round(frame, [] if silent else [values_for(frame, 0, state.round + 1)])
    return frame.digest


def test_a_client_derives_a_refresh_from_its_weights_alone():
    """At the refresh itself from weights, round and number of updates; in between it needs the
    basis of the refresh.
    """
    state = state_of("probe")
    client = PublicState.start(
        model(),
        state.method,
        state.schedule,
        seed=0,
        classifier="classifier",
        source=state.public.source,
    )
    for round in range(1, 6):
        load_weights(client.model, state.weights)
        if round in (1, 4):
            assert client.frame(round, updates=state.updates).digest == state.frame().digest
        else:
            with pytest.raises(ValueError, match=f"round {round} is no refresh"):
                client.frame(round, updates=state.updates)
            held = client.frame(round, updates=state.updates, basis=state.basis_of(round))
            assert held.digest == state.frame().digest
        a_round(state)


@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_goes_on_bit_for_bit(name, at):
    """In between two refreshes, right before one, and right after one."""
    unbroken, first, second = (state_of(name) for _ in range(3))
    for _ in range(at):
        a_round(unbroken)
        a_round(first)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(4):
        assert a_round(unbroken) == a_round(second)
    assert unbroken.weights.equal(second.weights)


@pytest.mark.parametrize("name", CASES)
def test_a_replica_goes_on_from_a_whole_model(name):
    """It is given the basis in between two refreshes, and makes it itself where the next round is
    one.
    """
    for rounds, given in ((1, True), (2, True), (3, False), (4, True)):
        server, replica = state_of(name), state_of(name)
        for _ in range(rounds):
            a_round(server)
        extra = extra_vectors(server)
        assert ("basis" in extra) is given
        restart(replica, server.weights, extra, round=server.next_round, updates=server.updates)
        for _ in range(4):
            assert a_round(server) == a_round(replica)
        assert server.weights.equal(replica.weights)


OTHERS = ("sgd", "Muon")
"""Optimizers with a case of their own, and Muon, which takes matrices alone."""


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"momentum": 0.0},
        {"rank": 3, "momentum": 0.0, "ema": 0.9},
        *(
            {"momentum": 0.0, "optimizer": name, "learning_rate": 0.01}
            for name in names()
            if name not in OTHERS
        ),
        {
            "momentum": 0.0,
            "optimizer": "RMSprop",
            "optimizer_options": "momentum=0.9, centered=true",
        },
        {
            "momentum": 0.0,
            "optimizer": "adam",
            "optimizer_options": "amsgrad=true",
            "weight_decay": 0.1,
        },
    ],
)
def test_a_replica_goes_on_from_a_whole_model_bit_for_bit(choices):
    server, replica = server_state(**choices), server_state(**choices)
    downlink = SparseDownlink(
        server, find_codec("float32"), clients=1, clients_per_round=1, store=StepsInMemory()
    )
    restart(replica, server.weights, extra_vectors(server), round=1, updates=0)
    for round in range(6):
        frame = server.frame()
        with server.evaluated():
            pass
        downlink.finish_round(frame, [values_for(frame, 0, round)], 1.0)
        if round < 2:
            restart(
                replica,
                server.weights,
                extra_vectors(server),
                round=server.next_round,
                updates=server.updates,
            )
        else:
            replay(replica, read_steps(downlink.steps[-1])[0], find_codec("float32"))
        assert replica.weights.equal(server.weights)


@pytest.mark.parametrize("round", [PRUNING_ROUND, 1])
def test_a_whole_model_in_the_pruning_round_leaves_the_pruning_to_come(round):
    state = server_state("dp-ssgd", prune="dp-snip", prune_rate=0.3, learning_rate=0.1)
    restart(state, state.weights, extra_vectors(state), round=round, updates=0)
    assert state.awaits_pruning is (round == PRUNING_ROUND)
    assert (state.round, state.next_round) == (0, round)
