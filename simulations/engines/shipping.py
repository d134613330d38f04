"""Sending a user's own code to Ray workers: methods, and the workload with its rows.

Functions and classes of ``__main__``, of a notebook, of files that a setting names, of a user's
modules and of their neighbours in the same folders are sent by value. Code in site-packages or
dist-packages is sent by name: each machine has the package. An editable installation is no such
code.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fedlsg import strategies, user_code
from fedlsg.config.directions import DirectedMetric
from fedlsg.gradients.calls import CallGradients, register_layer, registered_layers
from fedlsg.gradients.losses import PerExampleLoss
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.workloads.base.public_inputs import CheckedDraw
from fedlsg.simulations.workloads.rows.transform import Prepare
from fedlsg.user_code.failure import is_users

WRAPPERS = {
    PerExampleLoss: "loss",
    DirectedMetric: "metric",
    Prepare: "transform",
    CheckedDraw: "draw",
}
"""The field of each wrapper of fedlsg that has the user's function."""


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """What the workers of a run are sent.

    recipes: methods by name.
    layers: gradients of registered layers, by type.
    workload: the loaded workload; None if each machine loads it.
    """

    recipes: Mapping[str, Any]
    layers: Mapping[type[nn.Module], CallGradients]
    workload: Any

    def unpack(self) -> None:
        """Register the recipes and the layers in this process."""
        strategies.forget()
        for name, build in self.recipes.items():
            strategies.give(name, build)
        for kind, gradients in self.layers.items():
            if kind not in registered_layers():
                register_layer(kind, gradients)


def shipment(plan: Plan) -> Shipment | None:
    """The shipment for the workers of a run; None if every machine has its code and data."""
    s = plan.settings
    recipes = {name: build for name, build in strategies.given().items() if name == s.method}
    sends_workload = s.data_from == "driver" or workloads.own(s.workload) is not None
    if not recipes and not sends_workload:
        return None
    # without ``read``, which only deployed clients use: it may hold an encoder of features
    workload = replace(plan.workload, read=None) if sends_workload else None
    return Shipment(recipes=recipes, layers=registered_layers(), workload=workload)


def put(shipped: Shipment) -> Any:
    """Put a shipment into Ray's object store; returns the reference.

    Raises ValueError, with the part that cannot be sent and what to do.
    """
    import ray
    from ray import cloudpickle

    with _by_value(shipped, cloudpickle):
        try:
            return ray.put(shipped)
        except Exception as error:  # not ``from error``: Ray's text quotes all rows
            why = str(error.__cause__ or error).partition("\n")[0]
            culprit = _culprit(shipped, cloudpickle)
    raise ValueError(
        f"{culprit} cannot be sent to Ray workers: {why}. Build models, open files and take locks "
        "inside of the functions; or choose engine=local"
    )


def _culprit(shipped: Shipment, cloudpickle: Any) -> str:
    """The first part of a user's that cannot be pickled, in words."""
    for words, part in _parts(shipped).items():
        try:
            cloudpickle.dumps(part)
        except Exception:
            return words
    return "the workload or method"


def _parts(shipped: Shipment) -> dict[str, Any]:
    """What a user can have written, in words."""
    parts = {f"method {name}": build for name, build in shipped.recipes.items()}
    for kind, gradients in shipped.layers.items():
        parts |= {
            f"layer {kind.__name__}": kind,
            f"gradients of layer {kind.__name__}": gradients,
        }
    if shipped.workload is not None:
        workload = shipped.workload
        parts |= {f"model {name!r}": build for name, build in workload.models.items()}
        parts |= {"the loss": workload.loss, "the transform": workload.test.prepare}
        parts |= {"the transform of train": workload.train.prepare}
        parts |= {f"metric {name!r}": metric for name, metric in workload.metrics.items()}
        parts |= {f"the probe {name!r}": draw for name, draw in workload.synthetic.items()}
    return parts


@contextmanager
def _by_value(shipped: Shipment, cloudpickle: Any) -> Iterator[None]:
    """Let cloudpickle send the user's modules by value in the block."""
    registered = []
    try:
        for module in own_modules(shipped):
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def own_modules(shipped: Shipment) -> list[ModuleType]:
    """The modules of the user's files: of the sent objects, and others in the same folders."""
    functions = map(_user_function, _parts(shipped).values())
    folders = {Path(file).parent for file in map(_file, functions) if file is not None}
    modules = {module.__name__: module for module in user_code.modules_of_files()}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).parent in folders:
            modules[module.__name__] = module
    modules.pop("__main__", None)
    return list(modules.values())


def _user_function(part: Any) -> Any:
    """The user's function inside of a wrapper of fedlsg; ``part`` itself if it is none."""
    for kind, name in WRAPPERS.items():
        if isinstance(part, kind):
            return getattr(part, name)
    return part


def _file(function: Any) -> str | None:
    """The file of a function's module; None if it is installed, or part of fedlsg or Python."""
    function = getattr(function, "func", function)  # of a partial
    name = str(getattr(function, "__module__", None) or type(function).__module__)
    top = name.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or top in ("__main__", "fedlsg") or top in sys.stdlib_module_names:
        return None
    return str(file) if is_users(str(file)) else None
