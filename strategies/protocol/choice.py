"""The choice of clients for a round: the public draw; after failures, healthy clients.

Within a round, other clients may replace lost ones.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from functools import cached_property
from itertools import chain, islice

from fedlsg.state import ServerState
from fedlsg.strategies.protocol.round_report import RoundReport, SimulatedClock


class Choice:
    """The clients of the current round.

    replacements: clients that were asked in place of lost ones.
    """

    def __init__(self, clock: SimulatedClock, state: ServerState) -> None:
        self.replacements = list[int]()
        self._clock, self._state = clock, state

    def select(self, round: int, returned: Collection[int], *, whole: bool) -> list[int]:
        """The clients of a round, ascending.

        returned: clients whose node is back, and who count as healthy.
        whole: whether the round needs all of its clients (a sum), whatever their health.
        """
        self.replacements = []
        health = self._clock.health
        sample = self._clock.select(round)
        for client in returned:
            health.forgive(client)
        if not health.since:  # no client has failed yet
            return sample
        return self._healthy(round, len(sample), least=len(sample) if whole else 1)

    def replace(self, report: RoundReport) -> list[int]:
        """As many other clients without failures as were lost; they are entered in the report."""
        asked, failures = {*report.asked, *self.replacements}, self._clock.health.failures
        healthy = self._healthy(report.round, len(report.failed), least=0, excluded=asked)
        others = [client for client in healthy if failures.get(client, 0) == 0]
        report.asked = sorted([*report.asked, *others])
        self.replacements += others
        return others

    def _healthy(
        self, round: int, number: int, *, least: int, excluded: Collection[int] = ()
    ) -> list[int]:
        """``number`` healthy clients in the order of the public draw.

        Candidates are the clients that the draw selects, then those with a spare round.

        least: so many clients, whatever their health.
        but: clients that are left out.
        """
        conditions = self._clock.participation
        order = conditions.order(round)
        selected = list(islice(order, conditions.selected))
        others = (client for client in order if self._has_spare_round(client, round))
        candidates = (client for client in chain(selected, others) if client not in excluded)
        return self._clock.health.choose(candidates, number, round=round, least=least)

    def _has_spare_round(self, client: int, round: int) -> bool:
        """Whether the client's noise covers one more round than the draw still has for it."""
        turns, health = self._turns.get(client, []), self._clock.health
        before = bisect_left(turns, health.since or round) + health.asked.get(client, 0)
        later = len(turns) - bisect_right(turns, round)
        return before + later < self._most_rounds

    @cached_property
    def _turns(self) -> dict[int, list[int]]:
        """The rounds for which each client is drawn, ascending."""
        turns: dict[int, list[int]] = {}
        schedule = self._clock.participation.schedule(self._state.schedule.rounds)
        for round, selected in enumerate(schedule, 1):
            for client in selected:
                turns.setdefault(client, []).append(round)
        return turns

    @cached_property
    def _most_rounds(self) -> int:
        """The largest number of rounds of a client in the draw, for which the noise is planned."""
        return max(map(len, self._turns.values()))
