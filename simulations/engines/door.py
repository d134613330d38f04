"""Who may use Ray: a Ray of our own asks everybody for a token; of a Ray that others started we say what is open.

Loopback is not private: every user of a machine reaches it, and who reaches Ray's ports runs code as the owner. With
``RAY_AUTH_MODE=token`` Ray's services refuse calls without the token. It is in a file, so that no argument list and no
environment has it, only the path.
"""

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
OPEN = (
    "this Ray cluster asks nobody for a token: who reaches its ports, other users of its machines too, can read "
    "the run and run code as its owner; start Ray with RAY_AUTH_MODE=token (fedlsg docs scaling)"
)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A Ray that starts inside asks for a new token, which is in a file of ``folder`` that only its owner can read.

    So do processes that are started inside, and they have the token. On exit the environment is as before.
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
    """Print one line if this process sends no token to a Ray that it did not start; once for runs of one parent.

    With a token nothing is said, although such a Ray may take calls without it: it does not tell.
    """
    if os.environ.get(MODE) != "token" and parent_process() is None:
        print(f"fedlsg: {OPEN}", file=sys.stderr)


def token_hint(foreign: bool) -> str:
    """What to do where a cluster cannot be joined, perhaps because it asks for a token and we have none."""
    has_none = foreign and os.environ.get(MODE) != "token"
    return (
        f". If it asks for a token, set {MODE}=token, and {PATH} unless it is in ~/.ray/auth_token" if has_none else ""
    )


def _read_again() -> None:
    """Ray, if it is imported, keeps what it has read of the environment."""
    if "ray" in sys.modules:
        from ray import _raylet

        raylet: Any = _raylet  # of Cython
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
