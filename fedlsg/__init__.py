"""Federated learning whose updates are private, small and tested.

    L, R = fedlsg.decompose(W, rank=4, generator=generator)
    dL, dR = fedlsg.project(dW, L, R)
    dW = fedlsg.reconstruct(dL, dR, L, R)

The public names below are imported when they are first used: ``import fedlsg`` loads neither torch
nor Flower.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ != "fedlsg":
    raise ImportError("expected the name fedlsg: another name would be a second copy of it")
if not Path(__file__).with_name("strategies").exists():
    # A Flower bundle has no links: its folders are next to this one.
    __path__.append(str(Path(__file__).resolve().parents[1]))

if TYPE_CHECKING:
    from fedlsg.accounting import calibrate_noise_multiplier, epsilon
    from fedlsg.carriers import Carrier, OwnCarriers
    from fedlsg.config import Setting
    from fedlsg.config.directions import Higher, Lower
    from fedlsg.frame.public import Public
    from fedlsg.gradients.calls import register_layer
    from fedlsg.gradients.replacements import make_supported
    from fedlsg.lowrank import decompose, project, reconstruct
    from fedlsg.masks import Mask
    from fedlsg.method import Method
    from fedlsg.payload import pack, unpack
    from fedlsg.privacy import Mechanism
    from fedlsg.privacy.data_record import epsilon_of_data
    from fedlsg.privacy.ledger import Ledger
    from fedlsg.simulations.compare.in_python import compare
    from fedlsg.simulations.run.finished import Run, load_run
    from fedlsg.simulations.run.simulate import simulate
    from fedlsg.simulations.server.best_round import BestModel, EarlyStopping
    from fedlsg.simulations.server.callbacks import Callback, StopRun
    from fedlsg.simulations.server.loggers import MLflow, WeightsAndBiases
    from fedlsg.simulations.workloads import Workload
    from fedlsg.simulations.workloads import load as load_workload
    from fedlsg.strategies import recipe
    from fedlsg.strategies.private_step import PrivateStep
    from fedlsg.training import ServerOptimizer

    __version__: str

__all__ = [
    "BestModel",
    "Callback",
    "Carrier",
    "EarlyStopping",
    "Higher",
    "Ledger",
    "Lower",
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
    "compare",
    "decompose",
    "epsilon",
    "epsilon_of_data",
    "load_run",
    "load_workload",
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
    "BestModel": "fedlsg.simulations.server.best_round",
    "calibrate_noise_multiplier": "fedlsg.accounting",
    "Callback": "fedlsg.simulations.server.callbacks",
    "Carrier": "fedlsg.carriers",
    "compare": "fedlsg.simulations.compare.in_python",
    "decompose": "fedlsg.lowrank",
    "EarlyStopping": "fedlsg.simulations.server.best_round",
    "epsilon": "fedlsg.accounting",
    "epsilon_of_data": "fedlsg.privacy.data_record",
    "Higher": "fedlsg.config.directions",
    "Ledger": "fedlsg.privacy.ledger",
    "load_run": "fedlsg.simulations.run.finished",
    "load_workload": "fedlsg.simulations.workloads:load",
    "Lower": "fedlsg.config.directions",
    "make_supported": "fedlsg.gradients.replacements",
    "Mask": "fedlsg.masks",
    "Mechanism": "fedlsg.privacy",
    "Method": "fedlsg.method",
    "MLflow": "fedlsg.simulations.server.loggers",
    "OwnCarriers": "fedlsg.carriers",
    "pack": "fedlsg.payload",
    "PrivateStep": "fedlsg.strategies.private_step",
    "project": "fedlsg.lowrank",
    "Public": "fedlsg.frame.public",
    "recipe": "fedlsg.strategies",
    "reconstruct": "fedlsg.lowrank",
    "register_layer": "fedlsg.gradients.calls",
    "Run": "fedlsg.simulations.run.finished",
    "ServerOptimizer": "fedlsg.training",
    "Setting": "fedlsg.config",
    "simulate": "fedlsg.simulations.run.simulate",
    "StopRun": "fedlsg.simulations.server.callbacks",
    "unpack": "fedlsg.payload",
    "WeightsAndBiases": "fedlsg.simulations.server.loggers",
    "Workload": "fedlsg.simulations.workloads",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("fedlsg.user_code.digest").version()
    if name == "flower":
        return import_module("fedlsg.flower")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, name_there = _PLACES[name].partition(":")
    return getattr(import_module(module), name_there or name)


def __dir__() -> list[str]:
    return __all__
