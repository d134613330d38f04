"""Which clients a round asks: those of the public draw; after failures, healthy ones, and others in
place of those that were lost within the round.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from functools import cached_property
from itertools import chain, islice

from fedlsg.state import ServerState
from fedlsg.strategies.protocol.round_report import RoundReport, SimulatedClock


class Choice:
    """The clients of the current round; ``replacements``: those that were asked in place of
    others.
    """

    def __init__(self, clock: SimulatedClock, state: ServerState) -> None:
        self.replacements = list[int]()
        self._clock, self._state = clock, state

    def select(self, round: int, returned: Collection[int], *, whole: bool) -> list[int]:
        """The clients of a round, ascending; ``returned``: those whose node is back, and who count
        as healthy.

        ``whole``: a round that needs all of its clients (a sum) gets as many, whatever their
        health.
        """
        health, drawn, self.replacements = self._clock.health, self._clock.select(round), []
        for client in returned:
            health.forgive(client)
        least = len(drawn) if whole else 1
        return self._healthy(round, len(drawn), least=least) if health.since else drawn

    def replace(self, report: RoundReport) -> list[int]:
        """As many other clients as were lost, who never failed in a row until now; they are entered
        in the report.
        """
        asked, failures = {*report.asked, *self.replacements}, self._clock.health.failures
        healthy = self._healthy(report.round, len(report.failed), least=0, but=asked)
        others = [client for client in healthy if failures.get(client, 0) == 0]
        report.asked = sorted([*report.asked, *others])
        self.replacements += others
        return others

    def _healthy(
        self, round: int, number: int, *, least: int, but: Collection[int] = ()
    ) -> list[int]:
        """The healthiest clients in the order of the public draw: those that it selects, and those
        with a spare round.

        ``least``: so many of them, whatever their health.
        """
        conditions = self._clock.participation
        order = conditions.order(round)
        selected = list(islice(order, conditions.selected))
        others = (client for client in order if self._has_spare_round(client, round))
        candidates = (client for client in chain(selected, others) if client not in but)
        return self._clock.health.choose(candidates, number, round=round, least=least)

    def _has_spare_round(self, client: int, round: int) -> bool:
        """Whether the client's noise covers one more round than those that the draw still has for
        it.
        """
        turns, health = self._turns.get(client, []), self._clock.health
        asked = bisect_left(turns, health.since or round) + health.asked.get(client, 0)
        return asked + len(turns) - bisect_right(turns, round) < self._most_rounds

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
        """How often the plan, and so the noise, expects a client to be asked at most."""
        return max(map(len, self._turns.values()))
