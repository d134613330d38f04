"""Messages about a run whose weights or loss are not finite."""

from collections.abc import Mapping
from typing import Any

from simulations.settings.settings import Settings, values_of

RATES = ("learning_rate", "classifier_learning_rate", "norms_learning_rate", "local_learning_rate")


def explain(error: Exception, s: Settings) -> str:
    """One line: the round, what is not finite, and the likely cause: the largest learning rate."""
    rates = {name: value for name, value in values_of(s).items() if name in RATES}
    if s.local_steps == 1:
        rates.pop("local_learning_rate", None)  # only learning_rate scales a single step
    likely = max(rates, key=lambda name: rates[name])
    return f"{error}: {likely}={rates[likely]:g} is likely too large, start a new run with a smaller one"


def refuse_diverged(summary: Mapping[str, Any]) -> None:
    """Raise RuntimeError for a run that diverged: its weights are those of an earlier round."""
    if summary["diverged"]:
        raise RuntimeError(str(summary["stopped"]))
