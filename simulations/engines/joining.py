"""Joining the Ray cluster that RAY_ADDRESS (--ray-address) names, with the token that it asks for.

A token is sent only to an address that the user gave, or to a cluster with a Ray process of this
user: every user of the machine can write the note that ``auto`` reads, and can listen where a
cluster listened before. First, one call without a token shows whether the cluster asks for one. So
no token is sent to a cluster that asks for none, and a missing one is reported at once.
"""

import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING

from fedlsg.owner_only import OTHERS_BITS
from fedlsg.simulations.engines.door import MODE, PATH, TOKEN, asking_for

if TYPE_CHECKING:
    import grpc

PATIENCE = 10.0
"""Seconds in which a cluster must answer."""
QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""A call that changes nothing, and that Ray's own clients make first."""
LONGEST_NOTE = 300
"""Bytes that are read of Ray's note with HOST:PORT."""
HOME_TOKEN = "~/.ray/auth_token"
"""Ray's own place for a token."""
NONE_HERE = (
    "no cluster of ray start runs on this machine: start one, give --ray-address HOST:PORT, or "
    "leave it out"
)


@contextmanager
def joining() -> Iterator[str]:
    """The address of the cluster that RAY_ADDRESS names; in the block, Ray sends its token.

    Raises RuntimeError within PATIENCE seconds if nobody listens or answers, or if the token is
    missing or wrong.
    """
    deadline = time.monotonic() + PATIENCE
    address = _address(deadline)
    if not _refuses(address, None, deadline):
        if os.environ.get(MODE) == "token":
            raise RuntimeError(
                f"{MODE}=token is set, and the cluster at {address} asks nobody for a token, so "
                f"its workers have none: start it with {MODE}=token, or unset that to join it "
                "without (fedlsg docs scaling)"
            )
        with asking_for("disabled"):
            yield address
        return
    source = _source(address)
    token = os.environ.get(TOKEN) or _read(source)
    if _refuses(address, token, deadline):
        raise RuntimeError(
            f"the cluster at {address} refuses the token of {source}: copy the cluster's there "
            "(on its first node: ray get-auth-token), mode 600"
        )
    if os.environ.get(MODE) != "token" and parent_process() is None:
        print(f"fedlsg: joining {address} with the token of {source}", file=sys.stderr)
    with asking_for("token"):
        yield address


def _address(deadline: float) -> str:
    """HOST:PORT of the cluster. Raises RuntimeError if nobody listens there."""
    address = os.environ["RAY_ADDRESS"]
    if address == "auto":
        address = _own_cluster()
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
        socket.create_connection((host, int(port)), timeout=_seconds_until(deadline)).close()
    except (OSError, OverflowError) as error:
        at_host = "" if address == f"{host}:{port}" else f", at {host}"
        raise RuntimeError(
            f"no Ray cluster listens on {address} ({error}{at_host}): start it, or leave out "
            "--ray-address and RAY_ADDRESS"
        ) from None
    return f"{host}:{port}"


