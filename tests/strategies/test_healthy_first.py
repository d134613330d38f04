"""Clients that are lost: others in their place, healthy ones first, and no client in more rounds
than planned.
"""

from collections import Counter
from itertools import pairwise

from fedlsg.config.selection import UNIFORM
from fedlsg.participation import Participation
from fedlsg.strategies.protocol.wire import TOO_SLOW, failure
from tests.strategies.small_federation import Federation, server_state

CLIENTS, PER_ROUND, ROUNDS = 6, 2, 12
LOST = (0, 1, 3)


def federation(*lost: int, code: int = TOO_SLOW, **settings: object) -> Federation:
    """Clients that are lost whenever they are asked."""
    return Federation(
        server_state(rounds=ROUNDS),
        clients=CLIENTS,
        answer=lambda p, message, honest: (
            failure("stopped", code, message) if p in lost else honest
        ),
        **({"clients_per_round": PER_ROUND} | settings),
    )


def drawn(round: int) -> list[int]:
    return UNIFORM.select(CLIENTS, PER_ROUND, round=round, seed=0)


def test_another_client_replies_in_place_of_one_that_is_lost():
    (first,) = drawn(1)[:1]
    one = federation(first)
    reports = one.run(ROUNDS)
    assert all(len(report.answered) == PER_ROUND for report in reports), (
        "each round has as many replies as planned"
    )
    assert len(reports[0].asked) == PER_ROUND + 1
    assert [report.round for report in reports] == list(range(1, ROUNDS + 1))
    waits = [report.round for report in reports if first in report.asked]
    assert len(waits) <= 4, "each costs the time of its limit"
    again = [b - a for a, b in pairwise(waits)]
    assert again == sorted(again)


def test_nobody_is_asked_in_more_rounds_than_the_noise_was_planned_for():
    planned = Participation(clients=CLIENTS, per_round=PER_ROUND, seed=0).most_selections(ROUNDS)
    reports = federation(*LOST).run(ROUNDS)
    counts = Counter(client for report in reports for client in report.asked)
    assert max(counts.values()) <= planned
    assert len(reports) == ROUNDS, (
        "nobody's own turns went to others: somebody is left in each round"
    )


def test_a_sum_gets_no_replacement_within_a_round_and_all_of_its_clients():
    """Of a sum of at least two, the noise is shared by those who began it."""
    reports = federation(0, min_survivors=2).run(ROUNDS)
    assert all(len(report.asked) == PER_ROUND for report in reports)
    assert reports[-1].asked != drawn(ROUNDS) or 0 not in drawn(ROUNDS)
