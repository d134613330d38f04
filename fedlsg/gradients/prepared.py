"""What passes over a model in one frame have in common: its ways, layers and calls, made once for both.

A frame is used in several passes: by all clients that a worker trains in a round, in local steps, for microbatches.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fedlsg.frame import Frame
from fedlsg.gradients.activation_storage import NORMS
from fedlsg.gradients.called import CallLayer, call_layers
from fedlsg.gradients.calls.registry import BY_LAYERS, Ways, ways_of
from fedlsg.gradients.known import Known, known, modules_of
from fedlsg.gradients.plan import Layer, Slot, make_layers, make_slots, through_outputs
from fedlsg.gradients.precision import Precision
from fedlsg.gradients.supported import Checked, check


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """See above. ``known``: the state of the model for which it was made. ``norms``: its norms that are no layers."""

    known: Known
    kind: object
    parameters: Checked
    ways: Ways
    slots: Sequence[Slot]
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
        slots = make_slots(frame, next(iter(parameters.values())).device)
        layers = make_layers(model, frame, precision, ways, slots)
        hooked = {id(layer.module) for layer in layers}
        norms = [m for m in modules_of(model).values() if type(m) in NORMS and id(m) not in hooked]
        found = _prepared[frame] = Prepared(
            known=now,
            parameters=parameters,
            kind=kind,
            ways=ways,
            slots=slots,
            layers=layers,
            calls=list(call_layers(model, ways, slots)),
            norms=norms,
        )
    through_outputs(found.layers)
    return found


def place(
    placed: list[tuple[dict[Any, Any], object]], module: nn.Module, hook: Callable[..., Any], *, before: bool = False
) -> None:
    """Register a hook with keyword arguments, as torch does in 20 times the time.

    A forward hook comes first, so that it sees the layer's own output, before a hook of the user changes it; a hook
    ``before`` the call comes last.
    """
    own, key = vars(module), object()
    hooks = own["_forward_pre_hooks" if before else "_forward_hooks"]
    hooks[key] = hook
    if not before and len(hooks) > 1:
        hooks.move_to_end(key, last=False)
    marked = own["_forward_pre_hooks_with_kwargs" if before else "_forward_hooks_with_kwargs"]
    marked[key] = True
    placed += ((hooks, key), (marked, key))


def force_eager() -> AbstractContextManager[object]:
    """Switch torch.compile off inside the context.

    A model that is compiled with hooks is compiled again for the hooks of every pass, until torch gives up. A model
    that was compiled without hooks may skip them, and its gradients would silently be zeros.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
