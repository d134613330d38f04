"""Passes over a batch: the gradients of examples in the coordinates of a frame, or their sum.

``check`` refuses what has no such gradient, before anything is computed. The package says how data
flow through its modules.

Reads private data, and what it returns is not private: clip it and add noise before anything is
released.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients.calls.registry import ReadElsewhereError
from fedlsg.gradients.calls.survey import Survey, copies_of, survey
from fedlsg.gradients.formulas.ghost import GhostGradients
from fedlsg.gradients.formulas.layers import Factors
from fedlsg.gradients.hooked_pass.activation_storage import round_activations
from fedlsg.gradients.hooked_pass.hooked_layers import force_eager
from fedlsg.gradients.hooked_pass.hooks import Pass, hook_layers
from fedlsg.gradients.hooked_pass.model_facts import check, prepare
from fedlsg.gradients.hooked_pass.precision import FLOAT32, Precision
from fedlsg.gradients.hooked_pass.supported import Checked, UnsupportedLayerError
from fedlsg.gradients.hooked_pass.uses import Uses
from fedlsg.tensors import BY_NAME, each, fields_of

Batch = Tensor | Mapping[str, Tensor]
"""A tensor or a dict of keyword tensors, examples on the first dimension."""
LossFunction = Callable[[Any, Any], Tensor]
"""``loss_fn(outputs, targets)``: one loss for each example, shape (B,)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """The inputs of a private pass.

    model, loss_fn: what runs.
    inputs, targets: the batch.
    frame: the coordinates of the gradients.
    parameters: the trainable parameters, checked.
    precision: of the pass.
    ghost: whether blocks may be ``GhostGradients`` where these are cheaper.
    factored: weights, dense in the frame, whose gradients are wanted as ``Factors``.
    """

    model: nn.Module
    loss_fn: LossFunction
    inputs: Batch
    targets: Batch
    frame: Frame
    parameters: Checked
    precision: Precision = FLOAT32
    ghost: bool = True
    factored: Collection[str] = ()

    @property
    def batch(self) -> int:
        """The number of examples."""
        return batch_size(self.inputs, self.targets)

    @property
    def like(self) -> Tensor:
        """A parameter, for the device and the type of new tensors."""
        return next(iter(self.parameters.values()))

    def new_pass(self) -> Pass:
        """A new pass, without any values yet."""
        return Pass(
            batch=self.batch,
            values=[None] * len(self.frame.blocks),
            ghost=self.ghost,
            precision=self.precision,
            factored=self.factored,
        )


def factored_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    factored: Collection[str],
    checked: Checked | None = None,
) -> list[Float[Tensor, "batch *kept"] | GhostGradients | Factors]:
    """The gradients of a frame's blocks, as ``Factors`` for the weights in ``factored``.

    These weights must be dense in the frame; all other blocks are as from ``block_gradients``.
    A layer that the forward pass does not reach gives zeros, factored or not.
    """
    given = Given(
        model=model,
        loss_fn=loss_fn,
        inputs=inputs,
        targets=targets,
        frame=frame,
        parameters=check(model, frame) if checked is None else checked,
        factored=factored,
    )
    return run(given)


_read: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()
"""By model, the parameters that passes have read next to their layers' calls
(``F.linear(x, layer.weight)``). Never invalid, as it only grows: if the model no longer reads a
parameter so, following its uses costs time alone.
"""

PassFunction = Callable[[Pass, Given, Collection[str]], None]
"""A function like ``run_pass``. Its last argument: the parameters that are read next to their
layers' calls.
"""


def run(given: Given, *, passed: PassFunction | None = None, copies: bool = False) -> list[Any]:
    """The values of the frame's blocks, by a forward and a backward pass.

    If a gradient arrives next to a layer's call, the pass is thrown away. In the next one these
    parameters are followed by their uses.
    passed: another pass than ``run_pass``.
    copies: whether that pass copies such parameters for each example, carried ones as well.
    """
    model, frame, step = given.model, given.frame, given.new_pass()
    while step.batch:
        read = _read.get(model, frozenset())
        try:
            (passed or run_pass)(step, given, read)
            break
        except ReadElsewhereError as error:
            carried = {c.name for c in frame.coordinates if c.carried} | set(given.factored)
            can_follow = given.parameters.keys() - read - (set() if copies else carried)
            if not error.names or not set(error.names) <= can_follow:
                raise
            step = given.new_pass()
            _read[model] = read | set(error.names)
    values = []
    for block, value in zip(frame.blocks, step.values, strict=True):
        values.append(given.like.new_zeros(step.batch, block.kept) if value is None else value)
    return values


