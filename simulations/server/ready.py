"""The last checks before a run: measure the initial model, and run one round on public rows.

Nothing is charged or written before they succeed.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import nn

from fedlsg.randomness import own_draws
from fedlsg.simulations import workloads
from fedlsg.simulations.client.rehearsal import rehearse
from fedlsg.simulations.planning.advice.own_choices import share_notes
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.client_noise import NO_NOISE, Noise
from fedlsg.simulations.planning.earlier_runs.warm_start import before_start, start_notes
from fedlsg.simulations.planning.plan import Plan, Spent, make_plan
from fedlsg.simulations.server.callbacks import Callback
from fedlsg.simulations.server.evaluate import evaluate, has_one_number, score, scores_of
from fedlsg.simulations.settings.automatic import check_budget
from fedlsg.simulations.settings.rule_gave_way import rule_notes
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.workloads import LoadedWorkload, Progress, Split, silent, to_device
from fedlsg.state import different_terms
from fedlsg.strategies.own_loop.row_checks import model_outputs
from fedlsg.tensors import spaced
from fedlsg.user_code.objects import restored

NOTHING: Mapping[str, str] = MappingProxyType({})
"""No settings that a user gave in words."""


def ready_plan(
    settings: Settings,
    *,
    progress: Progress = silent,
    declared: Sequence[int] | None = None,
    given: Mapping[str, str] = NOTHING,
    loaded: LoadedWorkload | None = None,
    callbacks: Sequence[Callback] = (),
    spent: Spent | None = None,
    noise: Noise = NO_NOISE,
    began: float | None = None,
) -> Plan:
    """Make a plan and check it; nothing is charged or written.

    began: as in ``Plan``; by default now.
    given: of ``words_given``.
    The other arguments are those of ``make_plan``.

    Raises ValueError as ``make_plan``, ``check_evaluation``, ``rehearse`` and the ``on_plan`` of
    ``callbacks``.
    """
    began = time.monotonic() if began is None else began
    starts_from_run = spent is None and settings.start_from is not None
    if starts_from_run:
        spent = before_start
    plan = make_plan(
        settings,
        progress=progress,
        declared=declared,
        given=given,
        loaded=loaded,
        spent=spent,
        noise=noise,
    )
    for callback in callbacks:
        callback.on_plan(plan.workload.directions)
    progress("a round on public rows")
    largest = max(different_terms(plan.terms), key=lambda terms: terms.num_examples)
    check_budget(plan.settings, rehearse(plan, largest))
    if workloads.own(plan.settings.workload) is not None:
        progress("measuring the initial model")
        plan = replace(plan, notes=(*plan.notes, *check_evaluation(plan)))
    notes = rule_notes(given, settings, plan.settings, plan.workload) + share_notes(plan)
    if starts_from_run:
        notes += start_notes(plan)
    return replace(plan, notes=(*notes, *plan.notes), given=given, began=began)


@torch.no_grad()
def check_evaluation(base: Base) -> tuple[str, ...]:
    """Measure the initial model on the whole test split, as after each round.

    Returns a note for each metric that is not a finite number. Raises ValueError, before round 1,
    for a row that the model cannot take (named), a loss that is not finite, a metric that fails,
    and fewer outputs than classes.
    """
    workload, model = base.workload, base.initial.model()
    own_workload = workloads.own(base.settings.workload)
    declared_classes = None if own_workload is None else own_workload.num_classes
    with restored(workload.loss, dict(workload.metrics)), own_draws(base.device):
        for name, split in workload.tests.items():
            try:
                loss = evaluate(
                    model, split, loss=workload.loss, classes=False, device=base.device
                ).loss
                failure = None if math.isfinite(loss) else f"its loss is {loss}"
            except Exception as error:
                failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if failure is not None:
                raise ValueError(
                    f"the initial model cannot be measured on {name}{_where(model, split, base)}: "
                    f"{failure}"
                )
            _check_outputs(model, split, base, declared_classes)
        measured = score(model, workload, device=base.device).metrics
    return tuple(
        f"metric {name!r} of the initial model is {value}: rounds in which it is not finite are no "
        "improvement for early-stopping and best-model"
        for name, value in measured.items()
        if not math.isfinite(value)
    )


def _where(model: nn.Module, split: Split, base: Base) -> str:
    """The first row that fails alone, as " row N"; empty if none does."""
    for row in range(len(split)):
        try:
            example = split.pick(torch.tensor([row]))
            evaluation = evaluate(
                model, example, loss=base.workload.loss, classes=False, device=base.device
            )
        except Exception:
            return f" row {row}"
        if not math.isfinite(evaluation.loss):
            return f" row {row}"
    return ""


def _check_outputs(model: nn.Module, split: Split, base: Base, declared: int | None) -> None:
    """Raise ValueError for outputs from which no class follows.

    Expected are (B, K) numbers for K classes, or one number for two classes. If the user has not
    declared K, more numbers than classes in the test split are fine, too.
    """
    classes = base.workload.num_classes
    if classes is None:
        return
    inputs = to_device(split.batch(spaced(len(split), 2))[0], base.device)
    outputs = scores_of(model_outputs(model.eval(), inputs))
    if outputs.ndim != 2 and not has_one_number(outputs):
        raise ValueError(
            f"the model gives outputs of shape {(*outputs.shape[1:],)} for each example, and "
            "accuracy needs one score for each class: give the model outputs (examples, classes), "
            "first where it returns several"
        )
    number = outputs[0].numel()
    if number == 1:
        fits = classes <= 2 and declared in (None, 1, 2)
    else:
        fits = number >= classes and declared in (None, number)
    if not fits:
        source = "the largest target of test is one less" if declared is None else "num_classes"
        raise ValueError(
            f"the model gives {number} number{'s' * (number > 1)} for each example, and there are "
            f"{classes} classes ({source}): "
            "give the model as many outputs as classes, or targets that are no classes as floats"
        )
