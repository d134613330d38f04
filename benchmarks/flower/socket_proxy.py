"""A TCP proxy on loopback that keeps every byte that it passes on, and finds the HTTP/1.1 exchanges
in them.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request and its response: bytes on the socket (head and body), and the two bodies."""

    path: str
    up: int
    down: int
    request: bytes
    response: bytes


@dataclass
class Connection:
    """The bytes of one TCP connection in both directions, in order."""

    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)


class CountingProxy:
    """Listens on ``port`` and connects every caller to ``target``; closed by ``close``."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.connections: list[Connection] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                caller, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # nobody listens there any more: close the connection
                    caller.close()
                    continue
                connection = Connection()
                self.connections.append(connection)
                self._sockets += [caller, server]
                for source, drain, kept in (
                    (caller, server, connection.up),
                    (server, caller, connection.down),
                ):
                    threading.Thread(
                        target=_pass_on, args=(source, drain, kept), daemon=True
                    ).start()

    def close(self) -> None:
        """Close every socket; the counts stay."""
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def exchanges(self) -> list[Exchange]:
        """All finished exchanges, connection by connection."""
        found = []
        for connection in list(self.connections):
            requests = split_http(bytes(connection.up))
            responses = split_http(bytes(connection.down))
            for (first, body, up), (_, answer, down) in zip(requests, responses, strict=False):
                path = first.split()[1].decode()
                found.append(Exchange(path=path, up=up, down=down, request=body, response=answer))
        return found

    @property
    def total(self) -> tuple[int, int]:
        """All bytes (up, down)."""
        return sum(len(c.up) for c in self.connections), sum(len(c.down) for c in self.connections)


def _pass_on(source: socket.socket, drain: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            kept += data
            drain.sendall(data)
        drain.shutdown(socket.SHUT_WR)


def split_http(stream: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """(first line, body, bytes of the whole message) of each complete HTTP/1.1 message of fixed
    length.

    Raises ValueError for another transfer encoding: its body would be counted wrongly.
    """
    while b"\r\n\r\n" in stream:
        head, _, rest = stream.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        if b"transfer-encoding" in fields:
            raise ValueError(
                f"expected a message of fixed length, got {fields[b'transfer-encoding']!r}"
            )
        length = int(fields.get(b"content-length", b"0"))
        if len(rest) < length:
            return
        yield first, rest[:length], len(head) + 4 + length
        stream = rest[length:]


@contextmanager
def counting(target: int) -> Iterator[CountingProxy]:
    """A proxy for as long as the block lasts."""
    proxy = CountingProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
