"""Columns of rounds.csv that not every run has: of a simulated clock, and of where a round's time went."""

from dataclasses import dataclass, fields

from strategies.federation.report import RoundReport


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What rounds.csv says more of a run with a simulated clock: seconds since the run's start, at the round's end, and
    the clients that left before they trained or came late, space-separated.
    """

    simulated_clock: float
    dropped: str
    late: str

    @classmethod
    def of(cls, report: RoundReport) -> "Simulated | None":
        """Those of a round; None without a clock."""
        if report.simulated_clock is None:
            return None
        dropped, late = (" ".join(map(str, who)) for who in (report.dropped, report.late))
        return cls(simulated_clock=round(report.simulated_clock, 6), dropped=dropped, late=late)

    @property
    def scalars(self) -> dict[str, float]:
        """Its numbers by TensorBoard's tag."""
        counts = {f"clients/{name}": float(len(getattr(self, name).split())) for name in ("dropped", "late")}
        return {"simulated_clock": self.simulated_clock, **counts}


@dataclass(frozen=True, kw_only=True)
class Times:
    """Where the server's time of a round went.

    ``training_seconds``: until the last reply was there, in which clients train; ``communication_seconds``: making and
    checking messages, which is the rest of ``seconds``; ``accounting_seconds``: ledgers and epsilon;
    ``evaluation_seconds``: the test split.
    """

    training_seconds: float
    communication_seconds: float
    accounting_seconds: float
    evaluation_seconds: float


SIMULATED = tuple(field.name for field in fields(Simulated))
TIMES = tuple(field.name for field in fields(Times))
"""Their names. Files of earlier versions have no times."""
