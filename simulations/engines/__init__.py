"""Engines run the clients of a simulation: ``ray`` in Ray workers, ``local`` in this process."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from fedlsg import bounded


def engine(name: str) -> Callable[..., dict[str, Any]]:
    """The function ``run(plan, directory, *, on_round, callbacks) -> summary`` of an engine.

    Its module is imported on demand. A run of ``flwr run`` (flower) is continued on Ray.
    """
    module = import_module(f"{__name__}.{'ray' if name == 'flower' else name}")
    run: Callable[..., dict[str, Any]] = module.run
    return run


def use_cluster(address: str | None, engine: str) -> None:
    """Let the engine ray join a cluster, in this process and in those that it starts.

    Nothing changes if ``address`` is None. Raises ValueError for another engine.
    """
    if address is None:
        return
    if engine == "local":
        raise ValueError(
            f"--ray-address {address} is for engine ray, and engine=local starts no Ray: leave out "
            "one"
        )
    os.environ["RAY_ADDRESS"] = address


def ahead(name: str, *, several: bool = False) -> AbstractContextManager[None]:
    """Start an engine while its run, or the first of ``several``, is still being planned.

    Nothing of it is left after the block.
    """
    if name not in ("ray", "flower"):
        return nullcontext()
    from fedlsg.simulations.engines.cluster import starting_ahead

    return starting_ahead(several=several)


def engine_of(run: str) -> str:
    """The engine that a run directory names; "" if it cannot be read, which is reported later."""
    try:
        return str(bounded.read_toml(Path(run).expanduser() / "config.toml")["engine"])
    except (OSError, ValueError, KeyError):
        return ""
