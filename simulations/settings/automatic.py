"""Which gaps of the settings the rule of ``fedlsg.training.auto`` fills, and with what.

The rule is on where neither the user nor the workload's preset says a learning rate, and where a user gives
``learning_rate=auto``, ``rounds=auto`` or ``epochs``. Each value of it can be replaced by giving that setting.
"""

from collections.abc import Mapping
from typing import Any

import strategies
from fedlsg.training.auto import EPOCHS, auto_rounds, auto_schedule, auto_server
from simulations.settings.settings import AUTO, AUTOMATIC, Settings, values_of
from simulations.settings.starting_weights import loaded_parts
from simulations.workloads import LoadedWorkload

RULED = (
    "rounds", "sample_rate", "optimizer", "optimizer_options", "learning_rate", "classifier_learning_rate",
    "layer_rates", "ema",
)  # fmt: skip
"""Settings that the rule gives."""
SMALL_AT_START = ("lora",)
"""Carriers whose factors are new, whatever the weights are that they adapt."""


def fill_auto(settings: Settings, workload: LoadedWorkload, tuned: Mapping[str, Any], clients: int) -> dict[str, Any]:
    """The values that the rule gives, with ``auto`` naming them; empty where it is off.

    ``tuned``: the workload's preset for the method. Raises ValueError for ``epochs`` that would change nothing, and
    where the rule cannot know a number that it needs.
    """
    given = values_of(settings)
    asked = (settings.auto or "").split()
    optimizer = str(given.get("optimizer", "adam")).lower()
    steps = "learning_rate" not in given and (
        "learning_rate" in asked or ("learning_rate" not in tuned and optimizer != "sgd" and "momentum" not in given)
    )
    rounds = "rounds" not in given and (
        "rounds" in asked or settings.epochs is not None or (steps and "rounds" not in tuned)
    )
    values = {**tuned, **given, "clients": clients}
    if rounds and "rounds" in tuned and "sample_rate" not in given:
        values.pop("sample_rate", None)  # a preset's rate is made for its number of rounds
    rated = any(name in values for name in ("sample_rate", "batch_size"))
    found: dict[str, Any] = {}
    if rounds:
        values.pop("rounds", None)
        found |= _schedule(settings, workload, values, rated=rated)
    elif steps and not rated:
        found |= {"sample_rate": _rate(settings, values)}
    elif settings.epochs is not None and not {"rounds", "sample_rate"} & set(asked):
        raise ValueError(
            f"epochs={settings.epochs:g} chooses rounds, and rounds={settings.rounds} is given: leave one out"
        )
    if steps:
        carrier = _carrier(settings)
        loaded = loaded_parts(settings, workload)
        found |= auto_server(
            int({**values, **found}["rounds"]),
            dense=carrier == "dense",
            size=loaded.size,
            regression=_regression(workload),
            pretrained=loaded.body and carrier not in SMALL_AT_START,
            new_head=not loaded.classifier,
        )
        if optimizer != "adam":
            del found["optimizer_options"]  # they are Adam's
    chosen = {name: value for name, value in found.items() if name not in given}
    return chosen | ({AUTO: " ".join([*(name for name in asked if name not in AUTOMATIC), *chosen])} if chosen else {})


def _passes(settings: Settings, values: Mapping[str, Any]) -> float:
    """E of a client that takes part in every round: those that are selected rarely get their passes in more rounds."""
    clients = int(values["clients"])
    return (settings.epochs or EPOCHS) * clients / min(clients, int(values.get("clients_per_round") or clients))


def _rate(settings: Settings, values: Mapping[str, Any]) -> float:
    return float(f"{min(1.0, _passes(settings, values) / (int(values.get('local_steps', 1)) * values['rounds'])):.4g}")


def _schedule(
    settings: Settings, workload: LoadedWorkload, values: Mapping[str, Any], *, rated: bool
) -> dict[str, Any]:
    """Rounds, and the sample rate where none is given."""
    epochs: float = _passes(settings, values)
    local_steps = int(values.get("local_steps", 1))
    if not rated:
        rounds, chosen = auto_schedule(epochs, local_steps=local_steps)
        return {"rounds": rounds, "sample_rate": float(f"{chosen:.4g}")}
    rate: float | None = values.get("sample_rate")
    if rate is None or settings.batch_size is not None:
        if not len(workload.train):
            raise ValueError("rounds=auto needs the number of training rows, which only clients know here: give rounds")
        rate = min(1.0, values["batch_size"] * values["clients"] / len(workload.train))
    return {"rounds": auto_rounds(epochs, float(rate), local_steps=local_steps)}


def _carrier(settings: Settings) -> str:
    own = strategies.own_settings(settings.method)
    given = {name: value for name, value in settings.parameters.items() if name in own}
    return strategies.recipe(settings.method, **given).carrier.kind


def _regression(workload: LoadedWorkload) -> bool:
    """Whether the public test targets are numbers, and not classes, or labels that are 0 or 1."""
    targets = workload.test.labels
    return targets.is_floating_point() and not bool(((targets == 0) | (targets == 1) | targets.isnan()).all())


def rule_line(settings: Settings) -> str | None:
    """What the rule chose, for a reader; None where it chose nothing."""
    values = values_of(settings)
    said = [f"{name}={values[name]}" for name in (settings.auto or "").split() if name in values and name in RULED]
    return f"chosen by the rule for runs without tuning: {', '.join(said)}" if said else None