def _own_cluster() -> str:
    """The address of the cluster that this user's ``ray start`` joined on this machine.

    It is in a note of Ray. Every user can write into the folder of the note. So the note must be
    this user's, or root's, and a Ray process of theirs must belong to the cluster that it names: an
    old note can be put back, and its port may be another user's by now. (Ray itself would also take
    the private Ray of another run.)
    """
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray"
    note = folder / "ray_current_cluster"
    try:
        status, content = _read_note(note)
    except OSError:
        raise RuntimeError(NONE_HERE) from None
    address = content.decode(errors="replace").strip()
    if os.name == "posix" and not (
        status.st_uid in _trusted_users()
        and stat.S_ISREG(status.st_mode)
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise RuntimeError(
            f"{note} says which cluster auto is, and another user (number {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):o}) wrote it or could have: nothing was sent there. "
            "Give --ray-address HOST:PORT of a cluster that you know"
        )
    if not _belongs_here(address):
        raise RuntimeError(
            f"{note} names {address}, and no Ray process of yours on this machine belongs to it: "
            f"nothing was sent there. {NONE_HERE[0].upper()}{NONE_HERE[1:]}"
        )
    return address


def _read_note(note: Path) -> tuple[os.stat_result, bytes]:
    """Status and content of one and the same file; links are not followed."""
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(note, os.O_RDONLY | flags)
    try:
        return os.fstat(descriptor), os.read(descriptor, LONGEST_NOTE)
    finally:
        os.close(descriptor)


def _trusted_users() -> tuple[int, int]:
    """The numbers of root and of this user."""
    return 0, os.geteuid()


def _belongs_here(address: str) -> bool:
    """Whether a raylet of this user's, or of root's, has joined the cluster of this address."""
    import psutil
    import ray  # noqa: F401  # it brings psutil

    for process in psutil.process_iter(["uids", "cmdline"]):
        uids = process.info["uids"]
        is_own = uids is None or uids.effective in _trusted_users()  # Windows has no such numbers
        if is_own and f"--gcs-address={address}" in (process.info["cmdline"] or ()):
            return True
    return False


def _refuses(address: str, token: str | None, deadline: float) -> bool:
    """Whether the cluster refuses a call with this token; None is a call without one.

    Raises RuntimeError if it does not answer as Ray does.
    """
    import grpc

    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    try:
        with _channel(address) as channel:
            call = channel.unary_unary(
                QUESTION, request_serializer=bytes, response_deserializer=bytes
            )
            call(b"", timeout=_seconds_until(deadline), metadata=metadata)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return True
        raise RuntimeError(
            f"what listens on {address} does not answer as a Ray cluster does "
            f"({error.code().name.lower()}): give the address of its control service (GCS), or "
            "leave out --ray-address and RAY_ADDRESS"
        ) from None
    return False


def _channel(address: str) -> "grpc.Channel":
    """A connection to the cluster, encrypted if Ray's variables ask for it."""
    import grpc

    options = (("grpc.enable_http_proxy", 0),)
    if os.environ.get("RAY_USE_TLS", "").lower() not in ("1", "true"):
        return grpc.insecure_channel(address, options)
    files = (os.environ[f"RAY_TLS_{name}"] for name in ("CA_CERT", "SERVER_KEY", "SERVER_CERT"))
    credentials = grpc.ssl_channel_credentials(*(Path(file).read_bytes() for file in files))
    return grpc.secure_channel(address, credentials, options)


def _source(address: str) -> str:
    """The place of the token, in Ray's order: a variable, the file in a variable, or HOME_TOKEN.

    Raises RuntimeError without a token, or if others could have read it.
    """
    if os.environ.get(TOKEN):
        return TOKEN
    if os.environ.get(PATH):
        return os.environ[PATH]
    try:
        status = Path(HOME_TOKEN).expanduser().stat()
    except (OSError, RuntimeError):
        raise RuntimeError(
            f"the cluster at {address} asks for a token: copy its {HOME_TOKEN} here, mode 600, or "
            f"name another file in {PATH}"
        ) from None
    owner_only = status.st_uid in _trusted_users() and not status.st_mode & OTHERS_BITS
    if os.name == "posix" and not owner_only:
        raise RuntimeError(
            f"other users can read {HOME_TOKEN} (mode {stat.S_IMODE(status.st_mode):o}), so the "
            f"cluster at {address} is open to them: make a new token (umask 077; ray "
            "get-auth-token --generate), start the cluster again, and chmod 600 the file"
        )
    return HOME_TOKEN


def _read(source: str) -> str:
    """The token in a file."""
    try:
        return Path(source).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeError(f"cannot read the token of Ray in {source} ({error})") from None


def _seconds_until(deadline: float) -> float:
    """A timeout that ends at the deadline, by ``time.monotonic``; 0.1 s at least."""
    return max(deadline - time.monotonic(), 0.1)
