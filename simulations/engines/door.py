"""Access to Ray: which Ray this process uses, and the token that Ray asks of everybody.

A process uses a Ray of its own, a Ray that it uses already, or the cluster of RAY_ADDRESS. A Ray of
our own asks for a token; for another Ray we print what is open. Loopback is not private: every user
of a machine reaches it, and who reaches Ray's ports can run code as its owner. With
``RAY_AUTH_MODE=token`` Ray's services refuse calls without the token. The token is in a file, so
that argument lists and environments have only its path.
"""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from typing import Any


def joins_cluster() -> bool:
    """Whether runs join an existing Ray cluster."""
    return os.environ.get("RAY_ADDRESS", "local") not in ("", "local")


def in_use() -> bool:
    """Whether this process uses Ray already, as a notebook may; runs share it and do not end it."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Ray's variables: whether it asks for a token, the token, and the file with it."""
OPEN = (
    "this Ray cluster asks nobody for a token: who reaches its ports, other users of its machines "
    "too, can read the run and run code as its owner; start Ray with RAY_AUTH_MODE=token (fedlsg "
    "docs scaling)"
)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let Ray ask for a new token in the block; it is in a file of ``folder``, for its owner only.

    It holds for processes that are started in the block, too. Afterwards the environment is as
    before.
    """
    path = folder / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    with asking_for("token", **{TOKEN: None, PATH: str(path)}):
        yield


@contextmanager
def asking_for(mode: str, **places: str | None) -> Iterator[None]:
    """Set RAY_AUTH_MODE to ``mode`` in the block; afterwards the environment is as before.

    ``places``: other variables of the token, with values; None removes a variable.
    """
    variables = {MODE: mode, **places}
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    """Set variables of the environment, or remove those that are None; Ray reads them again."""
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    _read_again()


def say_what_is_open() -> None:
    """Print one line if this process sends no token to a Ray that it did not start.

    Only the parent of several processes prints it. With a token nothing is printed, although such a
    Ray may accept calls without it: nobody can know.
    """
    if os.environ.get(MODE) != "token" and parent_process() is None:
        print(f"fedlsg: {OPEN}", file=sys.stderr)


def _read_again() -> None:
    """Let Ray read its environment again, if it is imported."""
    if "ray" in sys.modules:
        from ray import _raylet

        raylet: Any = _raylet  # of Cython
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def limited_memory() -> str:
    """A sentence about a limit of address space (``ulimit -v``), and what to do; "" without one.

    Ray's processes reserve far more than they use, 30 % of the machine's memory for its store
    alone, and abort under such a limit.
    """
    if sys.platform == "win32":
        return ""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return (
        f"processes may reserve {limit / 2**30:.3g} GiB of memory here (ulimit -v), and Ray's "
        "reserve more than they use: lift that limit if Ray fails, or take engine=local"
    )
