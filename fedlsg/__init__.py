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
    from fedlsg.gradients.calls import register_layer
    from fedlsg.gradients.replacements import make_supported
    from fedlsg.lowrank import decompose, project, reconstruct
    from fedlsg.method import Method
    from fedlsg.payload import pack, unpack
    from strategies import recipe

    __version__: str

__all__ = [
    "Method", "__version__", "calibrate_noise_multiplier", "decompose", "epsilon", "make_supported", "pack", "project",
    "recipe", "reconstruct", "register_layer", "unpack",
]  # fmt: skip

_PLACES = {
    "calibrate_noise_multiplier": "fedlsg.accounting",
    "decompose": "fedlsg.lowrank",
    "epsilon": "fedlsg.accounting",
    "make_supported": "fedlsg.gradients.replacements",
    "Method": "fedlsg.method",
    "pack": "fedlsg.payload",
    "project": "fedlsg.lowrank",
    "recipe": "strategies",
    "reconstruct": "fedlsg.lowrank",
    "register_layer": "fedlsg.gradients.calls",
    "unpack": "fedlsg.payload",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("fedlsg.version").version()
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
