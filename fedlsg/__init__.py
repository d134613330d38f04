"""Federated learning whose updates are private, small and tested.

    L, R = fedlsg.decompose(W, rank=4, generator=generator)
    dL, dR = fedlsg.project(dW, L, R)
    dW = fedlsg.reconstruct(dL, dR, L, R)

The public names below are imported when they are first used: ``import fedlsg`` loads neither torch nor Flower.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlsg.accounting import calibrate_noise_multiplier, epsilon
    from fedlsg.carriers import Carrier
    from fedlsg.lowrank import decompose, project, reconstruct
    from fedlsg.masks import Mask
    from fedlsg.method import Method
    from fedlsg.payload import pack, unpack
    from fedlsg.privacy import Mechanism
    from fedlsg.public import Public
    from fedlsg.training import ServerOptimizer
    from simulations.api.finished import Run, load_run
    from simulations.api.simulate import simulate
    from simulations.workloads import Workload
    from strategies import recipe

    __version__: str

__all__ = [
    "Carrier", "Mask", "Mechanism", "Method", "Public", "Run", "ServerOptimizer", "Workload", "__version__",
    "calibrate_noise_multiplier", "decompose", "epsilon", "load_run", "pack", "project", "recipe", "reconstruct",
    "simulate", "unpack",
]  # fmt: skip

_PLACES = {
    "Carrier": "fedlsg.carriers",
    "Mask": "fedlsg.masks",
    "Mechanism": "fedlsg.privacy",
    "Public": "fedlsg.public",
    "ServerOptimizer": "fedlsg.training",
    "calibrate_noise_multiplier": "fedlsg.accounting",
    "decompose": "fedlsg.lowrank",
    "epsilon": "fedlsg.accounting",
    "Method": "fedlsg.method",
    "pack": "fedlsg.payload",
    "project": "fedlsg.lowrank",
    "recipe": "strategies",
    "reconstruct": "fedlsg.lowrank",
    "unpack": "fedlsg.payload",
    "Workload": "simulations.workloads",
    "simulate": "simulations.api.simulate",
    "Run": "simulations.api.finished",
    "load_run": "simulations.api.finished",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("fedlsg.version").version()
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
