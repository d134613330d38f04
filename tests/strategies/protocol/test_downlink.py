"""The downlink: a replica that takes the server's steps is the server's state; nobody is sent more
than needed.
"""

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.method import largest
from fedlsg.payload import Codec, find_codec
from fedlsg.state.server_state import ServerState
from fedlsg.state.server_update import Step, StepError, extra_vectors, read_steps, replay, restart
from fedlsg.strategies.protocol.downlink import (
    Downlink,
    digest_of,
    read_missed,
    read_reference,
    read_state,
)
from fedlsg.strategies.protocol.sparse_downlink import SparseDownlink
from fedlsg.strategies.protocol.wire import array_bytes, read_weights
from tests.strategies.small_federation import StepsInMemory, server_state, values_for

METHODS: dict[str, dict[str, Any]] = {
    "momentum": {},
    "plain": {"momentum": 0.0},
    "adam": {"momentum": 0.0, "optimizer": "adam", "schedule": "cosine", "learning_rate": 0.01},
    "decay": {"weight_decay": 0.1, "norms_learning_rate": 0.2},
    "sparsified": {"sparsify_update": 0.5, "sparsity": 0.5},
    "ema": {"ema": 0.9},
    "rgp": {"method": "rgp", "rank": 2, "learning_rate": 0.3},
    "without residual": {"method": "rgp", "rank": 2, "residual": False},
    "averaged": {"method": "rgp", "rank": 2, "estimator": "averaged"},
    "rs": {"method": "rs", "sparsity": 0.7},
    "ranked": {
        "method": "rs",
        "sparsity": 0.7,
        "ranking": "gradients",
        "momentum": 0.5,
        "cooling": False,
    },
    "dpsgd": {"method": "dpsgd"},
    "synflow": {
        "method": "dp-ssgd",
        "prune": "synflow",
        "prune_rate": 0.4,
        "drop": "random",
        "drop_rate": 0.3,
    },
    "dp-powersgd": {"method": "dp-powersgd", "rank": 2},
    "probe": {
        "method": "probe",
        "rank": 3,
        "out_rank": 4,
        "sparsity": 0.2,
        "probes": 20,
        "refresh_rounds": 3,
    },
    "lsg-probe": {"method": "lsg-probe", "rank": 2, "probes": 20, "refresh_rounds": 2},
    "topk": {"method": "topk", "topk_rate": 0.1, "momentum": 0.5},
}


def state_of(name: str, **more: Any) -> ServerState:
    choices = METHODS[name] | more
    return server_state(choices.pop("method", "lsg"), **choices)


class Holder:
    """A client that keeps a replica and nothing else."""

    def __init__(self, name: str, coding: Codec) -> None:
        self.state, self.coding = state_of(name), coding
        self.state.average = None
        self.version, self.gone = 0, False

    def take(self, records: Any, round: int, updates: int) -> int:
        """Follow a message; returns its payload bytes."""
        content = RecordDict(records)
        reference = read_reference(content)
        assert reference is not None
        if "weights" in records:
            goes_on = reference.base == reference.version
            if goes_on:
                restart(
                    self.state,
                    read_weights(content),
                    read_state(content),
                    round=round,
                    updates=updates,
                )
            self.version, self.gone = reference.version if goes_on else self.version, not goes_on
            assert digest_of(read_weights(content)) == reference.digest
        else:
            assert not self.gone
            steps = read_missed(content, reference)
            for step in steps[self.version - reference.base :]:
                replay(self.state, step, self.coding)
            self.version = reference.version
            assert digest_of(self.state.weights) == reference.digest
        return array_bytes(content.values())


def downlink_of(
    state: ServerState, coding: Codec | None = None, clients: int = 3, per_round: int = 3
) -> SparseDownlink:
    store = StepsInMemory()
    return SparseDownlink(
        state,
        coding or find_codec("float32"),
        clients=clients,
        clients_per_round=per_round,
        store=store,
    )


