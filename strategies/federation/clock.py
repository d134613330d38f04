"""The simulated clock of a federation: who is selected, who leaves, whose reply is late, and what time it is.

It works on the report of a round, which has the payload bytes of every message. The pruning round is before the clock
starts: every client is there, and none leaves or is late. Without a clock (``Participation.timed``) it only selects.
"""

from collections.abc import Collection, Set

from fedlsg.participation import Finish, Health, Participation, Traffic
from fedlsg.state import Phase, phase_of
from strategies.federation.report import RoundReport


class SimulatedClock:
    """``now``: seconds since the start of the run, at the end of the last round; ``health``: of real clients, who fail.

    A checkpoint keeps both.
    """

    def __init__(self, participation: Participation) -> None:
        self.participation, self.health = participation, Health()
        self.now = self._start = 0.0
        self._finish: Finish | None = None

    def select(self, round: int) -> list[int]:
        """The clients that a training round selects, ascending; it starts when they are there."""
        self._start, selected = self.participation.begin(round, self.now)
        return selected

    def open(self, report: RoundReport) -> Set[int]:
        """The clients that will leave a round before they train; they get its announcement, and never reply."""
        self._finish = None
        return self.participation.leaving(report.round) if self._runs(report) else frozenset()

    def late(self, report: RoundReport, replied: Collection[int]) -> list[int]:
        """Those who replied, trained and were charged, and whose values the round does not use; ascending."""
        if not self._runs(report):
            return []
        self._finish = self.participation.finish(report.round, report.asked, traffic_of(report))
        return sorted(set(replied) - self._finish.in_time)

    def close(self, report: RoundReport) -> None:
        """The round is over; enter the time into its report. What follows the values (a stage of a secure sum) counts
        for those who answered.
        """
        if not self._runs(report):
            return
        traffic = traffic_of(report)
        finish = self._finish or self.participation.finish(report.round, report.asked, traffic)
        after = [self.participation.arrival(client, traffic) for client in report.answered]
        report.simulated_clock = self.now = self._start + max([finish.seconds, *after])

    def _runs(self, report: RoundReport) -> bool:
        return self.participation.timed and phase_of(report.round) is Phase.TRAINING


def traffic_of(report: RoundReport) -> Traffic:
    """Payload bytes to and from each client so far."""
    found: dict[int, tuple[int, int]] = {}
    for message in report.sent:
        down, up = found.get(message.client, (0, 0))
        size = message.payload_bytes
        found[message.client] = (down + size, up) if message.direction == "down" else (down, up + size)
    return found
