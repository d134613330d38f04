"""Which Ray a process uses: one of its own, one that it uses already, or the cluster that RAY_ADDRESS names."""

import os
import socket
import sys
import tempfile
from pathlib import Path

PATIENCE = 10.0
"""Seconds to wait for a cluster to answer."""


def joins_cluster() -> bool:
    """Whether runs join an existing Ray cluster."""
    return os.environ.get("RAY_ADDRESS", "local") not in ("", "local")


def in_use() -> bool:
    """Whether this process uses Ray already, as a notebook may: runs share it, and leave it as it is."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def reachable_cluster() -> str:
    """The address of the cluster that RAY_ADDRESS names. Raises RuntimeError where nobody listens: Ray tries for long.

    "auto" is the cluster of ``ray start`` on this machine; Ray itself would also take another run's private Ray.
    """
    address = os.environ["RAY_ADDRESS"]
    if address == "auto":
        note = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "ray_current_cluster"
        try:
            address = note.read_text().strip()
        except OSError:
            raise RuntimeError(
                "no cluster of ray start runs on this machine: start one, give --ray-address HOST:PORT, or leave it out"
            ) from None
    named = address
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()) or "/" in host:
        raise RuntimeError(
            f"expected --ray-address (or RAY_ADDRESS) auto or HOST:PORT of a cluster that this machine is part of, got "
            f"{address}"
        )
    from ray.util import get_node_ip_address

    if host in ("localhost", "127.0.0.1"):
        host = get_node_ip_address()  # as Ray reads it: machines of a cluster know each other by such addresses
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise RuntimeError(
            f"no Ray cluster listens on {named} ({error}{'' if named == f'{host}:{port}' else f', at {host}'}): start "
            "it, or leave out --ray-address and RAY_ADDRESS"
        ) from None
    return f"{host}:{port}"
