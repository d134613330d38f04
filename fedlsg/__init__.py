"""Federated learning whose updates are private, small and tested.

    L, R = fedlsg.decompose(W, rank=4, generator=generator)
    dL, dR = fedlsg.project(dW, L, R)
    dW = fedlsg.reconstruct(dL, dR, L, R)

The public names below are imported when they are first used: ``import fedlsg`` loads neither torch
nor Flower.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlsg.accounting import calibrate_noise_multiplier, epsilon
    from fedlsg.carriers import Carrier, OwnCarriers
    from fedlsg.frame.public import Public
    from fedlsg.gradients.calls import register_layer
    from fedlsg.gradients.replacements import make_supported
    from fedlsg.lowrank import decompose, project, reconstruct
    from fedlsg.masks import Mask
    from fedlsg.method import Method
    from fedlsg.payload import pack, unpack
    from fedlsg.privacy import Mechanism
    from fedlsg.privacy.data_record import epsilon_of_data
    from fedlsg.setting import Setting
    from fedlsg.training import ServerOptimizer
    from simulations.run.finished import Run, load_run
    from simulations.run.simulate import simulate
    from simulations.server.callbacks import Callback, StopRun
    from simulations.server.named_callbacks import (
        BestModel,
        EarlyStopping,
        MLflow,
        WeightsAndBiases,
    )
    from simulations.workloads import Workload
    from strategies import recipe
    from strategies.private_step import PrivateStep

    __version__: str

__all__ = [
    "BestModel",
    "Callback",
    "Carrier",
    "EarlyStopping",
    "MLflow",
    "Mask",
    "Mechanism",
    "Method",
    "OwnCarriers",
    "PrivateStep",
    "Public",
    "Run",
    "ServerOptimizer",
    "Setting",
    "StopRun",
    "WeightsAndBiases",
    "Workload",
    "__version__",
    "calibrate_noise_multiplier",
    "decompose",
    "epsilon",
    "epsilon_of_data",
    "load_run",
    "make_supported",
    "pack",
    "project",
    "recipe",
    "reconstruct",
    "register_layer",
    "simulate",
    "unpack",
]

_PLACES = {
    "BestModel": "simulations.server.named_callbacks",
    "calibrate_noise_multiplier": "fedlsg.accounting",
    "Callback": "simulations.server.callbacks",
    "Carrier": "fedlsg.carriers",
    "decompose": "fedlsg.lowrank",
    "EarlyStopping": "simulations.server.named_callbacks",
    "epsilon": "fedlsg.accounting",
    "epsilon_of_data": "fedlsg.privacy.data_record",
    "load_run": "simulations.run.finished",
    "make_supported": "fedlsg.gradients.replacements",
    "Mask": "fedlsg.masks",
    "Mechanism": "fedlsg.privacy",
    "Method": "fedlsg.method",
    "MLflow": "simulations.server.named_callbacks",
    "OwnCarriers": "fedlsg.carriers",
    "pack": "fedlsg.payload",
    "PrivateStep": "strategies.private_step",
    "project": "fedlsg.lowrank",
    "Public": "fedlsg.frame.public",
    "recipe": "strategies",
    "reconstruct": "fedlsg.lowrank",
    "register_layer": "fedlsg.gradients.calls",
    "Run": "simulations.run.finished",
    "ServerOptimizer": "fedlsg.training",
    "Setting": "fedlsg.setting",
    "simulate": "simulations.run.simulate",
    "StopRun": "simulations.server.callbacks",
    "unpack": "fedlsg.payload",
    "WeightsAndBiases": "simulations.server.named_callbacks",
    "Workload": "simulations.workloads",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("fedlsg.user_code.digest").version()
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
