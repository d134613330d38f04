"""Runs that diverged: the likely cause, and the refusal of their weights."""

from collections.abc import Mapping
from typing import Any

from fedlsg.simulations.settings.settings import Settings, values_of

RATES = ("learning_rate", "classifier_learning_rate", "norms_learning_rate", "local_learning_rate")
"""Settings that scale a step."""


def explain(error: Exception, settings: Settings) -> str:
    """The error's message with the likely cause of the divergence: the largest learning rate."""
    rates = {name: value for name, value in values_of(settings).items() if name in RATES}
    if settings.local_steps == 1:
        rates.pop("local_learning_rate", None)  # only learning_rate scales a single step
    likely = max(rates, key=rates.__getitem__)
    return (
        f"{error}: {likely}={rates[likely]:g} is likely too large, start a new run with a smaller "
        "one"
    )


def refuse_diverged(summary: Mapping[str, Any]) -> None:
    """Raise RuntimeError for a run that diverged: its weights are those of an earlier round."""
    if summary["diverged"]:
        raise RuntimeError(str(summary["stopped"]))
