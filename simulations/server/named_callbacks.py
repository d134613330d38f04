"""The setting ``callbacks``: names with parameters, "early-stopping patience=3; wandb"."""

from collections.abc import Callable, Mapping
from inspect import isclass, isfunction
from types import MappingProxyType
from typing import Any

from fedlsg.config import declared, unknown
from fedlsg.config.choices import did_you_mean
from fedlsg.simulations.server.best_round import BestModel, EarlyStopping
from fedlsg.simulations.server.callbacks import Callback, Function
from fedlsg.simulations.server.loggers import MLflow, WeightsAndBiases
from fedlsg.simulations.settings.settings import callback_words
from fedlsg.user_code import is_reference, load

BUILT_IN: Mapping[str, type[Callback]] = MappingProxyType(
    {
        "early-stopping": EarlyStopping,
        "best-model": BestModel,
        "mlflow": MLflow,
        "wandb": WeightsAndBiases,
    }
)


def named(text: str | None) -> tuple[Callback, ...]:
    """The callbacks that the setting names.

    Raises ValueError for an unknown name or parameter, with the nearest known one.
    """
    return tuple(_callback(*words) for words in callback_words(text or ""))


def _callback(name: str, *parameters: str) -> Callback:
    """The callback of this name, or of a user's file, with parameters as "name=value"."""
    if is_reference(name):
        return _own_callback(name, load(name, "callback"), parameters)
    if name not in BUILT_IN:
        known = ", ".join(BUILT_IN)
        raise ValueError(
            f"callbacks: unknown name {name!r}{did_you_mean(name, BUILT_IN)}; expected {known} or "
            "FILE.py:NAME"
        )
    return BUILT_IN[name](**_parse_parameters(name, BUILT_IN[name], parameters))


def _own_callback(name: str, loaded: Any, parameters: tuple[str, ...]) -> Callback:
    """An object of a user's own class, or a user's function of a row."""
    if isclass(loaded) and issubclass(loaded, Callback):
        return loaded(**_parse_parameters(name, loaded, parameters))
    if isinstance(loaded, Callback) or not callable(loaded) or parameters:
        raise ValueError(
            f"callbacks: expected {name} to be a class of fedlsg.Callback, or a function of a dict "
            "without parameters"
        )
    return Function(loaded)


def _parse_parameters(
    name: str, make: Callable[..., Callback], texts: tuple[str, ...]
) -> dict[str, Any]:
    """The arguments for a callback, in the types that its ``__init__`` declares."""
    # a class without an ``__init__`` of its own takes no parameter
    known = declared(make.__init__, without=("self",)) if isfunction(make.__init__) else {}
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.replace("-", "_")
        if not equals:
            raise ValueError(f"callbacks: expected {text!r} of {name} as parameter=value")
        if key not in known:
            raise unknown(f"parameter of {name}", key, known)
        values[key] = known[key].parse(value)
    return values
