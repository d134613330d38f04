"""``method=auto``: which method a run takes where nobody names one.

A workload with a preset takes ``lsg``, which its settings are made for. A model of a user's own takes ``dpsgd``: dense
updates were the most accurate or level in all tasks that were measured. Where they pass ``uplink_budget``, it takes
``lsg`` without frozen units, at the largest rank that fits.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import strategies
from fedlsg.carriers import layer_table, prepare_model, totals
from fedlsg.method import Method
from simulations.settings.settings import AUTO, Settings
from simulations.workloads import LoadedWorkload, build_model

PRESET_METHOD, DENSE, SMALL = "lsg", "dpsgd", "lsg"
RANKS = (32, 16, 8, 4, 2, 1)
VALUE_BYTES = 4
"""Of a value that no codec makes smaller."""


def choose_method(settings: Settings, workload: LoadedWorkload) -> Settings:
    """The settings with a method in place of ``auto``; ``auto`` then names it among what fedlsg chose.

    Raises ValueError for a budget that no method meets.
    """
    if settings.method != AUTO:
        return settings
    own: dict[str, Any] = {}
    if "learning_rate" in workload.defaults:
        name = PRESET_METHOD
    else:
        name, own = _of_own_model(settings, workload)
    words = [*(settings.auto or "").split(), "method", *own]
    return replace(settings, method=name, parameters={**own, **settings.parameters}, auto=" ".join(words))


def _of_own_model(settings: Settings, workload: LoadedWorkload) -> tuple[str, dict[str, Any]]:
    asked = [name for name in settings.parameters if name not in strategies.common_settings()]
    if asked and not set(asked) <= strategies.own_settings(DENSE):
        if not set(asked) <= strategies.own_settings(SMALL):
            raise ValueError(f"{', '.join(asked)}: a setting of some methods; name one with method=")
        return SMALL, {}
    budget = settings.uplink_budget
    if budget is None:
        return DENSE, {}
    dense = _bytes(strategies.recipe(DENSE), settings, workload)
    if dense <= budget:
        return DENSE, {}
    least = dense
    for rank in RANKS:
        with suppress(ValueError):  # a rank that carries no layer of this model
            least = _bytes(strategies.recipe(SMALL, rank=rank, sparsity=0.0), settings, workload)
            if least <= budget:
                return SMALL, {"rank": rank, "sparsity": 0.0}
    raise ValueError(
        f"uplink_budget={budget}: dense updates of this model have {dense:,} bytes, and those of method {SMALL} "
        f"{least:,} or more; give a larger budget, or name a method and a codec, which may be smaller"
    )


def _bytes(method: Method, settings: Settings, workload: LoadedWorkload) -> int:
    """Bytes of the values of an update of the workload's model."""
    model = build_model(workload, settings.model or workload.default_model, settings.seed)
    prepare_model(model, method.carrier, classifier=workload.classifier, seed=settings.seed)
    rows = layer_table(model, method.carrier, workload.classifier)
    return VALUE_BYTES * sum(values for _, _, values in totals(rows).values())


def method_line(settings: Settings) -> str | None:
    """Why a run has its method, in one sentence; None where a user named it, or the workload's preset has it."""
    if "method" not in (settings.auto or "").split() or "learning_rate" not in (settings.auto or "").split():
        return None
    if settings.method == DENSE:
        budget = settings.uplink_budget
        why = "no uplink_budget is given" if budget is None else f"they fit uplink_budget={budget:,} bytes"
        return f"method {DENSE}: dense updates are the most accurate, and {why}"
    return (
        f"method {settings.method}: dense updates pass uplink_budget={settings.uplink_budget:,} bytes"
        if (settings.uplink_budget)
        else f"method {settings.method}: it has the settings that are given"
    )
