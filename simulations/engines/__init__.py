"""Engines: where clients run. ``local`` is one process; ``flower`` is Flower on Ray."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def engine(name: str) -> Callable[..., dict[str, Any]]:
    """The ``run(plan, directory, *, on_round) -> summary`` of an engine, imported when asked for."""
    run: Callable[..., dict[str, Any]] = import_module(f"{__name__}.{name}").run
    return run