def sent_by(state: ServerState, frame: Frame, client: int, round: int) -> Tensor:
    """What the server reads of a client: zeros where it chose its positions."""
    values = values_for(frame, client, round)
    most = state.method.compression.most(frame.size)
    if most is None:
        return values
    positions = largest(values, most)
    return torch.zeros_like(values).index_copy_(0, positions, values[positions])


def a_round(
    downlink: SparseDownlink, asked: Sequence[int] = (0, 1, 2), noise_std: float = 0.2
) -> dict[int, Any]:
    """Announce, take every client's values, step; returns the records."""
    state = downlink.state
    frame, round = state.frame(), state.round + 1
    records = downlink.records(asked, frame)
    downlink.confirm(asked)
    downlink.finish_round(
        frame, [sent_by(state, frame, client, round) for client in asked], noise_std
    )
    return dict(records)


def alike(a: ServerState, b: ServerState) -> bool:
    """Whether two states are the same to the bit, also in what a step does next."""
    vectors = [{name: v.tolist() for name, v in extra_vectors(state).items()} for state in (a, b)]
    rates = [[group["lr"] for group in state.optimizer.param_groups] for state in (a, b)]
    return (
        a.weights.equal(b.weights)
        and vectors[0] == vectors[1]
        and rates[0] == rates[1]
        and a.updates == b.updates
    )


@pytest.mark.thinned(15)
@pytest.mark.parametrize("name", METHODS)
def test_float32_changes_nothing_and_replicas_are_the_servers_state(name):
    state, plain = state_of(name), state_of(name)
    downlink, holder = downlink_of(state), Holder(name, find_codec("float32"))
    for round in range(1, 6):
        updates, before = state.updates, copy.deepcopy(state)
        frame = plain.frame()
        records = a_round(downlink)
        holder.take(records[0], round, updates)
        assert holder.gone or alike(holder.state, before)
        plain.finish_round(
            frame, [sent_by(state, frame, client, round) for client in range(3)], noise_std=0.2
        )
        assert alike(plain, state)
    assert holder.version == 4
    assert not holder.gone


