"""The gradient of each example at a level of isolation, in the coordinates of a frame."""

from collections.abc import Collection
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients import per_example
from fedlsg.gradients.activation_storage import round_activations
from fedlsg.gradients.blocks import embed
from fedlsg.gradients.calls.registry import ReadElsewhereError
from fedlsg.gradients.formulas.ghost import GhostGradients
from fedlsg.gradients.hooks import Pass
from fedlsg.gradients.isolation import vmapped
from fedlsg.gradients.isolation.alone import gradients_of_rows
from fedlsg.gradients.isolation.draws import own_seeds_refused
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.gradients.isolation.whole import kept_of_whole
from fedlsg.gradients.known import Prepared, check, known, prepare
from fedlsg.gradients.per_example import Batch, LossFunction, batch_size, losses_of
from fedlsg.gradients.plan import force_eager
from fedlsg.gradients.precision import FLOAT32, Precision
from fedlsg.gradients.supported import Checked
from fedlsg.user_code.library import own_code


def per_example_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    checked: Checked | None = None,
    precision: Precision = FLOAT32,
    isolation: Isolation = "checked",
) -> list[Float[Tensor, "batch kept"]]:
    """As ``fedlsg.gradients.per_example_gradients``, at a level of isolation.

    Guarantee at ``isolated`` and ``rows``: row i is a function of example i alone, for every model and loss. Left to
    the one check are traces in global variables, closures and objects of other classes.
    Raises, at ``isolated``, what torch raises for code that it has no rule for under ``vmap``.
    """
    blocks = block_gradients(
        model, loss_fn, inputs, targets, frame,
        ghost=False, checked=checked, precision=precision, isolation=isolation,
    )  # fmt: skip
    return [block.flatten(1) for block in blocks if isinstance(block, Tensor)]


def block_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    ghost: bool = True,
    checked: Checked | None = None,
    precision: Precision = FLOAT32,
    isolation: Isolation = "checked",
) -> list[Float[Tensor, "batch *kept"] | GhostGradients]:
    """As ``fedlsg.gradients.block_gradients``, at a level of isolation; guarantee as above.

    Raises OwnDrawsError, a ValueError, for a model or loss that seeds random draws itself (``draws``).
    """
    with own_seeds_refused():
        if isolation == "checked":
            return per_example.block_gradients(
                model, loss_fn, inputs, targets, frame,
                ghost=ghost, checked=checked, precision=precision,
            )  # fmt: skip
        parameters = check(model, frame) if checked is None else checked
        return _isolated(model, loss_fn, inputs, targets, frame, parameters, precision, ghost, isolation)


def _isolated(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    parameters: Checked,
    precision: Precision,
    ghost: bool,
    isolation: Isolation,
) -> list[Any]:
    if frame.embedded is not None:
        dense = per_example_gradients(
            model, loss_fn, inputs, targets, frame.embedded,
            checked=parameters, precision=precision, isolation=isolation,
        )  # fmt: skip
        return list(embed(dense, frame))
    if isolation == "rows":
        like = next(iter(parameters.values()))
        losses = partial(losses_of, model, loss_fn, precision=precision, batch=1, like=like)
        count = batch_size(inputs, targets)
        with force_eager():
            rows = gradients_of_rows(model, losses, inputs, targets, frame, parameters, count)
        return list(rows)
    make = partial(Pass, ghost=ghost, precision=precision)
    given: Any = (make, model, loss_fn, inputs, targets, frame, parameters)
    if own_model(model):
        return per_example.run(*given, passed=run_isolated, copies=True)
    return per_example.run(*given, passed=run_on_batch)


def own_model(model: nn.Module) -> bool:
    """Whether code of a user runs in the model's passes."""
    answers = known(model).answers
    if "own code" not in answers:
        answers["own code"] = own_code(model) is not None
    return bool(answers["own code"])


_own_losses: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""Whether losses are a user's code, until ``forget_loss``: a loss is asked for in each pass."""


def own_loss(loss_fn: LossFunction) -> bool:
    """Whether a loss is a user's code."""
    if loss_fn not in _own_losses:
        _own_losses[loss_fn] = own_code(loss_fn) is not None
    return _own_losses[loss_fn]


def forget_loss(loss_fn: LossFunction) -> None:
    """A loss has changed."""
    _own_losses.pop(loss_fn, None)


def run_on_batch(
    step: Pass,
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    parameters: Checked,
    read: Collection[str],
) -> None:
    """One pass of a model of a library over the batch; a user's loss sees the outputs of one example."""
    if own_loss(loss_fn):
        loss_fn = partial(vmapped.losses_on_outputs, loss_fn)
    per_example.run_pass(step, model, loss_fn, inputs, targets, frame, parameters, read)


def patched_layers(prepared: Prepared) -> set[str]:
    """Parameters of known layers whose class was patched: their code is a user's, and may not see the batch."""
    answers, names = prepared.known.answers, set[str]()
    for layer in vmapped.layers_of(prepared):
        kind = type(layer.module)
        if ("patched", kind) not in answers:
            answers["patched", kind] = own_code(kind) is not None
        if answers["patched", kind]:
            names |= {slot.block.parameter for slot in vmapped.slots_of(layer)}
    return names


def run_isolated(
    step: Pass,
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    parameters: Checked,
    read: Collection[str],
) -> None:
    """One pass of a model whose code sees one example; parameters ``read`` are copied for each example."""
    prepared = prepare(model, frame, step.precision, read)
    step.ways, step.parameters = prepared.ways, prepared.parameters
    places = vmapped.copied_places(prepared)
    if more := vmapped.read_with(prepared, places) | patched_layers(prepared):
        raise ReadElsewhereError(sorted(more))
    rounds = step.precision.rounds_activations
    rounding = round_activations(model, inputs) if rounds else nullcontext()
    with (
        force_eager(),
        rounding as step.storage,
        vmapped.known_layers(step, prepared),
        vmapped.own_copies(places, step.batch) as copies,
        torch.enable_grad(),
    ):
        step.starts += copies.values()
        losses = vmapped.isolated_losses(
            step, model, loss_fn, inputs, targets, places, copies,
            own_loss=own_loss(loss_fn), like=next(iter(parameters.values())),
        )  # fmt: skip
        gradients = step.backward(losses, parameters)
    coordinates = {c.name: c for c in frame.coordinates}
    for name, gradient in zip(copies, gradients, strict=False):
        if gradient is not None:
            for position, kept in kept_of_whole(frame, coordinates[name], gradient):
                step.add(position, kept)
