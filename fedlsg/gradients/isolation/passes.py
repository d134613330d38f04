"""The gradient of each example at a level of isolation, in the coordinates of a frame."""

import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients.calls.registry import ReadElsewhereError
from fedlsg.gradients.formulas.embedded_gradients import embed
from fedlsg.gradients.formulas.ghost import GhostGradients
from fedlsg.gradients.hooked_pass.hooked_layers import force_eager
from fedlsg.gradients.hooked_pass.hooks import Pass
from fedlsg.gradients.hooked_pass.model_facts import Prepared, check, facts_of, prepare
from fedlsg.gradients.hooked_pass.precision import FLOAT32, Precision
from fedlsg.gradients.hooked_pass.supported import Checked
from fedlsg.gradients.isolation import vmapped
from fedlsg.gradients.isolation.alone import gradients_of_rows
from fedlsg.gradients.isolation.batched import refuse_process
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.gradients.isolation.loss_on_rows import losses_on_outputs
from fedlsg.gradients.isolation.secret_seeds import own_seeds_refused
from fedlsg.gradients.isolation.state import SharedDrawError, forgetting
from fedlsg.gradients.isolation.whole import kept_of_whole
from fedlsg.gradients.per_example import Batch, Given, LossFunction, rounding, run, run_pass
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
    """Kept coordinates of each example's gradient, one tensor for each block of the frame.

    ``inputs`` is a tensor or a dict of keyword tensors, batch first. ``loss_fn(outputs, targets)``
    must give one loss an example, shape (B,): a mean would scale every gradient by 1 / B.
    Guarantee: row i is a function of example i alone.
        rows             for every model and loss, as far as they keep things in Python objects that
                         ``state.forgetting`` reaches. Traces in files, in the environment and in
                         generators are left to the one check (``independence``).
        isolated         the same for code of a user; a model of libraries runs on the batch and is
                         trusted as at ``checked``.
        checked          for a model and a loss that treat examples independently, which that check
                         tests.
    The (m, n) gradient of a carried weight is never formed. No parameter's ``.grad`` or
    ``requires_grad`` changes, even if an error is raised. A layer that the forward pass does not
    reach gives zeros. An empty batch gives tensors of shape (0, kept), and the model is not called.
    A loss that is not finite affects its own row only. The gradients of several calls of a layer
    are added, and the sum is clipped.
    Raises UnsupportedLayerError for what ``check`` refuses, and for a layer whose input is not
    batch first or changes in place after the call; OwnDrawsError for a model or loss that seeds
    random draws itself (``secret_seeds``); ValueError for losses of another shape; at ``isolated``,
    what torch raises for code that it has no rule for under ``vmap``.
    ``checked``: the result of ``check(model, frame)``, if neither has changed since; by default it
    is called here.
    ``precision``: the precision of the pass. The blocks have the type of the parameters in any
    case.
    """
    blocks = block_gradients(
        model,
        loss_fn,
        inputs,
        targets,
        frame,
        ghost=False,
        checked=checked,
        precision=precision,
        isolation=isolation,
    )
    # without ghost clipping all blocks are tensors
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
    """As ``per_example_gradients``, but each block keeps its shape and memory order.

    With ``ghost=True``, blocks for which ghost clipping is cheaper are returned as
    ``GhostGradients``.
    """
    given = Given(
        model=model,
        loss_fn=loss_fn,
        inputs=inputs,
        targets=targets,
        frame=frame,
        parameters=check(model, frame) if checked is None else checked,
        precision=precision,
        ghost=ghost,
    )
    if isolation != "checked":
        refuse_process()
    with own_seeds_refused():
        if frame.embedded is None:
            return _at_level(given, isolation)
        dense = _at_level(replace(given, frame=frame.embedded, ghost=False), isolation)
        return list(embed([block.flatten(1) for block in dense], frame))


def _at_level(given: Given, isolation: Isolation) -> list[Any]:
    """The blocks by the pass that fits the level and the model.

                library without state   library with state           code of a user
    checked     batch                   batch, or rows if it wrote   batch
    isolated    batch                   batch, or rows if it wrote   isolated, or rows if draws of
                                                                     examples would be the same
    rows        rows                    rows                         rows

    At ``isolated`` a user's loss sees the outputs of one example.
    """
    if library_with_state(given.model) and isolation != "rows":
        return _of_library(given, isolation)
    if isolation == "checked":
        return run(given)
    if isolation == "rows" or given.model in DRAW_TOGETHER:
        with force_eager():
            return gradients_of_rows(given)
    if own_model(given.model):
        # Once more, because a library that the first pass imports makes generators: as if drawn.
        for _ in range(2):
            with suppress(SharedDrawError):
                return run(given, passed=run_isolated, copies=True)
        DRAW_TOGETHER.add(given.model)
        with force_eager():
            return gradients_of_rows(given)
    return run(given, passed=run_on_batch)


