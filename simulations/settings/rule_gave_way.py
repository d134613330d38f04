"""Notes about settings that turn the rule of ``automatic`` off, with what to give instead.

A given learning rate is taken as one of plain SGD, as papers and their presets mean it. The notes
report that, so that nobody has to guess it from a low accuracy.
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
"""Settings of the rule that are worth a note if they are lost."""


def rule_notes(
    given: Collection[str], settings: Settings, filled: Resolved, workload: LoadedWorkload
) -> tuple[str, ...]:
    """Notes that given settings turn the rule off, or that a rate fits another optimizer.

    given: names of the settings that the user gave.
    settings: these, and those of a paper's preset.
    filled: all settings of the run.
    """
    if settings.from_preset is not None:  # the rates are the paper's
        return ()
    settings = replace(settings, method=filled.method)
    lines = (
        _note_of_blocks(given, settings, filled, workload),
        _note_of_rate(given, settings, filled, workload),
    )
    return tuple(line for line in lines if line)


def _note_of_blocks(
    given: Collection[str], settings: Settings, filled: Resolved, workload: LoadedWorkload
) -> str | None:
    """A note that given settings turn the rule off, with the values of the run and of the rule."""
    has = values_of(filled)
    blocks = [
        name
        for name in BLOCKS
        if name in given and name in has and (name != "optimizer" or _is_sgd(has))
    ]
    if not blocks or RATE in (filled.auto or "").split():
        return None
    without_blocks = replace(
        settings,
        parameters={
            name: value for name, value in settings.parameters.items() if name not in blocks
        },
    )
    tuned = tuned_settings(without_blocks, workload)
    if RATE in tuned:  # the given rate replaces that of a preset, not the rule's
        return None
    ruled = fill_auto(without_blocks, workload, tuned, filled.clients)
    others = values_of(settings).keys() - set(blocks)
    if not any(
        name in ruled and name not in others and ruled[name] != has.get(name) for name in SHOWN
    ):
        return None
    words = ", ".join(f"{name}={has[name]}" for name in blocks)
    return (
        f"{words} turns the rule off: {_recipe(has)}; the rule has {_recipe({**has, **ruled})}. "
        f"{_advice(blocks)}"
    )


def _advice(blocks: Collection[str]) -> str:
    """How to keep the rule."""
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
    batches = f"q = {values['sample_rate']:.4g}" if batch is None else f"batches of {batch}"
    ema = values.get("ema")
    average = f"an average of the weights (ema={ema:g})" if ema else "no average of the weights"
    return (
        f"{values['optimizer']} at {values[RATE]:.4g}, {values['rounds']} rounds at {batches}, "
        f"{average}"
    )


def _note_of_rate(
    given: Collection[str], settings: Settings, filled: Resolved, workload: LoadedWorkload
) -> str | None:
    """A note that the preset's learning rate was made for another optimizer than the given one."""
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
