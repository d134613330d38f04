"""Facts about a model, kept for as long as it stays as it is, and not found anew in each step.

All facts here follow from the structure and the numbers of the model's fingerprint
(``fingerprint``). It is taken anew before a fact is read, in a small part of the time that finding
the facts takes. So a layer that was replaced, frozen, tied, untied, cast or switched between two
steps is checked as if it were new. Where the examples are (``survey``) also depends on the code of
the model: on hooks, a ``forward`` of a module's own, and on numbers and words that modules keep
(``self.time_first``). Changes in other objects of modules are not seen. Values of parameters and
batches are not part of the facts: whatever depends on them is computed in every pass.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn

from fedlsg.frame import Frame
from fedlsg.gradients.calls.registry import Ways, registered_layers, ways_of
from fedlsg.gradients.hooked_pass.call_layers import CallLayer, call_layers
from fedlsg.gradients.hooked_pass.hooked_layers import (
    Layer,
    Slot,
    make_layers,
    make_slots,
    modules_of,
    through_outputs,
)
from fedlsg.gradients.hooked_pass.parameters import trainable
from fedlsg.gradients.hooked_pass.precision import Precision
from fedlsg.gradients.hooked_pass.rematerialization import NORMS
from fedlsg.gradients.hooked_pass.supported import Checked, check_frame, check_supported
from fedlsg.user_code.fingerprint import fingerprint_of_modules


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a model in one state.

    marks: the registered layers, with structure and numbers of the fingerprint.
    alive: the model's modules and parameters; while they live, no other object has their id.
    answers: the facts, each under a key of the code that asked for it.
    """

    marks: Hashable
    alive: Sequence[ref[Any]]
    answers: dict[Hashable, Any] = field(default_factory=dict)


_facts: WeakKeyDictionary[nn.Module, ModelFacts] = WeakKeyDictionary()
"""Invalid as soon as the fingerprint or the registered layers are others, and by ``forget``."""


def facts_of(model: nn.Module) -> ModelFacts:
    """The facts about the model as it is now.

    No answer may hold the model itself, or it would never be freed.
    """
    fingerprint = fingerprint_of_modules(model)
    marks = tuple(registered_layers().items()), fingerprint.structure, fingerprint.numbers
    facts = _facts.get(model)
    if facts is None or facts.marks != marks or any([part() is None for part in facts.alive]):
        facts = _facts[model] = ModelFacts(marks, [ref(part) for part in fingerprint.parts])
    return facts


def forget(model: nn.Module) -> None:
    """Drop the facts about a model, because something that the fingerprint does not see may have
    changed: methods of classes, functions and objects in attributes.
    """
    _facts.pop(model, None)


def check(model: nn.Module, frame: Frame, facts: ModelFacts | None = None) -> Checked:
    """The model's trainable parameters, by name, if a pass can compute their gradients in a frame.

    facts: of the model as it is now; by default they are looked up here.
    A model that has not changed is not checked again for a frame of the same coordinates.
    Raises UnsupportedLayerError if gradients in the frame cannot be computed.
    """
    answers = (facts or facts_of(model)).answers
    parameters: Checked | None = answers.get(frame.layout)
    if parameters is None:
        check_supported(model)
        check_frame(model, frame.embedded or frame)
        parameters = answers[frame.layout] = trainable(model)
    return parameters


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """What a pass over a model in a frame needs; microbatches of a step share it.

    facts: of the model in the state for which this was made.
    kind: whether products are in bfloat16, and which parameters are followed by their uses.
    parameters: the trainable parameters, by name.
    ways: how each parameter gets its gradients.
    slots: the frame's blocks.
    layers: layers with formulas.
    calls: layers whose gradients are a function of one call.
    norms: norms without trainable parameters, whose results can be recomputed.
    """

    facts: ModelFacts
    kind: object
    parameters: Checked
    ways: Ways
    slots: Sequence[Slot]
    layers: Sequence[Layer]
    calls: Sequence[CallLayer]
    norms: Sequence[nn.Module]


_same_weights: WeakKeyDictionary[Frame, Prepared | None] = WeakKeyDictionary()
"""Invalid with the ``ModelFacts``, for another precision or other reads, and at the end
of ``same_weights``.
"""


@contextmanager
def same_weights(frame: Frame) -> Iterator[None]:
    """Inside the context, all passes in a frame share the ``Prepared`` of the first one.

    Nothing may change weights inside: microbatches of one step do not.
    """
    _same_weights[frame] = None
    try:
        yield
    finally:
        del _same_weights[frame]


def prepare(
    model: nn.Module, frame: Frame, precision: Precision, read: Collection[str]
) -> Prepared:
    """What a pass needs, with the shortcuts that the current weights allow.

    read: parameters that are followed by their uses.
    A model that changed since it was checked is checked again.
    """
    facts = facts_of(model)
    kind = precision.mixed, frozenset(read)
    before = _same_weights.get(frame)
    if before is not None and before.facts is facts and before.kind == kind:
        return before
    parameters = check(model, frame, facts)
    ways = ways_of(model, read)
    slots = make_slots(frame, next(iter(parameters.values())).device)
    layers = make_layers(model, frame, precision, ways, slots)
    through_outputs(layers)
    hooked = {id(layer.module) for layer in layers}
    norms = [m for m in modules_of(model).values() if type(m) in NORMS and id(m) not in hooked]
    prepared = Prepared(
        facts=facts,
        kind=kind,
        parameters=parameters,
        ways=ways,
        slots=slots,
        layers=layers,
        calls=list(call_layers(model, ways, slots)) if ways.calls else [],
        norms=norms,
    )
    if frame in _same_weights:
        _same_weights[frame] = prepared
    return prepared
