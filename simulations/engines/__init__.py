"""Engines: where clients run. ``local`` is one process; ``flower`` is Flower on Ray."""

import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any


def engine(name: str) -> Callable[..., dict[str, Any]]:
    """The ``run(plan, directory, *, on_round) -> summary`` of an engine, imported on demand."""
    run: Callable[..., dict[str, Any]] = import_module(f"{__name__}.{name}").run
    return run


def ahead(name: str) -> AbstractContextManager[None]:
    """Start an engine while its run is still being planned; nothing of it is left on exit."""
    if name != "flower":
        return nullcontext()
    from simulations.engines.runtime.home import importing_ahead

    return importing_ahead()


def engine_of(run: str) -> str:
    """The engine that a run directory names, "" if it cannot be read: opening the directory reports the reason."""
    try:
        return str(tomllib.loads((Path(run).expanduser() / "config.toml").read_text())["engine"])
    except (OSError, ValueError, KeyError):
        return ""
