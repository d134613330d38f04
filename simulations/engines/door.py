"""Which Ray a process uses, and who may use it: its own, one that it uses already, or the cluster
of RAY_ADDRESS.

A Ray of our own asks everybody for a token; of a Ray that others started we say what is open.
Loopback is not private: every user of a machine reaches it, and who reaches Ray's ports runs code
as the owner. With ``RAY_AUTH_MODE=token`` Ray's services refuse calls without the token. It is in a
file, so that no argument list and no environment has it, only the path.
"""

import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

PATIENCE = 10.0
"""Seconds to wait for a cluster to answer."""


def joins_cluster() -> bool:
    """Whether runs join an existing Ray cluster."""
    return os.environ.get("RAY_ADDRESS", "local") not in ("", "local")


def in_use() -> bool:
    """Whether this process uses Ray already, as a notebook may: runs share it, and leave it as it
    is.
    """
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def reachable_cluster() -> str:
    """The address of the cluster that RAY_ADDRESS names. Raises RuntimeError where nobody listens:
    Ray tries for long.

    "auto" is the cluster of ``ray start`` on this machine; Ray itself would also take another run's
    private Ray.
    """
    address = os.environ["RAY_ADDRESS"]
    if address == "auto":
        note = (
            Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
            / "ray"
            / "ray_current_cluster"
        )
        try:
            address = note.read_text().strip()
        except OSError:
            raise RuntimeError(
                "no cluster of ray start runs on this machine: start one, give --ray-address "
                "HOST:PORT, or leave it out"
            ) from None
    named = address
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()) or "/" in host:
        raise RuntimeError(
            "expected --ray-address (or RAY_ADDRESS) auto or HOST:PORT of a cluster that this "
            f"machine is part of, got {address}"
        )
    from ray.util import get_node_ip_address

    if host in ("localhost", "127.0.0.1"):
        # as Ray reads it: machines of a cluster know each other by such addresses
        host = get_node_ip_address()
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise RuntimeError(
            f"no Ray cluster listens on {named} "
            f"({error}{'' if named == f'{host}:{port}' else f', at {host}'}): start it, or leave "
            "out --ray-address and RAY_ADDRESS"
        ) from None
    return f"{host}:{port}"


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
    before = {name: os.environ.pop(name, None) for name in (MODE, TOKEN, PATH)}
    os.environ.update({MODE: "token", PATH: str(path)})
    _read_again()
    try:
        yield
    finally:
        for name, value in before.items():
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


def token_hint(foreign: bool) -> str:
    """What to do where a cluster cannot be joined, perhaps because it asks for a token and we have
    none.
    """
    has_none = foreign and os.environ.get(MODE) != "token"
    return (
        f". If it asks for a token, set {MODE}=token, and {PATH} unless it is in ~/.ray/auth_token"
        if has_none
        else ""
    )


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