@settings(max_examples=8)
@given(st.data())
def test_whoever_takes_part_when_is_sent_the_least(data):
    name = data.draw(st.sampled_from(["momentum", "plain", "ranked", "adam"]))
    coding = find_codec(data.draw(st.sampled_from(["float32", "int8"])))
    state = state_of(name)
    downlink, holders = downlink_of(state, coding, 3, 1), [Holder(name, coding) for _ in range(3)]
    for round in range(1, 8):
        asked = sorted(data.draw(st.sets(st.integers(0, 2), min_size=1)))
        answered = [client for client in asked if data.draw(st.integers(0, 3))]
        updates, frame = state.updates, state.frame()
        records = downlink.records(asked, frame)
        for client in asked:
            held, holder = downlink.held.get(client, 0), holders[client]
            sent = holder.take(records[client], round, updates)
            missed = [len(s) for s in list(downlink.store.values())[held:]]
            dense = 4 * 163 + (-(-163 // 8) if state.memory is not None else 0)
            whole = 4 * 163 + sum(
                v.numel() * v.element_size() for v in extra_vectors(state).values()
            )
            assert sent in ({dense, whole} if sum(missed) > dense else {sum(missed)})
        downlink.confirm(answered)
        downlink.finish_round(
            frame, [sent_by(state, frame, client, round) for client in answered], 0.2
        )


def some_step(round: int = 1, payload: bytes = b"abc") -> Step:
    return Step(kind=1, round=round, noise_std=0.25, payload=payload)


@given(st.binary(max_size=60), st.integers(0, 80), st.integers(0, 255))
def test_malformed_steps_are_refused(noise, cut, byte):
    good = bytearray(some_step().to_bytes() + some_step(2).to_bytes())
    bad = bytes(good[: cut % len(good)])
    if cut % len(good) not in (0, len(good) // 2):
        with pytest.raises(StepError):
            read_steps(bad)
    good[0] = byte
    if byte not in (1, 2):
        with pytest.raises(StepError):
            read_steps(bytes(good))
    with contextlib.suppress(StepError):
        read_steps(noise)


def test_steps_that_do_not_follow_are_refused():
    downlink, holder = downlink_of(state_of("momentum")), Holder("momentum", find_codec("float32"))
    a_round(downlink)
    a_round(downlink)
    first, second = (read_steps(step)[0] for step in downlink.store.values())
    with pytest.raises(ValueError, match="frame digest"):
        replay(holder.state, second, find_codec("float32"))
    holder = Holder("momentum", find_codec("float32"))
    replay(holder.state, first, find_codec("float32"))
    with pytest.raises(StepError, match="does not follow on round 1"):
        replay(holder.state, first, find_codec("float32"))
    with pytest.raises(ValueError, match="payload length"):
        replay(holder.state, second, find_codec("bfloat16"))


def test_the_grid_is_that_of_the_sums_noise():
    """Error variance a^2 / 12 of the noise in the sum, on the scale of the values; a sum of 30,000
    of them.
    """
    state = server_state("sgd", learning_rate=1.0, momentum=0.0)
    errors: list[Tensor] = []
    for round in range(200):
        downlink = downlink_of(
            state, find_codec("noise-floor").with_settings({"noise_floor_step": 1.0})
        )
        before, frame = state.weights.double(), state.frame()
        values = torch.randn(163, generator=torch.Generator().manual_seed(round))
        downlink.finish_round(frame, [values], 0.5)
        errors.append((before - state.weights.double()) * state.divisor - values)
    found = torch.cat(errors)
    assert abs(float(found.var()) / (0.25 / 12) - 1) < 0.02
    assert abs(float(found.mean())) < 3 * (0.25 / 12 / len(found)) ** 0.5


CHOICES: dict[str, Any] = {"rank": 3, "out_rank": 4, "probes": 12, "refresh_rounds": 3}


def downlink(method: str = "probe", **more: Any) -> Downlink:
    return Downlink(server_state(method, **(CHOICES | more)))


def play_round(
    down: Downlink, asked: list[int], answered: list[int] | None = None
) -> dict[int, bool]:
    """A round; whether each client was sent the basis."""
    frame = down.state.frame()
    records = down.records(asked, frame)
    there = asked if answered is None else answered
    down.confirm(there)
    down.finish_round(
        frame, [values_for(frame, client, down.state.round + 1) for client in there], 1.0
    )
    return {client: "basis" in records[client] for client in asked}


def test_who_was_not_there_at_the_refresh_is_sent_the_carriers_once():
    down = downlink()
    assert play_round(down, [0, 1]) == {0: False, 1: False}
    assert play_round(down, [1, 2]) == {1: False, 2: True}
    assert play_round(down, [0, 2]) == {0: False, 2: False}
    assert play_round(down, [2, 3]) == {2: False, 3: False}  # a refresh: everybody derives it
    assert play_round(down, [0, 2]) == {0: True, 2: False}


def test_who_was_silent_may_not_hold_them():
    down = downlink()
    assert play_round(down, [0, 1], answered=[0]) == {0: False, 1: False}
    assert play_round(down, [0, 1], answered=[0]) == {0: False, 1: True}
    assert play_round(down, [0, 1]) == {0: False, 1: True}


def test_holders_are_in_the_checkpoint():
    first, second = downlink(), downlink()
    play_round(first, [0, 1])
    second.state.load_state_dict(first.state.state_dict())
    second.load_state_dict(first.state_dict())
    assert play_round(first, [1, 2]) == play_round(second, [1, 2]) == {1: False, 2: True}


def test_who_derives_others_is_sent_the_carriers_and_no_frame():
    down = downlink()
    frame = down.state.frame()
    assert set(down.records([0], frame)[0]) == {"weights"}
    down.confirm([0])  # its weights are right: that is what its reply shows
    assert set(down.records([0], frame, framed={0})[0]) == {"weights", "basis"}
    down.confirm([0])
    down.finish_round(frame, [values_for(frame, 0, 1)], 1.0)
    assert play_round(down, [0]) == {0: False}
