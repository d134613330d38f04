"""What was found out about a model, for as long as it stays as it is: checked once, and not in
every step.

All answers here are functions of the structure and the numbers of the model's fingerprint
(``fingerprint``), which is taken anew before an answer is given: in a small part of the time of the
answers. So a layer that was replaced, frozen, tied, untied, cast or switched between two steps is
checked as if it were new. Where the examples are (``survey``) depends on the code of the model,
too: on hooks, a ``forward`` of a module's own, and on numbers and words that modules keep
(``self.time_first``); what they keep in other objects is not seen. Values of parameters and batches
are no part of it: whatever depends on them is found out in every pass.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn

from fedlsg.frame import Frame
from fedlsg.gradients.calls.registry import Ways, registered_layers, ways_of
from fedlsg.gradients.hooked_pass.activation_storage import NORMS
from fedlsg.gradients.hooked_pass.call_layers import CallLayer, call_layers
from fedlsg.gradients.hooked_pass.hooked_layers import (
    Layer,
    Slot,
    make_layers,
    make_slots,
    modules_of,
    through_outputs,
)
from fedlsg.gradients.hooked_pass.precision import Precision
from fedlsg.gradients.hooked_pass.supported import Checked, check_frame, check_supported, trainable
from fedlsg.user_code.fingerprint import fingerprint_of_modules


@dataclass(frozen=True)
class ModelFacts:
    """The answers about a model in one state.

    ``alive``: its modules and parameters; while they live, no other object has their id.
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
    now = fingerprint_of_modules(model)
    marks = tuple(registered_layers().items()), now.structure, now.numbers
    entry = _facts.get(model)
    if entry is None or entry.marks != marks or any([part() is None for part in entry.alive]):
        entry = _facts[model] = ModelFacts(marks, [ref(part) for part in now.parts])
    return entry


def forget(model: nn.Module) -> None:
    """What the answers do not see may have changed: methods of classes, functions and objects in
    attributes.
    """
    _facts.pop(model, None)


def check(model: nn.Module, frame: Frame, now: ModelFacts | None = None) -> Checked:
    """The trainable parameters. Raises UnsupportedLayerError if gradients in the frame cannot be
    computed.

    A model that has not changed is not checked again for a frame of the same coordinates. ``now``:
    its ``ModelFacts``.
    """
    checked = (now or facts_of(model)).answers
    trained: Checked | None = checked.get(frame.layout)
    if trained is None:
        check_supported(model)
        check_frame(model, frame.embedded or frame)
        trained = checked[frame.layout] = trainable(model)
    return trained


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """What a pass over a model in a frame needs; microbatches of a step share it.

    ``facts``: of the model in the state for which it was made.
    ``norms``: its norms that are not layers.
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
    """Inside, passes in a frame take the shortcuts of the first one: nothing moves weights between
    microbatches.
    """
    _same_weights[frame] = None
    try:
        yield
    finally:
        del _same_weights[frame]


def prepare(
    model: nn.Module, frame: Frame, precision: Precision, read: Collection[str]
) -> Prepared:
    """What a pass needs, with the shortcuts that the weights of now allow.

    ``read``: parameters that are followed by their uses. A model that changed since it was checked
    is checked again.
    """
    now, kind = facts_of(model), (precision.mixed, frozenset(read))
    before = _same_weights.get(frame)
    if before is not None and before.facts is now and before.kind == kind:
        return before
    parameters = check(model, frame, now)
    ways = ways_of(model, read)
    slots = make_slots(frame, next(iter(parameters.values())).device)
    layers = make_layers(model, frame, precision, ways, slots)
    through_outputs(layers)
    hooked = {id(layer.module) for layer in layers}
    norms = [m for m in modules_of(model).values() if type(m) in NORMS and id(m) not in hooked]
    prepared = Prepared(
        facts=now,
        parameters=parameters,
        kind=kind,
        ways=ways,
        slots=slots,
        layers=layers,
        calls=list(call_layers(model, ways, slots)) if ways.calls else [],
        norms=norms,
    )
    if frame in _same_weights:
        _same_weights[frame] = prepared
    return prepared