def _of_library(given: Given, isolation: Isolation) -> list[Any]:
    """The blocks by a pass over the batch, or by rows if the model wrote to itself in that pass.

    For example, the scale of a rotary embedding may follow the longest text.
    """
    with forgetting(given.model, parameters=False) as put_back:
        blocks = run(given, passed=run_on_batch if isolation == "isolated" else run_pass)
        changed = put_back()
    if not changed:
        return blocks
    if given.model not in _warned:
        _warned.add(given.model)
        logging.getLogger("fedlsg").warning(
            "%s writes to itself in a pass, so one example could change another one's: such "
            "batches run example by example, which takes longer",
            type(given.model).__name__,
        )
    with force_eager():
        return gradients_of_rows(given)


DRAW_TOGETHER: WeakSet[nn.Module] = WeakSet()
"""Models whose own draws would be the same for all examples of a pass: they run by rows."""
STATELESS = ("torch.nn.modules.", "fedlsg.")
"""Beginnings of the names of Python modules whose layers do not write to themselves. (``torch.ao``
has observers, which do.)
"""
_warned: WeakSet[nn.Module] = WeakSet()
"""Models about which the warning of ``_of_library`` was given."""


def library_with_state(model: nn.Module) -> bool:
    """Whether a model of libraries has layers that may write to themselves."""
    stateless = all(type(m).__module__.startswith(STATELESS) for m in model.modules())
    return not stateless and not own_model(model)


def own_model(model: nn.Module) -> bool:
    """Whether code of a user runs in the model's passes."""
    answers = facts_of(model).answers
    if "own code" not in answers:
        answers["own code"] = own_code(model) is not None
    return bool(answers["own code"])


_own_losses: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""Whether losses are a user's code. It takes up to 0.1 s to find out, and every pass asks.
Invalid when a loss has changed; ``forget_loss`` is called then.
"""


def own_loss(loss_fn: LossFunction) -> bool:
    """Whether a loss is a user's code."""
    try:
        if loss_fn not in _own_losses:
            _own_losses[loss_fn] = own_code(loss_fn) is not None
        return _own_losses[loss_fn]
    except TypeError:  # an object without a hash, or without weak references, is not kept
        return own_code(loss_fn) is not None


def forget_loss(loss_fn: LossFunction) -> None:
    """Drop what is known about a loss, because it has changed."""
    with suppress(TypeError):
        _own_losses.pop(loss_fn, None)


def run_on_batch(step: Pass, given: Given, read: Collection[str]) -> None:
    """One pass of a library's model over the batch; a user's loss sees one example's outputs."""
    if not own_loss(given.loss_fn):
        run_pass(step, given, read)
        return
    with forgetting(given.loss_fn):  # also what it writes in backward
        loss_fn = partial(losses_on_outputs, given.loss_fn)
        run_pass(step, replace(given, loss_fn=loss_fn), read)


def patched_layers(prepared: Prepared) -> set[str]:
    """Parameters of known layers whose class was patched.

    Their code is then a user's, which may not see the batch.
    """
    answers, names = prepared.facts.answers, set[str]()
    for layer in vmapped.layers_of(prepared):
        kind = type(layer.module)
        if ("patched", kind) not in answers:
            answers["patched", kind] = own_code(kind) is not None
        if answers["patched", kind]:
            names |= {slot.block.parameter for slot in vmapped.slots_of(layer)}
    return names


def run_isolated(step: Pass, given: Given, read: Collection[str]) -> None:
    """One pass of a model whose code sees one example.

    read: parameters that are also read outside of their layers' calls; each example has a copy.
    """
    prepared = prepare(given.model, given.frame, given.precision, read)
    step.ways, step.parameters = prepared.ways, prepared.parameters
    places = vmapped.copied_places(prepared)
    if more := vmapped.read_with(prepared, places) | patched_layers(prepared):
        raise ReadElsewhereError(sorted(more))
    of_users = own_loss(given.loss_fn)
    used = (given.model, given.loss_fn) if of_users else (given.model,)
    with (
        forgetting(*used, together=True),  # also what they write in backward
        force_eager(),
        rounding(given) as step.storage,
        vmapped.known_layers(step, prepared),
        vmapped.own_copies(places, step.batch) as copies,
        torch.enable_grad(),
    ):
        assert not step.starts  # so that the gradients of copies come first
        step.starts += copies.values()
        losses = vmapped.isolated_losses(given, places, copies, own_loss=of_users)
        gradients = step.backward(losses)
    coordinates = {c.name: c for c in given.frame.coordinates}
    for name, gradient in zip(copies, gradients, strict=False):
        if gradient is not None:
            for position, kept in kept_of_whole(given.frame, coordinates[name], gradient):
                step.add(position, kept)