def run_pass(step: Pass, given: Given, read: Collection[str]) -> None:
    """One pass, in which the parameters ``read`` are followed by their uses."""
    precision, parameters = given.precision, given.parameters
    prepared = prepare(given.model, given.frame, precision, read)
    step.ways, step.parameters = prepared.ways, prepared.parameters
    with force_eager():
        step.survey = survey_of(given.model, given.inputs, parameters, prepared.facts.answers)
    reads_shared = any(None in axes for axes in step.survey.layers.values())
    if step.ways.calls or step.ways.uses or reads_shared:
        step.uses = Uses(step=step, starts=step.starts)
    hooked = hook_layers(given.model, step, prepared)
    with force_eager(), rounding(given) as step.storage, hooked, torch.enable_grad():
        losses = losses_of(
            given.model,
            given.loss_fn,
            given.inputs,
            given.targets,
            precision,
            batch=step.batch,
            like=given.like,
        )
        followed = step.uses is not None  # the end of the context drops them
        step.backward(losses)
    if followed and step.survey.failure:
        raise UnsupportedLayerError(
            f"the model runs on the batch of {step.batch}, but not on one and on three copies of a "
            f"row in eval mode ({step.survey.failure}), so that it is not known which dimension "
            "has the examples; make it run on them"
        )


def rounding(given: Given) -> AbstractContextManager[Any]:
    """A context in which activations are stored in fewer bits, if the precision says so."""
    rounds = given.precision.rounds_activations
    return round_activations(given.model, given.inputs) if rounds else nullcontext()


def survey_of(
    model: nn.Module, inputs: Batch, parameters: Checked, answers: dict[Hashable, Any]
) -> Survey:
    """Where the examples are in the inputs of the model's layers and in the reads of its tables.

    answers: of ``model_facts``, where the survey is kept.
    A dimension of length 1 could be a batch or a sequence, so that surveys are kept apart by which
    dimensions have length 1.
    """
    shapes = [t.shape for t in fields_of(inputs).values()]
    kind = (*parameters, *(tuple(n == 1 for n in shape[1:]) for shape in shapes))

    def run_on_copies(scales: tuple[float, ...]) -> Any:
        return call(model, each(inputs, lambda t: copies_of(t, scales)))

    return survey(model, run_on_copies, kind, answers)


def summable(frame: Frame) -> bool:
    """Whether the frame's coordinates are the parameters themselves, all of weight 1."""
    carried = any(c.carried for c in frame.coordinates)
    return not carried and all(b.weight == 1 for b in frame.blocks)


def summed_gradient(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    checked: Checked | None = None,
    precision: Precision = FLOAT32,
) -> Float[Tensor, " kept"]:
    """Kept coordinates of the sum of the examples' gradients.

    It is the sum over rows of ``per_example_gradients``. Guarantees and errors as
    ``summed_gradients``.
    """
    gradients = summed_gradients(
        model, loss_fn, inputs, targets, frame, checked=checked, precision=precision
    )
    flat = torch.cat([g.flatten() for g in gradients])
    return flat if frame.kept == frame.size else flat[frame.indices_on(flat.device)]


def summed_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    checked: Checked | None = None,
    precision: Precision = FLOAT32,
) -> list[Tensor]:
    """The sum of the examples' gradients, one tensor for each whole parameter, in model order.

    Guarantee: no parameter's ``.grad`` changes. An empty batch, and a layer that is not reached,
    give zeros.
    Raises the errors of ``per_example_gradients`` for the model, and ValueError for losses of
    another shape than (B,). ``checked`` and ``precision`` as there.
    """
    parameters = list((check(model, frame) if checked is None else checked).values())
    batch = batch_size(inputs, targets)
    if not batch:
        return [torch.zeros_like(p, requires_grad=False) for p in parameters]
    with ExitStack() as contexts:
        if precision.rounds_activations:
            contexts.enter_context(force_eager())
            contexts.enter_context(round_activations(model, inputs))
        contexts.enter_context(torch.enable_grad())
        losses = losses_of(
            model, loss_fn, inputs, targets, precision, batch=batch, like=parameters[0]
        )
        gradients = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
    return [
        torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)
    ]


def batch_size(inputs: Batch, targets: Batch) -> int:
    """The first dimension that all tensors share. Raises ValueError if they differ in it."""
    tensors = [t for group in (inputs, targets) for t in fields_of(group).values()]
    sizes = {t.shape[0] if t.ndim else None for t in tensors}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:  # they differ, or have no dimension
        shapes = [tuple(t.shape) for t in tensors]
        raise ValueError(
            f"expected inputs and targets that share their first dimension, the batch, got "
            f"{shapes}; {BY_NAME}"
        )
    return size


def call(model: nn.Module, inputs: Batch) -> Any:
    """The model's outputs.

    Inputs are detached: nothing reads a gradient with respect to them.
    """
    if isinstance(inputs, Tensor):
        return model(inputs.detach())
    return model(**{name: t.detach() for name, t in inputs.items()})


def losses_of(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    precision: Precision,
    *,
    batch: int,
    like: Tensor,
) -> Float[Tensor, " batch"]:
    """The loss of each of ``batch`` examples, on the device of ``like``.

    Raises ValueError for losses of another shape than (B,): with a mean, every gradient would be
    divided by B.
    """
    losses: Tensor = precision.losses(partial(call, model, inputs), loss_fn, targets, like)
    if losses.shape != (batch,):
        raise ValueError(
            f"expected one loss an example, shape ({batch},), got shape {tuple(losses.shape)}: use "
            "reduction='none', and average within an example only"
        )
    return losses
