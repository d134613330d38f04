"""A round under a secure sum as the server sees it: replies that are wrong, and clients that are
away.
"""

import pytest
from flwr.app import Context, Message

from fedlsg.simulations.client.client_app import app as honest
from fedlsg.simulations.client.node.refusals import FrameDiffersError
from fedlsg.strategies.protocol.nodes import Roster
from fedlsg.strategies.protocol.round_report import AWAY
from fedlsg.strategies.protocol.wire import FRAME_DIFFERS, TOO_SLOW, failure, update
from tests.simulations.support.runs import run_local
from tests.simulations.support.secure_clients import FIVE, charged_clients, run_five, stage_in


@pytest.mark.slow
def test_a_client_that_is_lost_costs_no_sum_that_others_can_make(tmp_path):
    """Clients take part in the sum of the clients of the public schedule alone: nobody is asked in
    another's place.
    """

    def bad(message: Message, context: Context) -> Message:
        lost = stage_in(message) is not None and int(context.node_config["partition-id"]) == 0
        return failure("stopped", TOO_SLOW, message) if lost else honest(message, context)

    settings = FIVE | {"clients": 8, "clients_per_round": 5, "rounds": 6, "record_updates": False}
    run = run_local(tmp_path / "run", client=bad, **settings)
    assert [len(row.answered.split()) for row in run.rows] == [
        5 - ("0" in row.asked.split()) for row in run.rows
    ]
    assert any("0" in row.asked.split() for row in run.rows[:-1])


def test_values_of_a_client_that_drew_nothing_are_refused_without_ending_the_run(tmp_path):
    """It stays charged: a client that sends values may have drawn for them."""

    def bad(message: Message, context: Context) -> Message:
        if stage_in(message) == "masked" and int(context.node_config["partition-id"]) == 2:
            return Message(update(b"garbage", 2), reply_to=message)
        return honest(message, context)

    run = run_five(tmp_path / "run", bad)
    assert (run.rows[0].answered, run.rows[0].rejected) == ("0 1 3 4", "2")
    assert charged_clients(run) == [0, 1, 2, 3, 4]
    assert len(run.payloads) == 4


def test_a_client_that_says_its_frame_differs_before_there_is_one_does_not_end_the_run(tmp_path):
    """Negative control of the resending: it has no delivery, so there is nothing to send again."""

    def bad(message: Message, context: Context) -> Message:
        if stage_in(message) == "keys" and int(context.node_config["partition-id"]) == 2:
            return failure(str(FrameDiffersError("planted")), FRAME_DIFFERS, message)
        return honest(message, context)

    run = run_five(tmp_path / "run", bad)
    assert (run.rows[0].answered, run.rows[0].rejected) == ("0 1 3 4", "2")


@pytest.mark.parametrize("there", [0, 5])
def test_a_client_that_is_away_is_named_and_takes_no_part(there, tmp_path, monkeypatch):
    """At the first stage, or from the second on: it is asked for nothing then, and not charged."""
    real, left = Roster.node, [there]

    def node(self: Roster, partition: int) -> int | None:
        left[0] -= 1
        return None if partition == 2 and left[0] < 0 else real(self, partition)

    monkeypatch.setattr(Roster, "node", node)
    run = run_five(tmp_path / "run")
    assert (run.rows[0].answered, run.rows[0].rejected) == ("0 1 3 4", "2")
    assert AWAY in run.rows[0].reasons
    assert charged_clients(run) == [0, 1, 3, 4]
