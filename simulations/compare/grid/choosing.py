"""How the settings of a comparison were chosen by a search, and what that cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedlsg.simulations.report.words import epsilon_words


@dataclass(frozen=True, kw_only=True)
class Choosing:
    """A search before a comparison.

    epsilon, delta: of all trials together, for the rows that they trained on; 0 for public rows.
    trials: how many there were.
    rows: what the trials used, in words.
    untouched: from the label of a method with chosen settings to the label of its entry without a
        search, or to its own label if the search found nothing better.
    Raises ValueError for epsilon < 0, or a delta outside [0, 1).
    """

    epsilon: float
    delta: float
    trials: int
    rows: str
    untouched: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.epsilon >= 0 or not 0 <= self.delta < 1:
            raise ValueError(
                f"expected [choosing] of a grid file with epsilon >= 0 and 0 <= delta < 1, got "
                f"{self.epsilon} and {self.delta}"
            )

    @property
    def free(self) -> bool:
        """Whether it cost no privacy."""
        return self.epsilon == 0

    @property
    def words(self) -> list[str]:
        """What it cost, in sentences."""
        chosen = f"Settings were chosen by {self.trials} trials on {self.rows}"
        if self.free:
            return [f"{chosen}: choosing cost no privacy."]
        return [
            f"{chosen}: the epsilon of choosing is {epsilon_words(self.epsilon)} at delta "
            f"{self.delta:g} for the rows that the trials train on. No epsilon of a run includes "
            "that.",
            "If the held-out rows count as private, the epsilon of choosing is inf for them: their "
            "accuracies are computed without noise.",
        ]


def as_table(choosing: Choosing) -> dict[str, Any]:
    """The table ``choosing`` of a grid file; ``from_table`` is its inverse."""
    return vars(choosing) | {"untouched": dict(choosing.untouched)}


def from_table(table: object) -> Choosing:
    """From the table ``choosing`` of a grid file. Raises ValueError for anything else."""
    try:
        values = dict(table)  # type: ignore[call-overload]
        untouched = {str(key): str(name) for key, name in values.pop("untouched", {}).items()}
        return Choosing(
            epsilon=float(values.pop("epsilon")),
            delta=float(values.pop("delta")),
            trials=int(values.pop("trials")),
            rows=str(values.pop("rows")),
            untouched=untouched,
            **values,  # unknown keys: a TypeError
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            "expected [choosing] of a grid file with epsilon, delta, trials, rows and untouched, "
            f"got {table!r}"
        ) from error
