"""A plan that may be charged for: before that, the initial model is measured, and one round has run on public rows."""

import math
from collections.abc import Collection, Sequence

import torch
from torch import nn

from fedlsg.own_loop.row_checks import model_outputs
from fedlsg.randomness import own_draws
from fedlsg.state import different_terms
from fedlsg.tensors import spaced
from fedlsg.user_code.objects import restored
from simulations import workloads
from simulations.client.rehearsal import rehearse
from simulations.plan.plan import Base, Plan, make_plan
from simulations.server.evaluate import evaluate, has_one_number, score, scores_of
from simulations.settings.settings import Settings
from simulations.workloads import Progress, Split, silent, to_device


def ready_plan(
    settings: Settings, *, progress: Progress = silent, declared: Sequence[int] | None = None,
    given: Collection[str] = (),
) -> Plan:  # fmt: skip
    """``make_plan``, and what is checked on it: nobody was charged, and nothing is written.

    Raises ValueError as ``make_plan``, ``check_evaluation`` and ``rehearse``.
    """
    plan = make_plan(settings, progress=progress, declared=declared, given=given)
    progress("a round on public rows")
    rehearse(plan, max(different_terms(plan.terms), key=lambda terms: terms.num_examples))
    if workloads.own(plan.settings.workload) is not None:
        progress("measuring the initial model")
        check_evaluation(plan)
    return plan


@torch.no_grad()
def check_evaluation(base: Base) -> None:
    """Measure the initial model on the whole test split, as after each round. Raises ValueError, naming the row.

    All that an evaluation needs is found before round 1: rows that the model cannot take, a loss that is not finite,
    metrics that fail, fewer outputs than classes.
    """
    workload, model = base.workload, base.build_model()
    own = workloads.own(base.settings.workload)
    with restored(workload.loss, dict(workload.metrics)), own_draws(base.device):
        for name, split in workload.tests.items():
            try:
                found = evaluate(model, split, loss=workload.loss, classes=False, device=base.device).loss
                failure = None if math.isfinite(found) else f"its loss is {found}"
            except Exception as error:
                failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if failure is not None:
                raise ValueError(
                    f"the initial model cannot be measured on {name}{_where(model, split, base)}: {failure}"
                )
            _check_outputs(model, split, base, None if own is None else own.num_classes)
        score(model, workload, device=base.device)


def _where(model: nn.Module, split: Split, base: Base) -> str:
    """ " row N", the first that fails alone; empty if none does."""
    for row in range(len(split)):
        try:
            one = split.pick(torch.tensor([row]))
            found = evaluate(model, one, loss=base.workload.loss, classes=False, device=base.device)
        except Exception:
            return f" row {row}"
        if not math.isfinite(found.loss):
            return f" row {row}"
    return ""


def _check_outputs(model: nn.Module, split: Split, base: Base, given: int | None) -> None:
    """Raise ValueError for outputs from which no class follows.

    They are (B, K) with as many numbers as classes, or more where K was not given; or one number for two classes.
    """
    classes = base.workload.num_classes
    if classes is None:
        return
    inputs = to_device(split.batch(spaced(len(split), 2))[0], base.device)
    outputs = scores_of(model_outputs(model.eval(), inputs))
    if outputs.ndim != 2 and not has_one_number(outputs):
        raise ValueError(
            f"the model gives outputs of shape {(*outputs.shape[1:],)} for each example, and accuracy needs one score "
            "for each class: give the model outputs (examples, classes), first where it returns several"
        )
    found = outputs[0].numel()
    enough = classes <= 2 if found == 1 else found >= classes
    if not enough or (given is not None and found != given and not (found == 1 and given == 2)):
        raise ValueError(
            f"the model gives {found} number{'s' * (found > 1)} for each example, and there are {classes} classes "
            f"({'num_classes' if given is not None else 'the largest target of test is one less'}): give the model as "
            "many outputs as classes, or targets that are no classes as floats"
        )
