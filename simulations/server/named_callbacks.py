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
    """The callbacks of a setting. Raises ValueError for an unknown name or parameter, with the
    nearest known one.
    """
    return tuple(_callback(*words) for words in callback_words(text or ""))


def _callback(name: str, *given: str) -> Callback:
    if is_reference(name):
        return _own(name, load(name, "callback"), given)
    if name not in BUILT_IN:
        known = ", ".join(BUILT_IN)
        raise ValueError(
            f"callbacks: unknown name {name!r}{did_you_mean(name, BUILT_IN)}; expected {known} or "
            "FILE.py:NAME"
        )
    return BUILT_IN[name](**_parameters(name, BUILT_IN[name], given))


def _own(name: str, found: Any, given: tuple[str, ...]) -> Callback:
    """A class of a user's own, made here, or a function of a row."""
    if isclass(found) and issubclass(found, Callback):
        return found(**_parameters(name, found, given))
    if isinstance(found, Callback) or not callable(found) or given:
        raise ValueError(
            f"callbacks: expected {name} to be a class of fedlsg.Callback, or a function of a dict "
            "without parameters"
        )
    return Function(found)


def _parameters(name: str, of: Callable[..., Callback], given: tuple[str, ...]) -> dict[str, Any]:
    # the hints of a class are those of its fields; a class without __init__ takes no parameter
    own = isfunction(of.__init__)
    known = declared(of.__init__, without=("self",)) if own else {}
    values = {}
    for part in given:
        key, equals, value = part.partition("=")
        key = key.replace("-", "_")
        if not equals:
            raise ValueError(f"callbacks: expected {part!r} of {name} as parameter=value")
        if key not in known:
            raise unknown(f"parameter of {name}", key, known)
        values[key] = known[key].parse(value)
    return values
