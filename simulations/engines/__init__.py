"""Engines: where clients run. ``local`` is one process; ``flower`` is Flower on Ray."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any


def engine(name: str) -> Callable[..., dict[str, Any]]:
    """The ``run(plan, directory, *, on_round) -> summary`` of an engine, imported when asked for."""
    run: Callable[..., dict[str, Any]] = import_module(f"{__name__}.{name}").run
    return run


def ahead(name: str) -> AbstractContextManager[None]:
    """What of an engine can get ready while a run of it is still being planned; nothing of it is left after leaving."""
    if name != "flower":
        return nullcontext()
    from simulations.flower_home import importing_ahead

    return importing_ahead()
