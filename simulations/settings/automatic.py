"""Which gaps of the settings the rule of ``fedlsg.training.auto`` fills, and with what.

The rule is on where neither the user nor the workload's preset says a learning rate, and where a user gives
``learning_rate=auto`` or ``rounds=auto``. Each value of it can be replaced by giving that setting.
"""

from collections.abc import Mapping
from typing import Any

import strategies
from fedlsg.training.auto import EPOCHS, auto_rounds, auto_schedule, auto_server
from simulations.settings.settings import AUTO, Settings, values_of
from simulations.workloads import LoadedWorkload

OF_ITS_OWN = ("sgd", "doppler")
"""Optimizers whose step is as long as the gradient: no learning rate fits all noise."""


def fill_auto(settings: Settings, workload: LoadedWorkload, tuned: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the rule gives, with ``auto`` naming them; empty where it is off.

    ``tuned``: the workload's preset for the method. Raises ValueError for ``epochs`` that would change nothing, and where the
    rule cannot know a number that it needs.
    """
    given = values_of(settings)
    asked = (settings.auto or "").split()
    optimizer = str(given.get("optimizer", "adam")).lower()
    steps = "learning_rate" not in given and (
        "learning_rate" in asked
        or ("learning_rate" not in tuned and optimizer not in OF_ITS_OWN and "momentum" not in given)
    )
    rounds = "rounds" not in given and (
        "rounds" in asked or settings.epochs is not None or (steps and "rounds" not in tuned)
    )
    rates = {name: value for name, value in {**tuned, **given}.items() if name in ("sample_rate", "batch_size")}
    found: dict[str, Any] = {}
    if rounds or (steps and not rates):
        found |= _schedule(settings, workload, {**tuned, **given}, rates)
    if settings.epochs is not None and not found:
        raise ValueError(f"epochs={settings.epochs:g} chooses rounds and sample_rate, and both are given: leave it out")
    if steps:
        updates = int({**tuned, **given, **found}["rounds"])
        found |= auto_server(updates, dense=_dense(settings))
        found |= {} if optimizer == "adam" else {"optimizer": given["optimizer"], "optimizer_options": None}
    chosen = {name: value for name, value in found.items() if name not in given and value is not None}
    return chosen | ({AUTO: " ".join(chosen)} if chosen else {})


def _schedule(
    settings: Settings, workload: LoadedWorkload, values: Mapping[str, Any], rates: Mapping[str, Any]
) -> dict[str, Any]:
    """Rounds and sample rate, or one of the two where the other is given."""
    epochs = EPOCHS if settings.epochs is None else settings.epochs
    clients, local_steps = int(values.get("clients", 5)), int(values.get("local_steps", 1))
    share = min(1.0, int(values.get("clients_per_round") or clients) / clients)
    each = epochs / share
    """Passes of a client that is always selected."""
    if "rounds" in values:
        return {"sample_rate": float(f"{min(1.0, each / (local_steps * values['rounds'])):.4g}")}
    if not rates:
        rounds, rate = auto_schedule(each, local_steps=local_steps)
        return {"rounds": rounds, "sample_rate": float(f"{rate:.4g}")}
    rate = rates.get("sample_rate")
    if rate is None:
        if not len(workload.train):
            raise ValueError("rounds=auto needs the number of training rows, which only clients know here: give rounds")
        rate = min(1.0, rates["batch_size"] * clients / len(workload.train))
    return {"rounds": auto_rounds(each, float(rate), local_steps=local_steps)}


def _dense(settings: Settings) -> bool:
    own = strategies.own_settings(settings.method)
    given = {name: value for name, value in settings.parameters.items() if name in own}
    return strategies.recipe(settings.method, **given).carrier.kind == "dense"
