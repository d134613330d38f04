"""Who is sent the carriers of a probe: clients that were not there at the refresh, or that derive others."""

from typing import Any

from strategies.federation.downlink import FullDownlink
from tests.strategies.small_federation import server_state, values_for

CHOICES: dict[str, Any] = {"rank": 3, "out_rank": 4, "probes": 12, "refresh_rounds": 3}


def downlink(method: str = "probe", **more: Any) -> FullDownlink:
    return FullDownlink(server_state(method, **(CHOICES | more)))


def a_round(down: FullDownlink, asked: list[int], answered: list[int] | None = None) -> dict[int, bool]:
    """A round; whether each client was sent the basis."""
    frame = down.state.frame()
    records = down.records(asked, frame)
    there = asked if answered is None else answered
    down.confirm(there)
    down.finish_round(frame, [values_for(frame, client, down.state.round + 1) for client in there], 1.0)
    return {client: "basis" in records[client] for client in asked}


def test_who_was_not_there_at_the_refresh_is_sent_the_carriers_once():
    down = downlink()
    assert a_round(down, [0, 1]) == {0: False, 1: False}
    assert a_round(down, [1, 2]) == {1: False, 2: True}
    assert a_round(down, [0, 2]) == {0: False, 2: False}
    assert a_round(down, [2, 3]) == {2: False, 3: False}  # a refresh: everybody derives it
    assert a_round(down, [0, 2]) == {0: True, 2: False}


def test_who_was_silent_may_not_hold_them():
    down = downlink()
    assert a_round(down, [0, 1], answered=[0]) == {0: False, 1: False}
    assert a_round(down, [0, 1], answered=[0]) == {0: False, 1: True}
    assert a_round(down, [0, 1]) == {0: False, 1: True}


def test_holders_are_in_the_checkpoint():
    first, second = downlink(), downlink()
    a_round(first, [0, 1])
    second.state.load_state_dict(first.state.state_dict())
    second.load_state_dict(first.state_dict())
    assert a_round(first, [1, 2]) == a_round(second, [1, 2]) == {1: False, 2: True}
    older = downlink()
    older.state.load_state_dict(first.state.state_dict())
    older.load_state_dict({})
    assert a_round(older, [1, 2]) == {1: True, 2: True}


def test_who_derives_others_is_sent_the_carriers_and_no_frame():
    down = downlink()
    frame = down.state.frame()
    assert set(down.records([0], frame)[0]) == {"weights"}
    down.confirm([0])  # its weights are right: that is what its reply shows
    assert set(down.records([0], frame, framed={0})[0]) == {"weights", "basis"}
    down.confirm([0])
    down.finish_round(frame, [values_for(frame, 0, 1)], 1.0)
    assert a_round(down, [0]) == {0: False}
