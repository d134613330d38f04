"""The level of isolation of a run's passes is chosen, if the settings leave it "auto"."""

from dataclasses import replace
from typing import Any

from fedlsg.config.isolation import CHECKED, Isolation
from fedlsg.gradients.isolation.levels import resolve
from fedlsg.gradients.isolation.trial import level_of_own_code
from fedlsg.randomness import own_draws
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.workloads import to_device
from fedlsg.tensors import spaced
from fedlsg.user_code.objects import restored

TRIED = 4
"""Public rows on which the level is tried."""


def with_level(base: Base) -> Base:
    """The base at the level of the settings; for "auto", at the level that the rule chooses.

    If no gradient of an example is clipped, examples need not be isolated from each other.
    """
    level = base.settings.isolation
    if level == "auto":
        clips = base.method.mechanism.clips and not base.unit.whole
        level = _level_of_rule(base) if clips else CHECKED
    return at_level(base, level)


def at_level(base: Base, level: Isolation) -> Base:
    """The base with passes at a level, which settings and ledgers name."""
    settings = replace(base.settings, isolation=level)
    return replace(base, settings=settings, local=replace(base.local, isolation=level))


def tried_rows(base: Base) -> tuple[Any, Any]:
    """A few public rows, on the model's device."""
    test = base.workload.test
    inputs, targets = test.batch(spaced(len(test), TRIED))
    return to_device(inputs, base.device), targets.to(base.device)


def _level_of_rule(base: Base) -> Isolation:
    """The level of the initial model and the loss, tried on public rows."""
    model, loss = base.initial.model(), base.workload.loss

    def trial() -> Isolation:
        try:
            with own_draws(base.device), restored(loss):
                return level_of_own_code(model, loss, *tried_rows(base))
        except Exception:  # the check of the model says why
            return "rows"

    return resolve(model, loss, "auto", trial)
