"""Which given setting turned the rule of ``automatic`` off, what went with it, and what to give
instead, in a sentence each.

A given learning rate is one of plain SGD: papers and their presets mean it so. Nobody is to find
that out from the accuracy.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.automatic import (
    BLOCKS,
    SGD,
    fill_auto,
    tuned_settings,
)
from fedlsg.simulations.settings.settings import RATE, Settings, values_of
from fedlsg.simulations.workloads import LoadedWorkload
from fedlsg.user_code import shown

SHOWN = ("optimizer", "rounds", "sample_rate", "ema")
"""What a reader must know of: where none of these went, nothing is said."""


def rule_notes(
    given: Collection[str], settings: Settings, filled: Resolved, workload: LoadedWorkload
) -> tuple[str, ...]:
    """A sentence where settings that a user gave turned the rule off, and one where an optimizer
    has a rate that was made for another one.

    ``given``: names of what the user gave; ``settings``: these and those of a paper's preset;
    ``filled``: what the run has.
    """
    if settings.from_preset is not None:  # the rates are the paper's
        return ()
    settings = replace(settings, method=filled.method)
    return tuple(
        line
        for line in (
            _gave_way(given, settings, filled, workload),
            _rate_of_another(given, settings, filled, workload),
        )
        if line
    )


def _gave_way(
    given: Collection[str], settings: Settings, filled: Resolved, workload: LoadedWorkload
) -> str | None:
    """What the run has in place of the rule's values, because of one or two settings."""
    has = values_of(filled)
    blocks = [
        name
        for name in BLOCKS
        if name in given and name in has and (name != "optimizer" or _is_sgd(has))
    ]
    if not blocks or RATE in (filled.auto or "").split():
        return None
    rest = values_of(settings)
    others = {name: value for name, value in rest.items() if name not in blocks}
    open_settings = replace(
        settings,
        parameters={name: one for name, one in settings.parameters.items() if name not in blocks},
    )
    tuned = tuned_settings(open_settings, workload)
    if RATE in tuned:  # a preset's value was replaced, and no rule
        return None
    ruled = fill_auto(open_settings, workload, tuned, filled.clients)
    lost = [
        name
        for name in SHOWN
        if name in ruled and name not in others and ruled[name] != has.get(name)
    ]
    if not lost:
        return None
    words = ", ".join(f"{name}={has[name]}" for name in blocks)
    return (
        f"{words} turns the rule off: {_recipe(has)}; the rule has {_recipe({**has, **ruled})}. "
        f"{_way_back(blocks)}"
    )


def _way_back(blocks: Collection[str]) -> str:
    if RATE in blocks:
        also = [name for name in blocks if name != RATE]
        without = f", without {' and '.join(also)}," if also else ""
        return (
            f"learning_rate=auto{without} keeps the rule, learning_rate=x0.5 keeps it at half of "
            "its rate (fedlsg docs choosing)"
        )
    return f"Without {' and '.join(blocks)} the rule stays (fedlsg docs choosing)"


def _recipe(values: Mapping[str, Any]) -> str:
    """Optimizer, rate, rounds, batches and average of a run, in words."""
    batch = values.get("batch_size")
    drawn = f"q = {values['sample_rate']:.4g}" if batch is None else f"batches of {batch}"
    ema = values.get("ema")
    return (
        f"{values['optimizer']} at {values[RATE]:.4g}, {values['rounds']} rounds at {drawn}, "
        f"{f'an average of the weights (ema={ema:g})' if ema else 'no average of the weights'}"
    )


def _rate_of_another(
    given: Collection[str], settings: Settings, filled: Resolved, workload: LoadedWorkload
) -> str | None:
    """A rate that the workload's preset was given for another optimizer."""
    if "optimizer" not in given or RATE in given or RATE in (filled.auto or "").split():
        return None
    tuned = tuned_settings(settings, workload)
    made_for, has = str(tuned.get("optimizer", SGD)), values_of(filled)
    if RATE not in tuned or made_for.lower() == str(has["optimizer"]).lower():
        return None
    instead = "a learning_rate" if _is_sgd(has) else "learning_rate=auto, the rule's, or a number"
    return (
        f"optimizer={has['optimizer']} has learning_rate={has[RATE]:g}, which the preset of "
        f"{shown(filled.workload)} has for {made_for}: give {instead}"
    )


def _is_sgd(values: Mapping[str, Any]) -> bool:
    return str(values["optimizer"]).lower() == SGD
