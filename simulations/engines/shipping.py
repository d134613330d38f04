"""Code of a user's own on its way to Ray workers that never imported it: methods and the loaded
workload, by value.

Functions and classes of ``__main__``, of a notebook, and of files that were named in a setting are
sent as they are.
What an installed package holds is sent by name: each machine has the package.
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
from fedlsg.gradients.calls import CallGradients, register_layer, registered_layers
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """``recipes`` by name, gradients of ``layers`` by type; ``workload``: None if each machine
    loads its own.
    """

    recipes: Mapping[str, Any]
    layers: Mapping[type[nn.Module], CallGradients]
    workload: Any

    def unpack(self) -> None:
        """Let this process find the recipes under their names, and the gradients of the layers."""
        strategies.forget()
        for name, build in self.recipes.items():
            strategies.give(name, build)
        for kind, gradients in self.layers.items():
            if kind not in registered_layers():
                register_layer(kind, gradients)


def shipment(plan: Plan) -> Shipment | None:
    """What the workers of a run need to be sent; None if its code and data are everywhere."""
    s = plan.settings
    method = {name: build for name, build in strategies.given().items() if name == s.method}
    data = s.data_from == "driver" or workloads.own(s.workload) is not None
    if not method and not data:
        return None
    # Only deployed clients read rows of their own, and the encoder of features need not travel.
    workload = replace(plan.workload, read=None) if data else None
    return Shipment(recipes=method, layers=registered_layers(), workload=workload)


def put(shipped: Shipment) -> Any:
    """A reference to it in Ray's object store. Raises ValueError, naming what cannot be sent and
    the fix.
    """
    import ray
    from ray import cloudpickle

    try:
        with _by_value(shipped, cloudpickle):
            return ray.put(shipped)
    except Exception as error:  # Ray's text has all rows
        why = str(error.__cause__ or error).partition("\n")[0]
    raise ValueError(
        f"{_culprit(shipped, cloudpickle)} cannot be sent to Ray workers: {why}. Build models, "
        "open files and take locks inside of the functions; or choose engine=local"
    )


def _culprit(shipped: Shipment, cloudpickle: Any) -> str:
    """The first part that cannot be pickled, in words."""
    named = {f"method {name}": build for name, build in shipped.recipes.items()}
    if shipped.workload is not None:
        own = shipped.workload
        named |= {f"model {name!r}": build for name, build in own.models.items()}
        named |= {"the loss": own.loss, "the transform": own.test.prepare}
        named |= {f"metric {name!r}": metric for name, metric in own.metrics.items()}
        named |= {f"the probe {name!r}": draw for name, draw in own.synthetic.items()}
    for words, thing in named.items():
        try:
            cloudpickle.dumps(thing)
        except Exception:
            return words
    return "the workload or method"


@contextmanager
def _by_value(shipped: Shipment, cloudpickle: Any) -> Iterator[None]:
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
    """Modules of the user's files: those of the things sent, and their neighbours in the same
    folders.
    """
    things = [*shipped.recipes.values(), *shipped.layers, *shipped.layers.values()]
    if shipped.workload is not None:
        own = shipped.workload
        things += [
            *own.models.values(),
            own.loss,
            getattr(own.loss, "loss", None),
            *(getattr(metric, "metric", metric) for metric in own.metrics.values()),
        ]
        things += [getattr(split.prepare, "transform", None) for split in (own.train, own.test)]
    folders = {Path(file).parent for thing in things if (file := _file(thing)) is not None}
    named = user_code.modules_of_files()
    near = [
        module
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None)) and Path(file).parent in folders
    ]
    return list(
        {
            module.__name__: module for module in (*named, *near) if module.__name__ != "__main__"
        }.values()
    )


def _file(thing: Any) -> str | None:
    """The file of a thing's module, unless it is installed or part of fedlsg or Python."""
    thing = getattr(thing, "func", thing)
    name = str(getattr(thing, "__module__", None) or type(thing).__module__)
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    top = name.partition(".")[0]
    known = top in ("__main__", "fedlsg") or top in sys.stdlib_module_names
    if file is None or known:
        return None
    return None if "site-packages" in Path(file).parts else str(file)
