"""Which Ray a process uses, and who may use it: its own, one that it uses already, or the cluster
of RAY_ADDRESS.

A Ray of our own asks everybody for a token; of a Ray that others started we say what is open.
Loopback is not private: every user of a machine reaches it, and who reaches Ray's ports runs code
as the owner. With ``RAY_AUTH_MODE=token`` Ray's services refuse calls without the token. It is in a
file, so that no argument list and no environment has it, only the path.
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
    """Whether this process uses Ray already, as a notebook may: runs share it, and leave it as it
    is.
    """
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
OPEN = (
    "this Ray cluster asks nobody for a token: who reaches its ports, other users of its machines "
    "too, can read the run and run code as its owner; start Ray with RAY_AUTH_MODE=token (fedlsg "
    "docs scaling)"
)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A Ray that starts inside asks for a new token, which is in a file of ``folder`` that only its
    owner can read.

    So do processes that are started inside, and they have the token. On exit the environment is as
    before.
    """
    path = folder / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    with asking_for("token", **{TOKEN: None, PATH: str(path)}):
        yield


@contextmanager
def asking_for(mode: str, **places: str | None) -> Iterator[None]:
    """Ray asks others for what ``mode`` says, and sends it. ``places``: variables of the token's
    place that are set, or taken out. On exit the environment is as before.
    """
    wanted = {MODE: mode, **places}
    before = {name: os.environ.get(name) for name in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    _read_again()


def say_what_is_open() -> None:
    """Print one line if this process sends no token to a Ray that it did not start; once for runs
    of one parent.

    With a token nothing is said, although such a Ray may take calls without it: it does not tell.
    """
    if os.environ.get(MODE) != "token" and parent_process() is None:
        print(f"fedlsg: {OPEN}", file=sys.stderr)


def _read_again() -> None:
    """Ray, if it is imported, keeps what it has read of the environment."""
    if "ray" in sys.modules:
        from ray import _raylet

        raylet: Any = _raylet  # of Cython
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def limited_memory() -> str:
    """What a limit of address space (``ulimit -v``) does to Ray, and the way out; empty without a
    limit.

    Ray's processes reserve far more than they use, 30 % of the machine's memory for its store
    alone, and abort without a word of ours.
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
