"""What passes over a model in one frame have in common: its ways, layers and calls, made once for both.

A frame is used in several passes: by all clients that a worker trains in a round, in local steps, for microbatches.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn

from fedlsg.frame import Frame
from fedlsg.gradients.called import CallLayer, call_layers
from fedlsg.gradients.calls.ways import BY_LAYERS, Ways, ways_of
from fedlsg.gradients.known import Known, known, modules_of
from fedlsg.gradients.plan import Layer, make_layers, through_outputs
from fedlsg.gradients.precision import Precision
from fedlsg.gradients.rematerialize import NORMS
from fedlsg.gradients.supported import Checked, check


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """See above. ``known``: the state of the model for which it was made. ``norms``: its norms that are no layers."""

    known: Known
    kind: object
    parameters: Checked
    ways: Ways
    layers: Sequence[Layer]
    calls: Sequence[CallLayer]
    norms: Sequence[nn.Module]


_prepared: WeakKeyDictionary[Frame, Prepared] = WeakKeyDictionary()


def prepare(model: nn.Module, frame: Frame, precision: Precision, read: Collection[str]) -> Prepared:
    """What a pass needs, with the shortcuts that the weights of now allow.

    ``read``: parameters that are followed by their uses. A model that changed since it was checked is checked again.
    """
    now, kind = known(model), (precision.mixed, frozenset(read))
    found = _prepared.get(frame)
    if found is None or found.known is not now or found.kind != kind:
        parameters = check(model, frame, now)
        ways = BY_LAYERS if now.answers.get("by layers") and not read else ways_of(model, read)
        now.answers["by layers"] = ways is BY_LAYERS
        layers = make_layers(model, frame, precision, ways)
        hooked = {id(layer.module) for layer in layers}
        norms = [m for m in modules_of(model).values() if type(m) in NORMS and id(m) not in hooked]
        found = _prepared[frame] = Prepared(
            known=now,
            parameters=parameters,
            kind=kind,
            ways=ways,
            layers=layers,
            calls=list(call_layers(model, frame, ways)),
            norms=norms,
        )
    through_outputs(found.layers)
    return found
